"""Decoded once: a data set as memory-mapped arrays beside a record of what they were made from.

    CACHE/cifar10-3f2a.../about.json     what it was made from, and the SHA-256 of every array
    CACHE/cifar10-3f2a.../train.x.npy    and train.y, train.owners, test.x, ...

The name holds a digest of the files' names, sizes and times, so data that changed are decoded anew. What does not
match its record is made again. A cache that cannot be written is no error: the arrays then live in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cutlayer.data.rows import Bundle, Form, Rows
from cutlayer.errors import CutlayerError

VARIABLE = "CUTLAYER_CACHE"
FORMAT = 1
SPLITS = ("train", "test")
SMALL = 2**16  # bytes: not worth a mapping, and an empty one is not possible
LONGEST = 100  # letters of a name; file systems take 255, the digests included


class CacheRebuilt(UserWarning):
    """A cached data set did not match its record and was decoded again."""


def folder() -> Path:
    """Where decoded data are kept."""
    named = os.environ.get(VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(base) / "cutlayer"


def through(name: str, form: Form, where: Path, say: str = "") -> Bundle:
    """What `form` reads in `where`, from the cache if it is there and whole. `say`: further options, for the key."""
    place = folder() / f"{name[:LONGEST]}-{_key(form, where, say)}"
    if os.path.exists(place / "about.json"):  # False, too, where one may not look
        try:
            return _open(place)
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"{place}: damaged, decoding again ({error})", CacheRebuilt, stacklevel=2)
            shutil.rmtree(place, ignore_errors=True)
    bundle = form.read(where)
    try:
        _save(place, bundle)
        return _open(place)
    except (OSError, ValueError) as error:
        warnings.warn(f"{place}: not cached ({error})", UserWarning, stacklevel=2)
        return bundle


def _key(form: Form, where: Path, say: str) -> str:
    """A digest of what would be read: another file, another digest."""
    digest = hashlib.blake2b(f"{FORMAT} {form.needs} {say} {where.resolve()}".encode(), digest_size=8)
    for path in form.files(where):
        about = path.stat()
        digest.update(f"{path} {about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()


def _save(place: Path, bundle: Bundle) -> None:
    """Written aside and renamed: it is there whole, or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = place.with_name(f"{place.name}.{os.getpid()}-{secrets.token_hex(4)}")
    aside.mkdir()  # not mkdtemp: a cache may be shared, and what that makes only its owner may open
    try:
        about: dict[str, Any] = {"format": FORMAT, "class_names": list(bundle.class_names), "sha256": {}}
        for split in SPLITS:
            rows: Rows = getattr(bundle, split)
            about[f"{split}.owner_names"] = list(rows.owner_names)
            for part in ("x", "y", "owners"):
                array = getattr(rows, part)
                if array is not None:
                    np.save(aside / f"{split}.{part}.npy", array, allow_pickle=False)
                    about["sha256"][f"{split}.{part}"] = _digest(aside / f"{split}.{part}.npy")
        (aside / "about.json").write_text(json.dumps(about), encoding="utf-8")
        try:
            aside.rename(place)
        except OSError:
            if not os.path.exists(place / "about.json"):  # nobody else has made it meanwhile: it is what a
                shutil.rmtree(place, ignore_errors=True)  # half-removed one left
                aside.rename(place)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _open(place: Path) -> Bundle:
    about = json.loads((place / "about.json").read_text(encoding="utf-8"))
    arrays: dict[str, Any] = {}
    for name, sha256 in about["sha256"].items():
        path = place / f"{name}.npy"
        if _digest(path) != sha256:
            raise ValueError(f"{path.name} is not what was written")
        arrays[name] = np.load(path, mmap_mode="r" if path.stat().st_size > SMALL else None, allow_pickle=False)
    train, test = (
        Rows(
            arrays[f"{split}.x"],
            np.array(arrays[f"{split}.y"]),
            np.array(arrays[f"{split}.owners"]) if f"{split}.owners" in arrays else None,
            tuple(about[f"{split}.owner_names"]),
        )
        for split in SPLITS
    )
    return Bundle(train, test, tuple(about["class_names"]))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find(name: str, forms: Sequence[Form], where: Path) -> Bundle | None:
    """The first form that lies in `where`, decoded; None if none does."""
    for form in forms:
        if form.files(where):
            try:
                return through(name, form, where)
            except CutlayerError as error:
                raise type(error)(f"task {name!r}: {error}") from error
    return None
