"""A user's own arrays: an NPZ or Parquet file whose columns are named, or a folder with train and test files.

x in an NPZ file: see `columns.inputs`. In a Parquet file: encoded images; equally long lists of numbers; or columns of
numbers, "age,weight". y: classes as whole numbers from 0, or by name. owner: names or whole numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutlayer.data.read import columns, image, tables
from cutlayer.data.read.common import Raw, bundle, checked, there
from cutlayer.data.read.npz import load
from cutlayer.data.read.parquet import texts, values
from cutlayer.data.rows import Bundle, Form
from cutlayer.errors import ContractError, expect

SUFFIXES = (".npz", ".parquet")


def form(x: str = "x", y: str = "y", owner: str | None = None, size: int | None = None) -> Form:
    """The form of one file, or of a folder with train.npz and, if there are test rows, test.npz (or both .parquet)."""

    def files(where: Path) -> list[Path]:
        if where.is_file():
            return [where] if where.suffix in SUFFIXES else []
        pairs = ([where / f"{side}{suffix}" for side in ("train", "test")] for suffix in SUFFIXES)
        return next((there(pair) for pair in pairs if pair[0].is_file()), [])

    def read(where: Path) -> Bundle:
        return bundle([raw(path, x, y, owner, size) for path in files(where)])

    return Form(f"an .npz or .parquet file with {x} and {y}, or train and test files of that kind", files, read)


def raw(path: Path, x: str, y: str, owner: str | None = None, size: int | None = None) -> Raw:
    """Read the rows of one NPZ or Parquet file."""
    expect(path.suffix in SUFFIXES, "file", str(path), "a name that ends with .npz or .parquet")
    return npz(path, x, y, owner) if path.suffix == ".npz" else parquet(path, x, y, owner, size)


def npz(path: Path, x: str = "x", y: str = "y", owner: str | None = None) -> Raw:
    """Read the arrays with these names from an NPZ file."""
    found = _arrays(path, [name for name in (x, y, owner) if name is not None])
    labels = columns.labels(found[y], f"{path}: {y}")
    owners = None if owner is None else columns.names(found[owner], f"{path}: {owner}")
    for name, rows in ((y, labels), (owner, owners)):
        if rows is not None:
            expect(len(rows) == len(found[x]), f"{path}: rows of {name}", len(rows), f"{len(found[x])} as of {x}")
    return Raw(path, columns.inputs(found[x], f"{path}: {x}"), labels, owners)


def _arrays(path: Path, names: list[str]) -> dict[str, NDArray[Any]]:
    there, found = load(path, names)
    if missing := [name for name in names if name not in found]:
        raise ContractError(f"{path}: arrays {there}, expected {missing[0]!r} among them")
    return found


def parquet(path: Path, x: str, y: str, owner: str | None = None, size: int | None = None) -> Raw:
    """Read the columns with these names from a Parquet file."""
    labels = values(path, y)
    if isinstance(labels, np.ndarray):
        checked(path, labels)
    return Raw(path, _inputs(path, x, len(labels), size), labels, texts(path, owner) if owner else None)


def _inputs(path: Path, x: str, rows: int, size: int | None) -> NDArray[Any]:
    there = tables.schema(path)
    parts = [x] if x in there.names else [name.strip() for name in x.split(",")]
    tables.schema(path, *parts)
    kind = str(there.field(parts[0]).type)
    if len(parts) == 1 and kind.startswith(("struct", "binary", "large_binary")):
        return image.stack(tables.encoded(path, parts[0], "image"), rows, size)
    found = [tables.numbers(path, name) for name in parts]
    if found[0].ndim == 2 and len(found) == 1:
        return columns.inputs(found[0], f"{path}: {x}")
    for name, part in zip(parts, found, strict=True):
        expect(part.ndim == 1, f"{path}: column {name}", "lists", "a number in every row")
    return columns.inputs(np.stack(found, axis=1).astype(np.float64), f"{path}: {x}")
