"""One digest of the contents of several files. Files that have not changed since the last time are not read again.

    CACHE/seen/5d0c....json     the files' metadata (size, times of change, inode), and the digest of their contents

A tool can set a file's time of modification, but not the time of its last change, which the system keeps. A file that
changed a moment ago could change again within one tick of that clock, so its digest is not stored yet.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from cutlayer.core.files import reached
from cutlayer.core.sealed import seal, unseal

SEEN = "seen"
SETTLED = 2.0  # seconds since the last change; the longest tick of a file system's clock (FAT)
TELLS = os.name != "nt"  # Windows keeps no time of the last change, so files are read each time


class CacheRebuilt(UserWarning):
    """Something in the cache did not match its record and was made again."""


def digest(files: Sequence[Path], where: Path, cache: Path) -> str:
    """Return a digest of the files' names within `where` and of their contents."""
    named = sorted((path.relative_to(where).as_posix(), path) for path in files)
    memory = cache / SEEN / f"{_short(os.fspath(where.absolute()))}.json"
    before, last = _looks(named)
    if TELLS and (known := _recall(memory, before)) is not None:
        return known
    began = time.time()
    found = hashlib.blake2b(digest_size=16)
    for name, path in named:
        with reached(f"{path}: cannot be read"), path.open("rb") as file:
            content = hashlib.file_digest(file, "blake2b").digest()
        found.update(name.encode(errors="surrogateescape") + b"\0" + content)
    if TELLS and last < began - SETTLED and _looks(named)[0] == before:
        _remember(memory, before, found.hexdigest())
    return found.hexdigest()


def _looks(named: Sequence[tuple[str, Path]]) -> tuple[str, float]:
    """Return a digest of the files' metadata, and the time of the latest change."""
    seen, last = hashlib.blake2b(digest_size=16), 0.0
    for name, path in named:
        with reached(f"{path}: cannot be read"):
            about = path.stat()
        words = f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {about.st_ino}"
        seen.update(name.encode(errors="surrogateescape") + f"\0{words}\0".encode())
        last = max(last, about.st_ctime, about.st_mtime)
    return seen.hexdigest(), last


def _recall(memory: Path, looks: str) -> str | None:
    """Return the stored digest of files with this metadata; None if there is none."""
    try:
        known = unseal(memory.read_bytes())
        return str(known["digest"]) if known["looks"] == looks else None
    except OSError:
        return None
    except (ValueError, KeyError) as error:
        warnings.warn(f"{memory}: damaged, reading the data again ({error})", CacheRebuilt, stacklevel=4)
        return None


def _remember(memory: Path, looks: str, found: str) -> None:
    """Store a digest, without an error if that fails. Several processes may do so at once, so each writes a temporary
    file with its own name and renames it."""
    aside = memory.with_name(f".{memory.name}.{os.getpid()}-{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        try:
            aside.write_text(seal({"looks": looks, "digest": found}), encoding="utf-8")
            aside.replace(memory)
        finally:
            aside.unlink(missing_ok=True)


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=12).hexdigest()
