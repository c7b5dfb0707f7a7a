"""SIGTERM, which a scheduler or an operating system sends to end a command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(BaseException):
    """The process has received SIGTERM."""


@contextmanager
def terminating() -> Iterator[None]:
    """Make SIGTERM end a command as Ctrl-C does, with its own message and exit status."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
