"""What the readers share: rows before names are numbered, training and test side of a data set, listings of folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutlayer.core.files import reached
from cutlayer.data.rows import Bundle, Labels, Owners, StoredRows, none_of, numbered
from cutlayer.errors import ContractError, expect, is_whole

CLASSES = "classes, as whole numbers or names; numbers to predict can be trained from Python, not from the command line"


@dataclass(frozen=True)
class Raw:
    """Rows as they were read: labels as numbers or class names, owners by name. `where`: what errors call them."""

    where: object
    x: NDArray[Any]
    y: Labels | Sequence[str]
    owners: Sequence[str] | None = None


def bundle(sides: Sequence[Raw], class_names: Sequence[str] = ()) -> Bundle:
    """Bundle training rows and, if there are any, test rows, with one numbering of owners and of training classes."""
    expect(len(sides[0].y) > 0, f"{sides[0].where}: training rows", 0, "at least one")
    sides = alike([side for side in sides if len(side.y)])
    labels, class_names = _classes(sides, class_names)
    owners, names = _owners(sides)
    rows = [StoredRows(side.x, y, owned, names) for side, y, owned in zip(sides, labels, owners, strict=True)]
    return Bundle(rows[0], none_of(rows[0]) if len(rows) == 1 else rows[1], tuple(class_names))


def alike(parts: Sequence[Raw]) -> Sequence[Raw]:
    """Return the parts, with codes in one dtype; refuse parts whose rows are of different kinds."""
    if len({part.x.dtype for part in parts}) > 1 and all(_codes(part) for part in parts):
        parts = [replace(part, x=part.x.astype(np.int32)) for part in parts]
    kinds = [f"{part.x.dtype} {part.x.shape[1:]}, {_labels(part)}" for part in parts]
    for part, kind in zip(parts, kinds, strict=True):
        if kind != kinds[0]:
            raise ContractError(f"{part.where}: rows of {kind}, expected {kinds[0]} as in {parts[0].where}")
    return parts


def _codes(part: Raw) -> bool:
    return part.x.ndim == 2 and part.x.dtype.kind in "iu"


def _labels(part: Raw) -> str:
    return "labels as numbers" if isinstance(part.y, np.ndarray) else "labels as names"


def _classes(sides: Sequence[Raw], names: Sequence[str]) -> tuple[list[Labels], Sequence[str]]:
    if isinstance(sides[0].y, np.ndarray):
        return [np.asarray(side.y) for side in sides], names
    names = numbered(str(name) for name in sides[0].y)[1]
    number = {name: k for k, name in enumerate(names)}
    for side in sides[1:]:
        if missing := sorted(set(side.y) - set(names)):
            raise ContractError(f"{side.where}: class {missing[0]!r} has no training rows in {sides[0].where}")
    return [np.array([number[str(name)] for name in side.y], dtype=np.int64) for side in sides], names


def _owners(sides: Sequence[Raw]) -> tuple[list[Owners | None], tuple[str, ...]]:
    """Number the owners; the same name gets the same number on both sides."""
    if sides[0].owners is None:
        return [None] * len(sides), ()
    codes, names = numbered(chain.from_iterable(side.owners or () for side in sides))
    ends = np.cumsum([len(side.owners or ()) for side in sides])[:-1]
    split = np.split(codes, ends)
    return [None if side.owners is None else part for side, part in zip(sides, split, strict=True)], names


def checked(where: object, y: Labels, classes: int | None = None) -> Labels:
    """Return the labels; refuse any below 0 or, if `classes` is known, from `classes` on, and name its row."""
    wrong = np.flatnonzero((y < 0) | (y >= classes) if classes is not None else y < 0)
    if len(wrong):
        below = f"0..{classes - 1}" if classes is not None else "labels from 0"
        raise ContractError(f"{where}, row {wrong[0]}: label {y[wrong[0]]}, expected {below}")
    return y


def listed(where: object, labels: Sequence[Any], classes: int) -> Labels:
    """Return a list of labels as an array; refuse any that is not a whole number from 0 to `classes` - 1."""
    for row, label in enumerate(labels):
        if not is_whole(label) or not 0 <= label < classes:
            raise ContractError(f"{where}, row {row}: label {label!r}, expected 0..{classes - 1}")
    return np.array(labels, dtype=np.int64)


def content(path: Path) -> bytes:
    """Read a file's bytes."""
    with reached(f"{path}: cannot be read"):
        return path.read_bytes()


def lines(path: Path) -> list[str]:
    """Read the lines of a text file that are not empty."""
    try:
        return [line for line in content(path).decode().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ContractError(f"{path}: not text: {error}") from error


def visible(folder: Path) -> list[Path]:
    """The entries of a folder in sorted order, without hidden ones; none if there is no such folder."""
    return sorted(entry for entry in folder.iterdir() if entry.name[0] != ".") if folder.is_dir() else []


def files(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    """The files in a folder with one of these suffixes, given in lower case."""
    kinds = tuple(suffixes)
    return [entry for entry in visible(folder) if entry.suffix.lower() in kinds and entry.is_file()]


def place(folder: Path, inside: Iterable[str], marks: Iterable[str]) -> Path:
    """Return the first of `folder` and the folders `inside` it that has a file named in `marks`; else `folder`."""
    names = tuple(marks)
    places = (folder, *(folder / name for name in inside))
    return next((spot for spot in places if any((spot / name).is_file() for name in names)), folder)


def there(paths: Iterable[Path]) -> list[Path]:
    """The paths that are existing files."""
    return [path for path in paths if path.is_file()]
