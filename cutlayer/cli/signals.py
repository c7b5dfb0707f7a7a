"""SIGTERM, as a scheduler or an operating system sends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(BaseException):
    """SIGTERM."""


@contextmanager
def terminating() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does, with a word and a status of its own."""
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
