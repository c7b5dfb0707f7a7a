"""SIGTERM at a random moment of a run, a comparison, a server or a client: its exit code, and no file too many; what is
resumed ends."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from cutlayer.cli.main import main
from tests.cli.test_commands import leading, members
from tests.cli.test_sigterm import KEEPS, rounds, spilled, stopped, until
from tests.forks import forked

LAST = 12


def play(seed: int, folder: Path) -> None:
    dice = random.Random(seed)
    what = ("run", "compare", "server", "client")[seed % 4]
    if what in ("server", "client"):
        stopped(folder, what, after=1 + dice.randrange(LAST - 4), last=LAST, pause=dice.random() / 4)
        return
    out = folder / "out"
    flags = [*KEEPS, "--rounds", str(LAST), "--out", str(out)]
    runs = [out]
    if what == "compare":
        flags = ["--schemes", "psl", "sglr", "--seeds", "0", "--jobs", "2", *flags[2:]]
        runs = [out / "runs" / name / "seed-0" for name in ("psl", "sglr")]
    with forked(leading, [what, *flags]) as process:
        until(process, runs[0], dice.randrange(LAST - 4))
        while not runs[0].exists():
            time.sleep(0.001)
        time.sleep(dice.random() / 2)
        finished = process.ended
        if not finished:
            os.kill(process.pid, signal.SIGTERM)
        found = process.wait()
        assert found == 143 or (found == 0 and all(rounds(run) == LAST for run in runs)), process.err
        while members(process.pid):
            time.sleep(0.01)
    assert not spilled(out)
    if (out / "config.toml").exists() or (out / "compare.toml").exists():
        assert main(["resume", str(out), "--quiet"]) == 0
        assert [rounds(run) for run in runs] == [LAST] * len(runs) and not spilled(out)
