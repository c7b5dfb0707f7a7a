"""What holds for every test: torch has one thread, and whatever stands still is ended and says where it stood.

`timeout` in pyproject.toml says how long a test may take. Who ends first is who stood still: a child process before the
test that started it (pytest-timeout ends that), the test before the process that runs it.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when it is imported; several processes share the cores

WATCHDOG = str(Path(__file__).parent / "tests" / "watchdog")
sys.path.insert(0, WATCHDOG)
import cutlayer_watchdog as watchdog  # noqa: E402

collect_ignore = ["tests/watchdog"]
ROOM = 4 * 2**30


class Frozen:
    """Takes what is there before a file's tests out of the garbage collector's sight: it would walk over all of torch
    each time, and so would tests that look for tensors. It comes less often, too."""

    def __init__(self) -> None:
        self.file: Path | None = None
        gc.set_threshold(10_000, 20, 20)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.path != self.file:
            self.file = item.path
            gc.collect()
            gc.freeze()


class Guard:
    """Arms the watchdog of a process that runs tests, or (`waits`) of one that waits for those that do."""

    def __init__(self, seconds: float, waits: bool, last: bool) -> None:
        self.seconds, self.waits, self.last = seconds, waits, last
        watchdog.arm(2.0 * seconds + 60.0)  # until the first test begins

    def arm(self, more: float = 0.0) -> None:
        watchdog.arm(2.0 * self.seconds + 60.0 if self.waits else 1.2 * self.seconds + more)

    def pytest_runtest_logstart(self) -> None:
        self.arm()

    def pytest_runtest_logfinish(self) -> None:
        if self.waits:
            self.arm()
        else:
            watchdog.rest()  # there may be nothing to do for a while

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        self.arm()  # pytest has disarmed it, and the test has yet to be torn down

    def pytest_enter_pdb(self) -> None:
        watchdog.rest()

    def pytest_sessionfinish(self) -> None:
        if self.last:
            self.arm(more=5.0)  # all that is left is to report and to leave


def in_memory() -> None:
    """Let pytest put its folders into memory, if the system has such a place with room: tests write half a gigabyte, of
    which all is synchronised."""
    place = Path("/dev/shm")  # noqa: S108 (pytest makes a folder of its own there)
    if place.is_dir() and os.access(place, os.W_OK) and shutil.disk_usage(place).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(place))


def pytest_configure(config: pytest.Config) -> None:
    in_memory()
    config.pluginmanager.register(Frozen(), "cutlayer-frozen")
    given = config.getoption("timeout", None)
    seconds = float(config.getini("timeout") or 0) if given is None else given
    if seconds <= 0:  # somebody takes their time
        return
    child = float(os.environ.setdefault(watchdog.VARIABLE, str(0.8 * seconds)))
    path = os.environ.get("PYTHONPATH", "")
    if WATCHDOG not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([WATCHDOG, path] if path else [WATCHDOG])
    watchdog.speak_to(os.dup(2))  # the original one is captured while a test runs
    watchdog.follow(child)
    worker = hasattr(config, "workerinput")  # its controller ends it
    waits = config.getoption("dist", "no") != "no" and not worker
    config.pluginmanager.register(Guard(seconds, waits, last=not worker), "cutlayer-guard")


def pytest_xdist_auto_num_workers() -> int:
    """One more process than cores: many tests wait for processes and sockets."""
    return (os.cpu_count() or 1) + 1
