"""Rows of tensors in memory."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from cutlayer.core.devices import onto
from cutlayer.data.batch import Batches, Digest, Order, add_rows, check_finite, check_labels, labels
from cutlayer.data.schedule import Indices
from cutlayer.data.transform import Draw
from cutlayer.errors import expect
from cutlayer.nn.nested import Inputs, each, tensors


class Tensors:
    """Rows of tensors in memory."""

    order: Order = "any"
    batches: Batches | None = None

    def __init__(self, x: Inputs, y: Tensor, dtype: torch.dtype, name: str) -> None:
        for part in tensors(x):
            expect(len(part) == len(y), f"{name}: lengths of x and y", (len(part), len(y)), "the same number of rows")
            check_finite(part, name)
        self.x = each(x, lambda t: t.to(dtype) if t.is_floating_point() else t)
        self.y = labels(y, dtype)
        self.name = name

    def __len__(self) -> int:
        return len(self.y)

    def expect_classes(self, classes: int) -> None:
        """Refuse labels outside 0..classes-1."""
        check_labels(self.y, classes, self.name)

    def take(self, rows: Indices, device: torch.device, draw: Draw | None = None) -> tuple[Inputs, Tensor]:
        index = torch.from_numpy(rows)
        return each(self.x, lambda t: _picked(t, index, device)), _picked(self.y, index, device)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (*tensors(self.x), self.y))

    def to(self, device: torch.device) -> Tensors:
        """Return the same rows on a device."""
        other = copy.copy(self)
        other.x, other.y = each(self.x, lambda t: t.to(device)), self.y.to(device)
        return other

    def add_to(self, digest: Digest) -> None:
        for part in (*tensors(self.x), self.y):
            add_rows(digest, part)


def _picked(tensor: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """Some rows of a tensor, which may be on a GPU, on a device."""
    return onto(device, tensor[onto(tensor.device, rows)])
