"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import time
from pathlib import Path

BUSY = os.name == "nt"  # Windows: what somebody has open, if only to read it, cannot be replaced
PATIENCE, NAP = 2.0, 0.01  # seconds until that is an error, and between two attempts


def write_aside(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    aside = path.with_name(f".{path.name}.tmp")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    move(aside, path)
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
