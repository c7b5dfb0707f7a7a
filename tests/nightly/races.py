"""Several starts into one folder at once, in threads and in processes: one of them has it, and the others nothing."""

from __future__ import annotations

import functools
import gc
import json
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cutlayer.core import toml
from cutlayer.experiment import checkpoint, description
from cutlayer.experiment import config as text
from cutlayer.experiment.config import Config
from cutlayer.experiment.experiment import Experiment
from tests.forks import forked
from tests.nightly.hands import watched
from tests.nightly.runs import POINTS, Ended, config, described, ended, finish, same, scratch

SOON = 60.0  # seconds in which everybody has come to an end, however busy the machine is
WAIT = 0.003  # the longest that a write is held up


def play(seed: int, folder: Path) -> None:
    dice = random.Random(seed)
    points = dice.sample(POINTS, dice.choice((2, 3)))
    configs = [contender(*point, place) for place, point in enumerate(points)]
    over, out = dice.random() < 0.4, folder / "run"
    if over:
        finish(Experiment.start(config("fedavg", "smofi", rounds=1, seed=99), out))
    race = in_processes if dice.random() < 0.3 else in_threads
    found = race(configs, out, over, dice)
    what = f"{race.__name__}{' over an older run' * over}: {points}: {found}"
    winners = [place for place, said in enumerate(found) if said == ""]
    assert len(winners) == 1, what
    assert all(said.startswith("StoreError") for place, said in enumerate(found) if place not in winners), what
    winner = configs[winners[0]]
    assert described(out) == winner, f"{what}: config.toml is another's"
    known = checkpoint.config(out)
    assert known is not None and text.parse(toml.loads(known)) == winner, f"{what}: the checkpoint's config"
    assert known == (out / description.FILE).read_text(), what
    same(ended(out), alone(*points[winners[0]], winners[0], os.getpid()))


@functools.cache
def contender(scheme: str, protocol: str, place: int) -> Config:
    """With its backend chosen, as a run directory has it."""
    folder = scratch() / f"contender-{scheme}-{protocol}-{place}-{os.getpid()}"
    Experiment.start(config(scheme, protocol, rounds=2, seed=place), folder)
    return described(folder)


@functools.cache
def alone(scheme: str, protocol: str, place: int, owner: int) -> Ended:
    folder = scratch() / f"contender-{scheme}-{protocol}-{place}-{owner}"
    gc.collect()  # whoever began it is gone
    return finish(Experiment.resume(folder))


def attempt(given: Config, out: Path, over: bool, meet: Callable[[], Any]) -> str:
    """Start, let everybody else try, then train; what went wrong."""
    try:
        experiment = Experiment.start(given, out, over)
    except Exception as error:
        meet()
        return f"{type(error).__name__}: {error}"
    meet()
    for _ in experiment:
        pass
    return ""


def in_threads(configs: list[Config], out: Path, over: bool, dice: random.Random) -> list[str]:
    found = ["?"] * len(configs)
    first, second = threading.Barrier(len(configs)), threading.Barrier(len(configs))
    waits = random.Random(dice.random())

    def work(place: int) -> None:
        first.wait(SOON)
        found[place] = attempt(configs[place], out, over, lambda: second.wait(SOON))

    def hold_up(what: str, path: Path) -> None:
        time.sleep(waits.random() * WAIT)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(configs))]
    with watched(out, hold_up):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
    assert not any(thread.is_alive() for thread in threads), "one of them hangs"
    gc.collect()
    return found


def in_processes(configs: list[Config], out: Path, over: bool, dice: random.Random) -> list[str]:
    room = out.parent / "room"
    room.mkdir()
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                forked(process, text.dump(one), str(out), over, place, str(room), len(configs), dice.random())
            )
            for place, one in enumerate(configs)
        ]
        for child in children:
            assert child.wait() == 0, child.err[-2000:]
    return [json.loads((room / f"found-{place}").read_text()) for place in range(len(configs))]


def process(given: str, out: str, over: bool, place: int, room: str, n: int, waits: float) -> None:
    """One contender."""
    dice = random.Random(waits)
    mine = text.parse(toml.loads(given))
    _meet(Path(room), "ready", place, n)

    def hold_up(what: str, path: Path) -> None:
        time.sleep(dice.random() * WAIT)

    with watched(Path(out), hold_up):
        said = attempt(mine, Path(out), over, lambda: _meet(Path(room), "tried", place, n))
    (Path(room) / f"found-{place}").write_text(json.dumps(said))


def _meet(room: Path, what: str, place: int, n: int) -> None:
    """Wait until all have come."""
    (room / f"{what}-{place}").touch()
    until = time.monotonic() + SOON
    while len(list(room.glob(f"{what}-*"))) < n:
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.001)
