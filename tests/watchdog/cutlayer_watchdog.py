"""Ends a process that stands still, and says where it stood.

A thread may stand still while it holds the interpreter, for instance in a lock of torch: then no signal and no timer of
Python's is heard. faulthandler's watchdog needs no interpreter. It has two faults of its own: a forked process has no
watchdog, and waits for ever for the one it had, as soon as it asks for another or leaves. So it rests during a fork.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import time

VARIABLE = "CUTLAYER_WATCHDOG"
"""The environment variable with the seconds that a child process of the tests may take."""
_file = 2
_until: float | None = None


def arm(seconds: float) -> None:
    """End this process after so many seconds from now, with the stack of every thread."""
    global _until
    _until = time.monotonic() + seconds
    faulthandler.dump_traceback_later(seconds, exit=True, file=_file)


def rest() -> None:
    """Let this process take as long as it likes, until it is armed again."""
    global _until
    _until = None
    faulthandler.cancel_dump_traceback_later()


def _again() -> None:
    """Go on after a fork. Whoever has outlived its watchdog had sent it away."""
    if _until is not None and (left := _until - time.monotonic()) > 0:
        faulthandler.dump_traceback_later(left, exit=True, file=_file)


@functools.cache
def follow(seconds: float) -> None:
    """Arm every process that is forked from this one."""
    os.register_at_fork(
        before=faulthandler.cancel_dump_traceback_later,
        after_in_parent=_again,
        after_in_child=functools.partial(arm, seconds),
    )


def speak_to(file: int) -> None:
    """The file descriptor for what it says; standard error without this."""
    global _file
    _file = file
