"""Rows of a stored data set: those of one client, or those of each of many."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cutlayer.core.devices import onto
from cutlayer.core.lazy import Lazy
from cutlayer.data.batch import CHUNK, Batches, Digest, Order, check_labels
from cutlayer.data.parts import Parts, Side
from cutlayer.data.rows import StoredRows
from cutlayer.data.schedule import Indices
from cutlayer.data.transform import Draw, Transform

Near = tuple[Tensor, Tensor]  # all inputs and labels of a data set, on a GPU


class View:
    """Some rows of a stored data set; `transform` turns them into inputs, and may change them at random in training.
    `near`: a copy of the data set where it is computed with."""

    order: Order = "any"
    batches: Batches | None = None

    def __init__(
        self,
        rows: StoredRows,
        index: Indices,
        transform: Transform,
        dtype: torch.dtype = torch.float32,
        name: str = "rows",
        near: Near | None = None,
    ) -> None:
        self.rows, self.index, self.transform, self.dtype, self.name = rows, index, transform, dtype, name
        self.near = near

    def __len__(self) -> int:
        return len(self.index)

    def expect_classes(self, classes: int) -> None:
        check_labels(torch.from_numpy(self.rows.y[self.index]), classes, self.name)

    def take(self, rows: Indices, device: torch.device, draw: Draw | None = None) -> tuple[Tensor, Tensor]:
        where = self.index[rows]
        if self.near is not None and self.near[0].device.type == device.type:
            at = onto(device, torch.from_numpy(where))
            x, y = (torch.index_select(column, 0, at) for column in self.near)
        else:
            x, y = (onto(device, torch.from_numpy(np.asarray(column[where]))) for column in (self.rows.x, self.rows.y))
        return self.transform(x, self.dtype, draw), y

    def moved(self, near: Near) -> View:
        """Return the view with a copy of its data set on a device."""
        return View(self.rows, self.index, self.transform, self.dtype, self.name, near)

    def add_to(self, digest: Digest) -> None:
        for array in (self.rows.x, self.rows.y):
            for start in range(0, len(self.index), CHUNK):
                digest.update(np.ascontiguousarray(array[self.index[start : start + CHUNK]]).data)


class Population(Lazy[View]):
    """What each of many clients holds of one stored data set; a client's view is made when it is asked for."""

    def __init__(
        self,
        rows: StoredRows,
        parts: Parts | Side,
        transform: Transform,
        dtype: torch.dtype = torch.float32,
        name: str = "clients",
        near: Near | None = None,
    ) -> None:
        self.rows, self.parts, self.transform, self.dtype, self.name = rows, parts, transform, dtype, name
        self.near = near

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def sizes(self) -> Indices:
        return self.parts.sizes

    def digest(self) -> str:
        """A digest of all rows and labels, and of which client holds which."""
        parts = self.parts
        while isinstance(parts, Side):
            parts = parts.parts
        found = hashlib.blake2b(
            f"{self.rows.x.shape} {self.rows.x.dtype} {self.parts.sizes.sum()}".encode(), digest_size=8
        )
        for array in (self.rows.x, self.rows.y, parts.order, parts.ends):
            for start in range(0, len(array), CHUNK):  # so that a memory-mapped array is read piece by piece
                found.update(np.ascontiguousarray(array[start : start + CHUNK]).data)
        return found.hexdigest()

    def everybody(self) -> View:
        """All rows of the data set."""
        return View(self.rows, np.arange(len(self.rows)), self.transform, self.dtype, self.name, self.near)

    def at(self, j: int) -> View:
        return View(self.rows, self.parts[j], self.transform, self.dtype, f"{self.name}[{j}]", self.near)

    def moved(self, near: Near) -> Population:
        """Return the population with a copy of its data set on a device."""
        return Population(self.rows, self.parts, self.transform, self.dtype, self.name, near)


def take_together(
    sources: Sequence[object], rows: Sequence[Indices], device: torch.device
) -> tuple[Tensor, Tensor] | None:
    """Return (x, y) of equally many rows of each source, [n, rows, ...], in one read; None unless the sources are views
    of the same rows without random changes."""
    first = sources[0]
    if not isinstance(first, View) or first.transform.random:
        return None
    where = []
    for one, some in zip(sources, rows, strict=True):
        if not isinstance(one, View) or one.rows is not first.rows or one.transform is not first.transform:
            return None
        where.append(one.index[some])
    everything = View(first.rows, np.concatenate(where), first.transform, first.dtype, near=first.near)
    x, y = everything.take(np.arange(len(everything)), device)
    shape = len(sources), len(rows[0])
    return x.view(*shape, *x.shape[1:]), y.view(shape)
