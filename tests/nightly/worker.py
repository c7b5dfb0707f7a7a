"""A process that plays seeds one after another, and the one that watches it.

`python -m tests.nightly.worker`: jobs come in as lines "campaign seed", results go out as lines of JSON. Whatever a
campaign prints is in a file, which is read when the process ends without a result.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.nightly.campaigns import LONG, play_of

LIMIT = 300.0  # seconds that a seed may take before it counts as standing still
LINES, WIDTH = 12, 500  # of an error that are kept
MOMENT = 2.0  # seconds to say where it stood


Result = tuple[str, int]
"""What went wrong with a seed, if anything, and how many trials it was."""


def played(name: str, seed: int) -> Result:
    """Play one seed in a folder of its own."""
    try:
        with tempfile.TemporaryDirectory(prefix=f"nightly-{name}-") as folder:
            trials = play_of(name)(seed, Path(folder))
    except Exception:
        return traceback.format_exc(), 1
    return "", 1 if trials is None else trials


def serve() -> None:
    """The worker's side."""
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)  # heard even where the interpreter is held
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, seed = line.split()
        print(json.dumps(played(name, int(seed))), file=answers, flush=True)


@dataclass
class Job:
    """A seed under way."""

    campaign: str
    seed: int
    begin: float

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin


class Worker:
    """The watcher's side: a process, and the seed it plays."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.limit = limit
        self.job: Job | None = None
        self._begin()

    def _begin(self) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        env = {"OMP_NUM_THREADS": "1", **os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.nightly.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # so that its own children end with it
            env=env,
        )

    def give(self, campaign: str, seed: int) -> None:
        self.job = Job(campaign, seed, time.monotonic())
        self._pipe(self.process.stdin).write(f"{campaign} {seed}\n".encode())
        self._pipe(self.process.stdin).flush()

    def fileno(self) -> int:
        """Readable when there is a result, or when the process has ended."""
        return int(self._pipe(self.process.stdout).fileno())

    def result(self) -> Result:
        """What came of the seed; a process that has ended is replaced."""
        line = self._pipe(self.process.stdout).readline()
        self.job = None
        if line:
            error, trials = json.loads(line)
            return error, trials
        code = self.process.wait()
        return self._again(f"the process ended with {code}")

    def stuck(self) -> Result | None:
        """What it says where it stands, if it has stood still for too long."""
        if self.job is None or self.job.seconds < (limit := max(self.limit, LONG.get(self.job.campaign, 0.0))):
            return None
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(MOMENT)
        return self._again(f"it stood still for {limit:.0f} seconds")

    def _again(self, why: str) -> Result:
        self.end()
        self.job = None
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        self._begin()
        return f"{said[-4000:]}\n{why}", 1

    def end(self) -> None:
        """It leaves by itself if it has nothing to do, and whatever it started goes with it."""
        self._pipe(self.process.stdin).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.0 if self.job else 5 * MOMENT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._pipe(self.process.stdout).close()

    def _pipe(self, pipe: Any) -> Any:
        assert pipe is not None
        return pipe


def last_lines(error: str) -> str:
    return "\n".join(line[:WIDTH] for line in error.strip().splitlines()[-LINES:])


if __name__ == "__main__":
    serve()
