"""A partition and the data it divides: what each client holds, without copying a row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset as MapStyle
from torch.utils.data import Subset

from cutlayer.core.files import as_path, reached
from cutlayer.data import partition_file
from cutlayer.data.dataset import Dataset
from cutlayer.data.parts import Parts
from cutlayer.data.rows import StoredRows
from cutlayer.data.transform import Draw
from cutlayer.data.views import Population
from cutlayer.errors import ContractError, expect


class Partition(Parts):
    """Who holds which rows: `partition[j]` are the rows of client j, in ascending order.

    sizes     how many rows each client holds
    tests     each client's test rows, as another partition, if the file named them
    rows      how many rows were divided, if known
    origin    if it was loaded: the form of the file, by the name of a tool that writes it
    """

    tests: Partition | None

    def __init__(self, parts: Parts, rows: int | None = None) -> None:
        known = parts.rows if rows is None else rows
        tests = None if parts.tests is None else Partition(parts.tests, known)
        super().__init__(parts.order, parts.ends, tests, known, parts.origin)

    def __repr__(self) -> str:
        told = f", form: {self.origin}" if self.origin else ""
        return f"<Partition: {len(self)} clients, {len(self.order)} rows{told}>"

    def save(self, path: str | Path) -> None:
        """Write a .json or .npz file, as `cutlayer partition --parts` does."""
        path = as_path("path", path)
        with reached(f"partition file {path}: cannot be written"):
            partition_file.write(path, self, self.rows)

    def clients(self, x: Any, y: Any = None) -> Population | list[Subset[Any]]:
        """Return what each client holds of the rows, for `cl.train`; they are read when they are needed.

        x, y    arrays or tensors with as many rows, which may be memory-mapped; x may be a dictionary of them
        x       or a map-style dataset of (x, y), or what `cl.dataset` returned, of which the training rows
        """
        if y is None:
            return self._of(x)
        labels = y if isinstance(y, Tensor) else np.asarray(y)
        for column in _columns(x):
            lengths = len(column), len(labels) if labels.ndim else None
            expect(lengths[0] == lengths[1], "lengths of x and y", lengths, "the same number of rows")
        self._fit(len(labels))
        inputs, classes = _array(x), _array(labels)
        if inputs is None or classes is None or classes.ndim != 1 or classes.dtype.kind not in "iub":
            return self._subsets(_Pairs(x, labels))
        return Population(StoredRows(inputs, classes.astype(np.int64, copy=False)), self, AsGiven())

    def _of(self, data: Any) -> Population | list[Subset[Any]]:
        if isinstance(data, Dataset):
            self._fit(len(data.train))
            return Population(data.train, self, data.plain)
        plain = isinstance(data, tuple | str | Mapping | Tensor | np.ndarray)
        good = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not plain
        expect(good, "data", type(data).__name__, "x and y, or a dataset with len and [index]")
        self._fit(len(data))
        return self._subsets(data)

    def _subsets(self, dataset: Any) -> list[Subset[Any]]:
        return [Subset(dataset, rows.tolist()) for rows in self]

    def _fit(self, rows: int) -> None:
        """Refuse data of other rows than those that were divided."""
        if self.rows is not None:
            expect(rows == self.rows, "rows of the data", rows, f"{self.rows}, as many as were divided")
        most = int(self.order.max(initial=-1))
        expect(most < rows, "rows of the data", rows, f"more than {most}, the last row that a client holds")


class AsGiven:
    """Inputs as they are, floats in the model's dtype."""

    random: ClassVar[bool] = False

    def __call__(self, x: Tensor, dtype: torch.dtype, draw: Draw | None) -> Tensor:
        if not x.is_floating_point():
            return x
        if not bool(torch.isfinite(x).all()):
            raise ContractError("x: a row of this batch holds NaN or infinity, expected finite inputs")
        return x.to(dtype)


class _Pairs(MapStyle[Any]):
    """Rows of x and y as a map-style dataset: for several inputs, and for labels that are not classes."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        x = {key: _row(self.x[key], row) for key in self.x} if isinstance(self.x, Mapping) else _row(self.x, row)
        return x, _row(self.y, row)


def _row(column: Any, row: int) -> Any:
    return column[row] if isinstance(column, Tensor) else np.array(column[row])


def _columns(x: Any) -> list[Any]:
    """Return the inputs that x consists of."""
    found = list(x.values()) if isinstance(x, Mapping) else [x]
    good = bool(found) and all(isinstance(one, Tensor | np.ndarray) and one.ndim for one in found)
    expect(good, "x", type(x).__name__, "an array or a tensor, or a dictionary of them, with one row for each sample")
    return found


def _array(given: Any) -> NDArray[Any] | None:
    """Return an array or a tensor as an array over the same memory; None: it cannot be one."""
    if not isinstance(given, Tensor):
        return given if isinstance(given, np.ndarray) else None
    try:
        return given.detach().numpy()
    except (TypeError, RuntimeError):  # on a GPU, or of a dtype that NumPy lacks
        return None
