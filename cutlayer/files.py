"""Files that are there whole or not at all; and paths that no file can have, or that cannot be reached."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from cutlayer.errors import ContractError, StoreError, expect

BUSY = os.name == "nt"  # Windows: what somebody has open, if only to read it, cannot be replaced
PATIENCE, NAP = 2.0, 0.01  # seconds until that is an error, and between two attempts


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
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        move(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def move(aside: Path, path: Path) -> None:
    """Give a file or folder its final name; where the old one cannot go while it is read, a little later."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            aside.replace(path)
            return
        except PermissionError:
            if not BUSY or time.monotonic() > until:
                raise
        time.sleep(NAP)


def sync(folder: Path) -> None:
    """Make a rename inside `folder` last through a power cut, where a folder can be opened (not on Windows)."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
