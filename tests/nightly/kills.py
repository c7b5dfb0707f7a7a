"""kill -9 at any moment of `cutlayer run`, of `cutlayer compare` and of a run over two ranks: resumed, the same bits.

Seed after seed goes through every scheme in every of the three; the moment is drawn.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from cutlayer.cli.main import main
from cutlayer.experiment import pool
from cutlayer.registry import SCHEMES
from cutlayer.report import curves
from tests import forks
from tests.forks import Forked, forked
from tests.nightly.runs import Ended, ended, same, scratch
from tests.processes.test_ranks import launched

RUNTIMES = ("run", "compare", "ranks")
FLAGS = (
    *("--model", "mlp", "--model.width", "4", "--train-rows", "100", "--clients", "4", "--participation", "2"),
    *("--rounds", "12", "--batch-size", "8", "--local-steps", "2", "--threads", "1", "--quiet"),
)
LIVES = 5  # that may be killed
ALIVE = 3.0  # seconds in which the other rank may end by itself; then it is ended, as torchrun would
SOON = 60.0  # seconds in which a process ends by itself
BUSY = "another process is training here"  # a worker of a comparison outlives it for half a second
if "tests.nightly.loaded" not in forks.LOADED:
    forks.LOADED.append("tests.nightly.loaded")


def play(seed: int, folder: Path) -> int:
    dice = random.Random(seed)
    scheme, runtime = list(SCHEMES)[seed % len(SCHEMES)], RUNTIMES[seed // len(SCHEMES) % len(RUNTIMES)]
    protocol = dice.choice(("smofi", "cyclesl"))
    expected, seconds = undisturbed(scheme, protocol, runtime, os.getpid())
    out, moments, kills = folder / "out", list[float](), 0
    for life in range(dice.randint(1, LIVES)):
        moments.append(dice.uniform(0, 1.1 * seconds / (1 + life)))  # less and less is left
        with begun(runtime, words(scheme, protocol, runtime, out)) as lives:
            kills += killed(lives, moments[-1], dice)
    what = f"{scheme}, {protocol}, {runtime}, killed after {moments} of {seconds:.2f} s"
    try:
        finished(runtime, words(scheme, protocol, runtime, out), dice.random() < 0.5)
        for name, right in expected.items():
            same(ended(out / name), right)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    return kills


def words(scheme: str, protocol: str, runtime: str, out: Path) -> list[str]:
    """The command that somebody would give now: to begin, or to go on."""
    if (out / "compare.toml").exists() or (out / "config.toml").exists():
        return ["resume", str(out), "--quiet", *(["--jobs", "2"] if runtime == "compare" else [])]
    if runtime == "compare":
        other = "fedavg" if scheme != "fedavg" else "smofi"
        flags = ["--schemes", scheme, other, "--seeds", "0", "--jobs", "2"]
        return ["compare", *flags, *FLAGS, "--protocol", protocol, "--out", str(out)]
    return ["run", "--scheme", scheme, *FLAGS, "--protocol", protocol, "--out", str(out)]


def command(given: Sequence[str]) -> int:
    """In a forked process, whose workers are forked from it and need not load torch again. Curves are not drawn: that
    would be half of its time, and half of the kills would meet it."""
    os.environ["COLUMNS"] = "1000"
    curves.png = lambda figure: b""  # type: ignore[assignment]
    pool._processes = lambda: multiprocessing.get_context("fork")  # type: ignore[assignment]
    return main(list(given))


class begun:  # noqa: N801
    """The processes of a command, by rank; they are gone at the end."""

    def __init__(self, runtime: str, given: Sequence[str]) -> None:
        self.runtime, self.given, self.stack = runtime, given, ExitStack()

    def __enter__(self) -> list[Forked]:
        if self.runtime == "ranks":
            return self.stack.enter_context(launched(2, command, self.given))
        return [self.stack.enter_context(forked(command, self.given))]

    def __exit__(self, *what: object) -> None:
        self.stack.close()


def killed(lives: Sequence[Forked], moment: float, dice: random.Random) -> bool:
    """One of them, after so many seconds, unless it has ended; the others end soon, or are ended as torchrun would."""
    victim = dice.choice(lives)
    until = time.monotonic() + moment
    while time.monotonic() < until and not victim.ended:
        time.sleep(0.001)
    if not victim.ended:
        os.kill(victim.pid, signal.SIGKILL)
    killed = victim.wait() == -signal.SIGKILL
    until = time.monotonic() + ALIVE
    while time.monotonic() < until and not all(life.ended for life in lives):
        time.sleep(0.01)
    return killed


def finished(runtime: str, given: Sequence[str], alone: bool) -> None:
    """To the end; a run over ranks is taken on by ranks, or by one process."""
    runtime = "run" if runtime == "ranks" and alone else runtime
    until = time.monotonic() + SOON
    while True:
        with begun(runtime, given) as lives:
            codes = [life.wait() for life in lives]
            said = "".join(life.err for life in lives)
        if codes == [0] * len(codes):
            return
        assert BUSY in said and time.monotonic() < until, said[-1500:]
        out = Path(given[given.index("--out") + 1] if "--out" in given else given[1])
        given = again(given, out)


def again(given: Sequence[str], out: Path) -> Sequence[str]:
    begins = given[0] != "resume" and (out / "compare.toml").exists()
    return ["resume", str(out), "--quiet", "--jobs", "2"] if begins else given


@functools.cache
def undisturbed(scheme: str, protocol: str, runtime: str, owner: int) -> tuple[dict[str, Ended], float]:
    """What the runs end with, by folder; and the seconds it takes."""
    out = scratch() / f"kills-{scheme}-{protocol}-{runtime}"
    with forked(os.getpid) as first:  # from now on, torch is loaded
        first.wait()
    begin = time.monotonic()
    finished(runtime, words(scheme, protocol, runtime, out), False)
    seconds = time.monotonic() - begin
    runs = [path.parent.relative_to(out) for path in out.rglob("config.toml")]
    assert len(runs) == (2 if runtime == "compare" else 1)
    return {str(run): ended(out / run) for run in runs}, seconds
