"""Decoded once: a data set as memory-mapped arrays beside a record of what they were made from.

    CACHE/cifar10-3f2a.../about.json     what it was made from, and the SHA-256 of every array
    CACHE/cifar10-3f2a.../train.x.npy    and train.y, train.owners, test.x, ...

The name holds a digest of what the files hold and are called (`contents`), so data that changed are decoded anew, and
a folder that has moved is not. The record has a checksum too; what does not match is made again. A cache that cannot be
written is no error: the arrays then live in memory.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cutlayer.core.sealed import seal, unseal
from cutlayer.data import contents
from cutlayer.data.contents import CacheRebuilt
from cutlayer.data.rows import Bundle, Form, StoredRows
from cutlayer.errors import CutlayerError

__all__ = ["CacheRebuilt", "find", "folder", "held", "through"]

VARIABLE = "CUTLAYER_CACHE"
FORMAT = 2  # since the record has a checksum
SPLITS = ("train", "test")
SMALL = 2**16  # bytes: not worth a mapping, and an empty one is not possible
LONGEST = 100  # bytes of a name; file systems take 255, the digests included


def folder() -> Path:
    """Where decoded data are kept."""
    named = os.environ.get(VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(base) / "cutlayer"


def through(name: str, form: Form, where: Path, say: str = "") -> Bundle:
    """What `form` reads in `where`, from the cache if it is there and whole. `say`: further options, for the key."""
    key = _key(form, where, say)
    place = folder() / f"{os.fsencode(name)[:LONGEST].decode(errors='ignore')}-{key}"
    if os.path.exists(place / "about.json"):  # False, too, where one may not look
        try:
            return _open(place, key)
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"{place}: damaged, decoding again ({error})", CacheRebuilt, stacklevel=2)
            shutil.rmtree(place, ignore_errors=True)
    bundle = form.read(where)
    try:
        if _key(form, where, say) != key:
            raise ValueError("the data changed while they were read")
        _save(place, key, bundle)
        return _open(place, key)
    except (OSError, ValueError) as error:
        warnings.warn(f"{place}: not cached ({error})", UserWarning, stacklevel=2)
        return bundle


def _key(form: Form, where: Path, say: str) -> str:
    """A digest of what would be read, and how: another content, another digest."""
    held = contents.digest(form.files(where), where, folder())
    what = f"{FORMAT} {form.needs} {say} {held}".encode(errors="surrogatepass")
    return hashlib.blake2b(what, digest_size=12).hexdigest()


def _save(place: Path, key: str, bundle: Bundle) -> None:
    """Written aside and renamed: it is there whole, or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = place.with_name(f"{place.name}.{os.getpid()}-{secrets.token_hex(4)}")
    aside.mkdir()  # not mkdtemp: a cache may be shared, and what that makes only its owner may open
    try:
        about: dict[str, Any] = {"key": key, "class_names": list(bundle.class_names), "sha256": {}}
        for split in SPLITS:
            rows: StoredRows = getattr(bundle, split)
            about[f"{split}.owner_names"] = list(rows.owner_names)
            for part in ("x", "y", "owners"):
                array = getattr(rows, part)
                if array is not None:
                    np.save(aside / f"{split}.{part}.npy", array, allow_pickle=False)
                    about["sha256"][f"{split}.{part}"] = _digest(aside / f"{split}.{part}.npy")
        (aside / "about.json").write_text(seal(about), encoding="utf-8")
        try:
            aside.rename(place)
        except OSError:
            if not os.path.exists(place / "about.json"):  # nobody else has made it meanwhile: it is what a
                shutil.rmtree(place, ignore_errors=True)  # half-removed one left
                aside.rename(place)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _open(place: Path, key: str) -> Bundle:
    about = unseal((place / "about.json").read_bytes())
    if about["key"] != key:
        raise ValueError("it is of other data")
    arrays: dict[str, Any] = {}
    for name, sha256 in about["sha256"].items():
        path = place / f"{name}.npy"
        if _digest(path) != sha256:
            raise ValueError(f"{path.name} is not what was written")
        arrays[name] = np.load(path, mmap_mode="r" if path.stat().st_size > SMALL else None, allow_pickle=False)
    train, test = (
        StoredRows(
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


def held(forms: Sequence[Form], where: Path) -> str:
    """A digest of the files that the first form that lies in `where` would read; "" if none does."""
    listed = next((files for form in forms if (files := form.files(where))), [])
    return contents.digest(listed, where, folder()) if listed else ""


def find(name: str, forms: Sequence[Form], where: Path) -> Bundle | None:
    """The first form that lies in `where`, decoded; None if none does."""
    for form in forms:
        if form.files(where):
            try:
                return through(name, form, where)
            except CutlayerError as error:
                raise type(error)(f"task {name!r}: {error}") from error
    return None
