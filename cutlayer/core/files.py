"""Files that are there whole or not at all, on a disk that may be full or busy for a while; and paths that no file can
have, or that cannot be reached."""

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

BUSY = os.name == "nt"  # Windows: what somebody has open, if only to read it, cannot be replaced
PATIENCE = 300.0  # seconds until a write that fails for a passing reason is given up
NAP, LONG_NAP = 0.05, 5.0  # seconds between two attempts: the first, and at most
PASSING = {  # reasons that pass: somebody makes room, closes files, mounts the disk again
    code
    for name in ["EMFILE", "ENFILE", "ENOSPC", "EDQUOT", "EIO", "EAGAIN", "EBUSY", "ENOMEM", "ESTALE", "ETIMEDOUT"]
    if (code := getattr(errno, name, None)) is not None
}
T = TypeVar("T")
log = logging.getLogger(__name__)


def persistently(act: Callable[[], T], path: Path) -> T:
    """`act`, which writes `path`, again and again while it fails for a passing reason, up to PATIENCE seconds."""
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
    """A path from outside; refused where no file can have that name, or none that could be written down."""
    text = os.fspath(given)
    fine = isinstance(text, str) and "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)
    expect(fine, field, text, "a path in UTF-8 without NUL characters")
    return Path(text)


def from_root(field: str, given: str | Path) -> Path:
    """A path from outside, from the root: the same wherever a program is started."""
    path = as_path(field, given)
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise ContractError(f"{field} = {str(path)!r}: expected a path without a loop of symbolic links") from error


@contextlib.contextmanager
def reached(what: str) -> Iterator[None]:
    """What the system refuses while something is read or written is a StoreError that says so."""
    try:
        yield
    except OSError as error:
        named = f"{error.filename}: " if error.filename is not None and str(error.filename) not in what else ""
        said = error.strerror or str(error)
        raise StoreError(f"{what}: {named}{said[:1].lower()}{said[1:]}") from error
    except RecursionError as error:
        raise StoreError(f"{what}: nested too deeply") from error


def write_aside(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
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
    """Add to the end of a file (`lasting`: on disk when this returns); a part that was written in vain is cut off."""
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
    """Give a file or folder its final name; where the old one cannot go while it is read, a little later."""
    persistently(lambda: aside.replace(path), path)


def sync(folder: Path) -> None:
    """Make a rename inside `folder` last through a power cut, where a folder can be opened (not on Windows)."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
