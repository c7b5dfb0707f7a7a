"""The log of long-running programs: one event per line, with time and level, at a limited rate.

Code logs through `logging.getLogger("cutlayer...")`; the command line decides where lines go and how they look.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cutlayer.errors import ContractError, StoreError

ROOT = "cutlayer"
Show = Callable[[str], None]
FORMATS = ("text", "json")
SIZE, FILES = 10 * 2**20, 5  # bytes in a log file, and how many older files are kept
BURST, ALL, WINDOW = 30, 600, 60.0  # the most lines of one kind, and of all kinds, in this many seconds
KINDS = 1000  # kinds counted separately; all others count as one


def set_up(form: str = "text", file: str | Path | None = None, quiet: bool = False) -> None:
    """Send the log to standard error (`quiet`: only warnings) and, if given, to a file that is rotated when large."""
    if form not in FORMATS:
        raise ContractError(f"log_format = {form!r}: expected 'text' or 'json'")
    handlers: list[logging.Handler] = [Lines()]
    handlers[0].setLevel(logging.WARNING if quiet else logging.INFO)
    if file is not None:
        from cutlayer.core.log_file import LogFile  # imported here because it loads a lot

        try:
            handlers.append(LogFile(file, maxBytes=SIZE, backupCount=FILES, encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StoreError(f"log_file = {str(file)!r}: cannot be written: {error}") from error
    root = logging.getLogger(ROOT)
    for old in root.handlers[:]:
        root.removeHandler(old)
        with suppress(OSError):  # a full disk
            old.close()
    sparing = Sparing()
    for handler in handlers:
        handler.setFormatter(Json() if form == "json" else Text())
        handler.addFilter(sparing)
        root.addHandler(handler)
    root.setLevel(logging.INFO)


def tell(level: int, line: str) -> None:
    """Say on standard error how a command ends, or what is wrong: as a line of the log where that is JSON, otherwise as
    it is. It goes into the log file as well."""
    record = logging.LogRecord(ROOT, level, "", 0, line, None, None)
    handlers = logging.getLogger(ROOT).handlers
    if not any(isinstance(handler, Lines) and isinstance(handler.formatter, Json) for handler in handlers):
        print(f"cutlayer: {line}", file=sys.stderr)
        handlers = [handler for handler in handlers if not isinstance(handler, Lines)]
    for handler in handlers:
        handler.handle(record)


@contextmanager
def shown_by(show: Show) -> Iterator[None]:
    """Inside this context, send lines to `show` instead of standard error, where something else is drawn."""
    lines = [handler for handler in logging.getLogger(ROOT).handlers if isinstance(handler, Lines)]
    for handler in lines:
        handler.show = show
    try:
        yield
    finally:
        for handler in lines:
            handler.show = to_stderr


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Lines(logging.Handler):
    """Prints each line to the current `sys.stderr`, or passes it to `show`."""

    show: Show = staticmethod(to_stderr)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.show(self.format(record))
        except OSError:  # the reader has closed the stream
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
    """Limits the lines of one kind, and of all kinds, per minute. Lines that differ only in numbers are of one kind.
    After a minute, the next line of a kind says how many like it were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._since = 0.0
        self._all = 0
        self._seen: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide once per line, although every handler asks."""
        about = record.__dict__
        if "spared" not in about:
            about["spared"] = not self._lets(record)
        return not about["spared"]

    def _lets(self, record: logging.LogRecord) -> bool:
        if record.created - self._since >= WINDOW:
            self._since, self._all = record.created, 0
            self._seen = {kind: BURST - many for kind, many in self._seen.items() if many > BURST}  # negative: left out
        kind = re.sub(r"[0-9]+", "0", record.getMessage())[:200]
        kind = kind if kind in self._seen or len(self._seen) < KINDS else "others"
        many = self._seen.get(kind, 0)
        if many < 0:
            record.msg, record.args = f"{record.getMessage()} ({-many} more like it were left out)", ()
            many = 0
        self._seen[kind] = many + 1
        self._all += many < BURST
        return many < BURST and self._all <= ALL
