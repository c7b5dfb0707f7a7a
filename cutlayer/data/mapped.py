"""Rows of arrays that are mapped from files, which may be larger than memory."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.core.devices import onto
from cutlayer.data.batch import Batches, Digest, Order, add_some, check_finite, check_labels, few, labels
from cutlayer.data.schedule import Indices
from cutlayer.data.transform import Draw
from cutlayer.errors import ContractError, expect
from cutlayer.nn.nested import Inputs

SOME = 64  # rows that are looked at to know them again
Array = NDArray[Any]


def is_mapped(array: object) -> bool:
    """Whether an array, or what it is a view of, lies in a file."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


class Mapped:
    """Rows of arrays in files: they are converted and checked when they are taken."""

    order: Order = "any"
    batches: Batches | None = None

    def __init__(self, x: Array | dict[str, Array], y: Array, dtype: torch.dtype, name: str) -> None:
        self.x, self.y, self.dtype, self.name = x, y, dtype, name
        self.classes: int | None = None
        for part in (*self._parts(), y):
            expect(part.ndim > 0, f"{name}: shape", part.shape, "rows")
            expect(len(part) == len(y), f"{name}: lengths of x and y", (len(part), len(y)), "the same number of rows")
            self._tensor(part[:0])

    def _parts(self) -> list[Array]:
        return list(self.x.values()) if isinstance(self.x, dict) else [self.x]

    def _tensor(self, some: Array) -> Tensor:
        try:
            return torch.from_numpy(np.array(some))  # np.array: out of the file, into memory
        except TypeError as error:
            raise ContractError(f"{self.name}: x and y must be arrays of numbers: {error}") from error

    def __len__(self) -> int:
        return len(self.y)

    def expect_classes(self, classes: int) -> None:
        """From now on, refuse labels outside 0..classes-1 when they are taken."""
        self.classes = classes

    def take(self, rows: Indices, device: torch.device, draw: Draw | None = None) -> tuple[Inputs, Tensor]:
        y = labels(self._tensor(self.y[rows]), self.dtype)
        if self.classes is not None:
            check_labels(y, self.classes, self.name)
        if isinstance(self.x, dict):
            return {key: self._input(x, rows, device) for key, x in self.x.items()}, onto(device, y)
        return self._input(self.x, rows, device), onto(device, y)

    def _input(self, x: Array, rows: Indices, device: torch.device) -> Tensor:
        found = self._tensor(x[rows])
        check_finite(found, f"{self.name}, one of rows {rows[0]}..")
        return onto(device, found.to(self.dtype) if found.is_floating_point() else found)

    def add_to(self, digest: Digest) -> None:
        """Add what the arrays are, and some of their rows: to read all of them might take hours."""
        for part in (*self._parts(), self.y):
            digest.update(f"mapped {part.shape} {part.dtype}".encode())
        add_some(digest, self, few(len(self), SOME))
