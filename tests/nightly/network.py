"""kill -9 of a server or of one of its clients, at any moment of a run over the network: started again, the same bits.

Seed after seed goes through every scheme; whom it meets, and when, is drawn. A round counts only with all clients, so
that one that was lost is tried again.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from cutlayer.cli.main import main
from cutlayer.network.transport import dial
from cutlayer.registry import SCHEMES
from tests import forks
from tests.forks import Forked, forked
from tests.network.test_restart import free_port
from tests.nightly.runs import Ended, ended, scratch

NAMES = ("a", "b", "c")
FLAGS = (
    *("--model", "mlp", "--model.width", "4", "--rounds", "8", "--batch-size", "4", "--local-steps", "2"),
    *("--min-clients", str(len(NAMES)), "--quorum", "1.0", "--deadline", "240", "--grace", "60", "--quiet"),
)
KILLS = 4  # in one run, at most
SERVERS, SOON = 3, 15.0  # how often a server is started for clients that it could not tell; seconds they may need
PAUSE = 0.3  # seconds between a death and the next start, at most
FIRST, LONGEST = 0.02, 0.1  # seconds before a client tries again
MODULES = ("cutlayer.cli.commands.serve", "cutlayer.network.server.service", "cutlayer.network.client.loop")
forks.LOADED += [name for name in MODULES if name not in forks.LOADED]


def play(seed: int, folder: Path) -> int:
    dice = random.Random(seed)
    scheme, protocol = list(SCHEMES)[seed % len(SCHEMES)], dice.choice(("smofi", "cyclesl"))
    expected, seconds = undisturbed(scheme, protocol, os.getpid())
    said, kills = list[str](), 0
    try:
        with Places(folder, scheme, protocol) as places:
            for _ in range(dice.randint(1, KILLS)):
                who, moment = dice.choice(("server", "server", *places.clients)), dice.uniform(0, seconds)
                said.append(f"{who} after {moment:.2f} s")
                killed = places.kill(who, moment)
                time.sleep(dice.uniform(0, PAUSE))
                kills += killed
                if killed:
                    places.start(who)
            here = places.finish()
        assert asked(folder, here) == asked(expected, here), "other bits"
    except Exception as error:
        what = f"{scheme}, {protocol}, killed of {seconds:.2f} s: {said}"
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    return kills


def asked(folder: Path, here: Sequence[str]) -> tuple[Ended, dict[str, dict[str, bytes]]]:
    """What the server and these clients ended with; faults are in the journal, and do not count."""
    run = ended(folder / "run")
    rounds = tuple(json.dumps(json.loads(line) | {"faults": None}) for line in run.rounds)
    fronts = {
        name: {key: t.numpy().tobytes() for key, t in load_file(next((folder / name).rglob("*.safetensors"))).items()}
        for name in here
    }
    return Ended(run.sha256, rounds, {}), fronts


class Places:
    """A server and its clients, each in a process of its own; whoever has died is started again by its command."""

    def __init__(self, folder: Path, scheme: str, protocol: str) -> None:
        self.folder, self.out, self.stack = folder, folder / "run", ExitStack()
        self.flags = ["--scheme", scheme, "--protocol", protocol, *FLAGS]
        self.place = f"127.0.0.1:{free_port()}"
        self.here: dict[str, Forked] = {}

    def __enter__(self) -> Places:
        dice = np.random.default_rng(0)
        for name in ("server", *NAMES):
            rows = {"x": dice.normal(size=(24, 4)).astype(np.float32), "y": np.arange(24) % 3}
            np.savez(self.folder / f"{name}.npz", **rows)  # type: ignore[arg-type]
        for who in ("server", *NAMES):
            self.start(who)
        return self

    def __exit__(self, *what: object) -> None:
        self.stack.close()

    def start(self, who: str) -> None:
        env = {"CUTLAYER_CACHE": str(self.folder / "cache")}
        self.here[who] = self.stack.enter_context(forked(command, self.words(who), env=env))

    def words(self, who: str) -> list[str]:
        data = ["--data", str(self.folder / f"{who}.npz")]
        if who != "server":
            return ["join", "--server", self.place, "--name", who, *data, "--out", str(self.folder / who), "--quiet"]
        if (self.out / "config.toml").exists():
            return ["resume", str(self.out), "--quiet"]
        return ["serve", *data, *self.flags, "--listen", self.place, "--out", str(self.out)]

    def kill(self, who: str, moment: float) -> bool:
        """Whether it was killed and is needed again: not if it has ended, nor a client once the server has."""
        victim, until = self.here[who], time.monotonic() + moment
        while time.monotonic() < until and not victim.ended:
            time.sleep(0.001)
        if not victim.ended:
            os.kill(victim.pid, signal.SIGKILL)
        if victim.wait() == 0:
            return False
        if who != "server" and self.here["server"].ended:
            del self.here[who]
        return who in self.here

    def finish(self) -> list[str]:
        """Wait until all have ended by themselves; the clients that did. One that was killed as the run ended came
        back too late to hear of it: as an operator would, start the server again, which tells it."""
        for _ in range(SERVERS):
            self.here["server"].wait()
            if self.soon_ended():
                break
            self.start("server")
        for who, process in self.here.items():
            assert process.wait() == 0, f"{who}: {process.err[-1500:]}"
        return self.clients

    def soon_ended(self) -> bool:
        """Whether all have ended, or do so soon."""
        until = time.monotonic() + SOON
        while not all(process.ended for process in self.here.values()) and time.monotonic() < until:
            time.sleep(0.05)
        return all(process.ended for process in self.here.values())

    @property
    def clients(self) -> list[str]:
        return [who for who in self.here if who != "server"]


def command(words: list[str]) -> int:
    dial.FIRST, dial.LONGEST = FIRST, LONGEST
    return main(words)


@functools.cache
def undisturbed(scheme: str, protocol: str, owner: int) -> tuple[Path, float]:
    """Where a run to which nothing happened has ended, and the seconds it takes."""
    folder = scratch() / f"network-{scheme}-{protocol}"
    folder.mkdir()
    with forked(os.getpid) as first:  # from now on, torch is loaded
        first.wait()
    begin = time.monotonic()
    with Places(folder, scheme, protocol) as places:
        places.finish()
    return folder, time.monotonic() - begin
