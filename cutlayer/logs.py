"""The log of whatever runs for long: one event a line, with time and level; bounded, whatever others do.

A program logs through `logging.getLogger("cutlayer...")`; the command line decides where lines go and how they look.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from cutlayer.errors import ContractError, StoreError

ROOT = "cutlayer"
FORMATS = ("text", "json")
SIZE, FILES = 10 * 2**20, 5  # bytes of a log file, and how many older ones are kept
BURST, WINDOW = 30, 60.0  # so many lines of one kind in so many seconds
Form = Literal["text", "json"]


def set_up(form: str = "text", file: str | Path | None = None, show: Callable[[str], None] | None = None) -> None:
    """Send the log to standard error (or to `show`, line by line) and, if given, to a file that is renamed when it has
    grown large."""
    if form not in FORMATS:
        raise ContractError(f"log_format = {form!r}: expected 'text' or 'json'")
    handlers: list[logging.Handler] = [Lines(show)]
    if file is not None:
        try:
            handlers.append(logging.handlers.RotatingFileHandler(file, maxBytes=SIZE, backupCount=FILES))
        except (OSError, ValueError) as error:
            raise StoreError(f"log_file = {str(file)!r}: cannot be written: {error}") from error
    root = logging.getLogger(ROOT)
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        handler.setFormatter(Json() if form == "json" else Text())
        handler.addFilter(Sparing())
        root.addHandler(handler)
    root.setLevel(logging.INFO)
    root.propagate = False


class Lines(logging.Handler):
    """Each line to standard error, whatever that is by then, or to a function."""

    def __init__(self, show: Callable[[str], None] | None) -> None:
        super().__init__()
        self._show = show or (lambda line: print(line, file=sys.stderr, flush=True))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._show(self.format(record))
        except OSError:  # nobody reads it any more
            return


class Text(logging.Formatter):
    """2026-11-17T08:30:00Z INFO ward-3: connected, 120 samples"""

    def format(self, record: logging.LogRecord) -> str:
        line = " ".join(record.getMessage().splitlines())
        return f"{_when(record)} {record.levelname} {line}"


class Json(logging.Formatter):
    """{"time": ..., "level": ..., "event": ...}"""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time": _when(record),
                "level": record.levelname.lower(),
                "from": record.name,
                "event": record.getMessage(),
            }
        )


def _when(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))


class Sparing(logging.Filter):
    """Lets through so many lines of one kind a minute (a kind is a line before its values are put in), and says how
    many there were beyond that."""

    def __init__(self, burst: int = BURST, window: float = WINDOW) -> None:
        super().__init__()
        self.burst, self.window = burst, window
        self._seen: dict[str, tuple[float, int]] = {}  # of each kind: since when, and how many

    def filter(self, record: logging.LogRecord) -> bool:
        kind = str(record.msg)
        since, count = self._seen.get(kind, (record.created, 0))
        if record.created - since >= self.window:
            more = count - self.burst
            if more > 0:
                record.msg, record.args = f"{record.getMessage()} (and {more} more like it before)", ()
            since, count = record.created, 0
        self._seen[kind] = since, count + 1
        return count < self.burst
