"""A cache of decoded data sets: memory-mapped arrays, and a record of what they were made from.

    CACHE/cifar10-3f2a.../about.json     what it was made from, and the SHA-256 of every array
    CACHE/cifar10-3f2a.../train.x.npy    and train.y, train.owners, test.x, ...

The folder's name contains a digest of the files' names and contents (see `contents`): data that have changed are
decoded again, and data that have only moved are not. The record has a checksum too; what does not match is decoded
again. If the cache cannot be written, the arrays stay in memory, with a warning.
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
FORMAT = 2  # 2: the record has a checksum
SPLITS = ("train", "test")
SMALL = 2**16  # bytes: smaller files are not worth a mapping, and an empty file cannot be mapped
LONGEST = 100  # bytes of a name; file systems allow 255, including the digests


def folder() -> Path:
    """The folder of decoded data."""
    named = os.environ.get(VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(base) / "cutlayer"


def through(name: str, form: Form, where: Path, say: str = "") -> Bundle:
    """Return what `form` reads in `where`, from the cache if it is there intact. `say`: more options for the key."""
    key = _key(form, where, say)
    place = folder() / f"{os.fsencode(name)[:LONGEST].decode(errors='ignore')}-{key}"
    if os.path.exists(place / "about.json"):  # os.path: False without permission, too
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
    """A digest of the files' contents and of how they are read."""
    held = contents.digest(form.files(where), where, folder())
    what = f"{FORMAT} {form.needs} {say} {held}".encode(errors="surrogatepass")
    return hashlib.blake2b(what, digest_size=12).hexdigest()


def _save(place: Path, key: str, bundle: Bundle) -> None:
    """Write to a temporary folder and rename it, so that the cache has all of it or nothing."""
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = place.with_name(f"{place.name}.{os.getpid()}-{secrets.token_hex(4)}")
    aside.mkdir()  # not mkdtemp: only its owner could open that, and a cache may be shared
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
            if not os.path.exists(place / "about.json"):  # not made by another process meanwhile:
                shutil.rmtree(place, ignore_errors=True)  # left over from a broken removal
                aside.rename(place)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _open(place: Path, key: str) -> Bundle:
    about = unseal((place / "about.json").read_bytes())
    if about["key"] != key:
        raise ValueError("it belongs to other data")
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
    """A digest of the files in `where` that the first form with any files there would read; "" if there is none."""
    listed = next((files for form in forms if (files := form.files(where))), [])
    return contents.digest(listed, where, folder()) if listed else ""


def find(name: str, forms: Sequence[Form], where: Path) -> Bundle | None:
    """Return what the first form with files in `where` reads there; None if there is none."""
    for form in forms:
        if form.files(where):
            try:
                return through(name, form, where)
            except CutlayerError as error:
                raise type(error)(f"task {name!r}: {error}") from error
    return None
