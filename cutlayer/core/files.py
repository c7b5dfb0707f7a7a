"""Write files atomically, with retries while the disk is full or busy, and check paths that come from outside."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from cutlayer.errors import ContractError, StoreError, expect

BUSY = os.name == "nt"  # Windows: a file that somebody has open, even for reading, cannot be replaced
PATIENCE = 300.0  # seconds until a write that fails for a temporary reason is given up
NAP, LONG_NAP = 0.05, 5.0  # seconds between two attempts: the first wait, and the longest
PASSING = {  # temporary reasons: somebody may free space, close files or mount the disk again
    code
    for name in ["EMFILE", "ENFILE", "ENOSPC", "EDQUOT", "EIO", "EAGAIN", "EBUSY", "ENOMEM", "ESTALE", "ETIMEDOUT"]
    if (code := getattr(errno, name, None)) is not None
}
T = TypeVar("T")
log = logging.getLogger(__name__)


def persistently(act: Callable[[], T], path: Path) -> T:
    """Run `act`, which writes `path`; retry for up to PATIENCE seconds while it fails for a temporary reason."""
    until, nap, said = time.monotonic() + PATIENCE, NAP, False
    while True:
        try:
            found = act()
        except OSError as error:
            if not _passes(error) or time.monotonic() > until:
                raise
            if not said:
                log.warning("%s: cannot be written: %s; trying again for %.0f s", path, error.strerror, PATIENCE)
            said = True
        else:
            if said:
                log.warning("%s: written at last", path)
            return found
        time.sleep(nap)
        nap = min(2 * nap, LONG_NAP)


def _passes(error: OSError) -> bool:
    return error.errno in PASSING or (BUSY and isinstance(error, PermissionError))


def as_path(field: str, given: str | Path) -> Path:
    """Return a path from outside as a Path; refuse a name that no file can have, or that UTF-8 cannot express."""
    text = os.fspath(given)
    fine = isinstance(text, str) and "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)
    expect(fine, field, text, "a path in UTF-8 without NUL characters")
    return Path(text)


def from_root(field: str, given: str | Path) -> Path:
    """Return a path from outside as an absolute path, which is valid in every working directory."""
    path = as_path(field, given)
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise ContractError(f"{field} = {str(path)!r}: expected a path without a loop of symbolic links") from error


@contextlib.contextmanager
def reached(what: str) -> Iterator[None]:
    """Turn an error of the operating system, raised while something is read or written, into a StoreError."""
    try:
        yield
    except OSError as error:
        named = f"{error.filename}: " if error.filename is not None and str(error.filename) not in what else ""
        said = error.strerror or str(error)
        raise StoreError(f"{what}: {named}{said[:1].lower()}{said[1:]}") from error
    except RecursionError as error:
        raise StoreError(f"{what}: nested too deeply") from error


def write_aside(path: Path, content: bytes) -> None:
    """Write a file atomically: it has its old content or all of the new."""
    aside = path.with_name(f".{path.name}.tmp")

    def write() -> None:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        move(aside, path)
        sync(path.parent)

    try:
        persistently(write, path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def append(path: Path, content: bytes, lasting: bool = True) -> None:
    """Append to a file (`lasting`: on disk when this returns); a retry first removes what a failed attempt wrote."""
    before = persistently(lambda: path.stat().st_size if path.exists() else None, path)

    def write() -> None:
        with path.open("ab") as file:
            file.truncate(before or 0)
            file.write(content)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        if before is None and lasting:
            sync(path.parent)

    persistently(write, path)


def move(aside: Path, path: Path) -> None:
    """Rename a file or folder to its final name; retry while the old one is open and cannot be replaced."""
    persistently(lambda: aside.replace(path), path)


def sync(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut, where folders can be opened (not on Windows)."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
