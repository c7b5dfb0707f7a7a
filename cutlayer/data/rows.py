"""Labelled rows in memory or in a memory-mapped file, in their compact original types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutlayer.errors import expect

Labels = NDArray[np.int64]
Owners = NDArray[np.int64]


@dataclass(frozen=True)
class StoredRows:
    """Inputs, labels from 0, and the owners of the rows if the data name them.

    x   uint8 pixels [n, channels, height, width]; uint8 or int32 codes [n, length]; or float32 features [n, ...]
    """

    x: NDArray[Any]
    y: Labels
    owners: Owners | None = None  # for every row, an index into owner_names
    owner_names: Sequence[str] = ()

    def __post_init__(self) -> None:
        expect(len(self.x) == len(self.y), "lengths of x and y", (len(self.x), len(self.y)), "the same number of rows")
        if self.owners is not None:
            expect(len(self.owners) == len(self.y), "owners", len(self.owners), f"one for each of {len(self.y)} rows")

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Bundle:
    """The training rows and the test rows (there may be none) of a data set, and the names of its classes if known."""

    train: StoredRows
    test: StoredRows
    class_names: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True)
class Form:
    """One form in which a data set can be stored on disk.

    `files(folder)`: the files to read there; none: the folder does not hold the data set in this form.
    `needs`: a description of these files, for error messages.
    """

    needs: str
    files: Callable[[Path], list[Path]]
    read: Callable[[Path], Bundle]


def numbered(names: Iterable[str]) -> tuple[Owners, tuple[str, ...]]:
    """Number names in sorted order; return the number of every row, and the names."""
    unique, codes = np.unique(np.asarray(list(names), dtype=np.str_), return_inverse=True)
    return codes.astype(np.int64), tuple(str(name) for name in unique)


def none_of(rows: StoredRows) -> StoredRows:
    """Return zero rows of the same kind, for a data set without test rows."""
    owners = None if rows.owners is None else rows.owners[:0]
    return StoredRows(rows.x[:0], rows.y[:0], owners, rows.owner_names)


def together(one: StoredRows, other: StoredRows) -> StoredRows:
    """Return the rows of `one`, followed by those of `other`."""
    if not len(other):
        return one
    owners, names = None, one.owner_names
    if one.owners is not None and other.owners is not None:
        whose = [*(one.owner_names[i] for i in one.owners), *(other.owner_names[i] for i in other.owners)]
        owners, names = numbered(whose)
    return StoredRows(np.concatenate([one.x, other.x]), np.concatenate([one.y, other.y]), owners, names)
