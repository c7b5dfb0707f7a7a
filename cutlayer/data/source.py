"""A client's samples, whatever they came in: a pair of tensors, or any map-style dataset of (x, y)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cutlayer.errors import ContractError, expect
from cutlayer.feed import Indices


class Source(Protocol):
    """Rows that can be counted and taken by index; `name` stands for them in errors."""

    name: str

    def __len__(self) -> int: ...
    def take(self, rows: Indices, device: torch.device) -> tuple[Tensor, Tensor]:
        """(x, y) of these rows, on the device."""

    def expect_classes(self, classes: int) -> None:
        """Refuse labels outside 0..classes-1, now or where they turn up."""


class Tensors:
    """Rows of two tensors in memory."""

    def __init__(self, x: Tensor, y: Tensor, dtype: torch.dtype, name: str) -> None:
        expect(len(x) == len(y), f"{name}: lengths of x and y", (len(x), len(y)), "the same number of rows")
        check_finite(x, name)
        self.x = x.to(dtype) if x.is_floating_point() else x
        self.y = _labels(y, dtype)
        self.name = name

    def __len__(self) -> int:
        return len(self.x)

    def expect_classes(self, classes: int) -> None:
        """Refuse labels outside 0..classes-1."""
        check_labels(self.y, classes, self.name)

    def take(self, rows: Indices, device: torch.device) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(rows)
        return self.x[index].to(device), self.y[index].to(device)


class Items:
    """Rows of a map-style dataset, fetched one by one."""

    def __init__(self, dataset: Any, dtype: torch.dtype, name: str) -> None:
        self.dataset, self.dtype, self.name = dataset, dtype, name
        self.classes: int | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def expect_classes(self, classes: int) -> None:
        """From now on, refuse labels outside 0..classes-1 where they turn up."""
        self.classes = classes

    def take(self, rows: Indices, device: torch.device) -> tuple[Tensor, Tensor]:
        try:
            pairs = [self.dataset[int(row)] for row in rows]
            x = torch.stack([torch.as_tensor(pair[0]) for pair in pairs])
            labels = torch.stack([torch.as_tensor(pair[1]) for pair in pairs])
        except Exception as error:  # whatever a dataset of the user's may raise
            words = f"expected (x, y) of tensors or numbers, got {type(error).__name__}: {error}"
            raise ContractError(f"{self.name}, one of rows {rows[:4].tolist()}..: {words}") from error
        check_finite(x, f"{self.name}, one of rows {rows[0]}..")
        x = x.to(self.dtype) if x.is_floating_point() else x
        y = _labels(labels, self.dtype)
        if self.classes is not None:
            check_labels(y, self.classes, self.name)
        return x.to(device), y.to(device)


def source(given: Any, dtype: torch.dtype, name: str) -> Source:
    """`given` as a source of rows in the model's dtype; `name` stands for it in errors."""
    if isinstance(given, torch.utils.data.TensorDataset):
        given = given.tensors
    if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], Tensor | np.ndarray):
        try:
            x, y = (torch.as_tensor(part) for part in given)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ContractError(f"{name}: x and y must be tensors or arrays: {error}") from error
        expect(x.ndim > 0 and y.ndim > 0, f"{name}: shapes", (tuple(x.shape), tuple(y.shape)), "rows in both")
        return Tensors(x, y, dtype, name)
    plain = isinstance(given, tuple | str | Mapping | Tensor | np.ndarray)
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and not plain:
        return Items(given, dtype, name)
    raise ContractError(f"{name} = {type(given).__name__}: expected (x, y) tensors, or a dataset with len and [index]")


def check_finite(x: Tensor, name: str) -> None:
    """Refuse inputs with NaN or infinity."""
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x)).reshape(len(x), -1).any(dim=1).nonzero()[0])
        raise ContractError(f"{name}: row {row} holds NaN or infinity, expected finite inputs")


def check_labels(y: Tensor, classes: int, name: str) -> None:
    """Refuse class labels the model has no output for."""
    if not y.is_floating_point() and len(y):
        lo, hi = int(y.min()), int(y.max())
        expect(
            lo >= 0 and hi < classes,
            f"{name}: labels",
            f"{lo}..{hi}",
            f"0..{classes - 1}, the model's {classes} outputs",
        )


def _labels(y: Tensor, dtype: torch.dtype) -> Tensor:
    if y.is_floating_point():
        return y.to(dtype)
    return y.to(torch.int64)
