"""A client's samples, in whatever form they are given: tensors or arrays, datasets, iterables, loaders, frames, or rows
of a stored data set."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from cutlayer.data.batch import Batches, Digest, Order, as_tensor
from cutlayer.data.columns import Columns, Rows, unnamed
from cutlayer.data.items import Items, names_of
from cutlayer.data.loader import unwrapped
from cutlayer.data.mapped import Mapped, is_mapped
from cutlayer.data.samples import Samples
from cutlayer.data.schedule import BatchSchedule, Indices
from cutlayer.data.stream import Stream
from cutlayer.data.tensors import Tensors
from cutlayer.data.transform import Draw
from cutlayer.data.views import View
from cutlayer.errors import ContractError, expect
from cutlayer.nn.nested import Inputs, tensors

FORMS = "(x, y) tensors, a dataset with len and [index], an iterable with a length, a DataLoader, or cl.rows(...)"


class Source(Protocol):
    """Rows that can be counted and taken by index; `name` is what errors call them."""

    name: str
    order: Order
    batches: Batches | None

    def __len__(self) -> int: ...
    def take(self, rows: Indices, device: torch.device, draw: Draw | None = None) -> tuple[Inputs, Tensor]:
        """Return (x, y) of these rows, on the device; `draw`: for random changes in training."""

    def expect_classes(self, classes: int) -> None:
        """Refuse labels outside 0..classes-1, now or when they are taken."""

    def add_to(self, digest: Digest) -> None:
        """Add the rows to a digest, so that other rows can be told from these."""


def digest_of(sources: Sequence[Source]) -> str:
    """Return a digest of the rows of several sources, in order."""
    found = hashlib.blake2b(digest_size=8)
    for one in sources:
        one.add_to(found)
    return found.hexdigest()


def expect_batches(source: Source, schedule: BatchSchedule) -> None:
    """Refuse rows from a loader with other batches than those of the schedule."""
    if source.batches is not None:
        where, (size, drops) = f"{source.name}: the DataLoader's", source.batches
        expect(size == schedule.batch_size, f"{where} batch_size", size, f"{schedule.batch_size}, the run's")
        last = schedule.last_batch
        expect(drops == (last == "drop"), f"{where} drop_last", drops, f"{not drops}, as last_batch = {last!r}")


def source(given: Any, dtype: torch.dtype, name: str) -> Source:
    """Return `given` as a source of rows in the model's dtype; `name` is what errors call it."""
    said = given if isinstance(given, Rows) else Rows(given)
    data, length, collate, batches = said.data, said.length, None, None
    if isinstance(data, DataLoader):
        data, collate, batches = unwrapped(data, name)
    samples = Samples(dtype, name, said.columns, collate)
    if isinstance(data, IterableDataset) or (isinstance(data, Iterable) and not hasattr(data, "__getitem__")):
        return Stream(data, _stated(data, length, samples), samples, batches)
    found = _indexed(data, samples)
    expect(length in (None, len(found)), f"{name}: length", length, f"None or {len(found)}, the number of rows")
    if batches is not None:
        found.order, found.batches = "kept", batches
    return found


def _stated(data: Any, length: int | None, samples: Samples) -> int:
    """Return the length of an iterable."""
    name = samples.name
    if isinstance(data, Iterator):
        raise ContractError(f"{name} = {type(data).__name__}: it can be read only once; expected an iterable dataset")
    _expect_names(data, samples)
    try:
        return len(data) if length is None else length
    except TypeError as error:
        raise ContractError(f"{name}: an iterable without len(): expected cl.rows(data, length=...)") from error


def _indexed(data: Any, samples: Samples) -> Source:
    """Return rows that can be taken in any order."""
    dtype, name = samples.dtype, samples.name
    if isinstance(data, View):
        return View(data.rows, data.index, data.transform, dtype, name)
    pair = None if samples.collate is not None else _pair(data, samples.columns, name)
    if pair is not None:
        return _arrays(*pair, dtype, name)
    plain = isinstance(data, tuple | str | Mapping | Tensor | np.ndarray)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not plain:
        _expect_names(data, samples)
        return Items(data, samples)
    raise ContractError(f"{name} = {type(data).__name__}: expected {FORMS}")


def _expect_names(data: Any, samples: Samples) -> None:
    """Refuse rows by name of which nobody said what the model takes."""
    names = names_of(data)
    if names and samples.columns is None and samples.collate is None:
        raise unnamed(samples.name, names)


def _pair(data: Any, columns: Columns | None, name: str) -> tuple[Any, Any] | None:
    """Return (x, y) where all rows are there together; None: they are not."""
    frame = hasattr(data, "columns") and hasattr(data, "to_numpy")
    if frame or isinstance(data, Mapping):
        if columns is None:
            raise unnamed(name, data.columns if frame else data)
        return columns.of_frame(data, name) if frame else columns.of(data, name)
    if isinstance(data, TensorDataset):
        data = data.tensors
    if columns is None and isinstance(data, tuple | list) and len(data) == 2:
        return (data[0], data[1]) if isinstance(data[0], Tensor | np.ndarray | Mapping) else None
    return None


def _arrays(x: Any, y: Any, dtype: torch.dtype, name: str) -> Source:
    parts = list(x.values()) if isinstance(x, Mapping) else [x]
    try:
        if any(map(is_mapped, (*parts, y))):
            several = {str(key): np.asarray(x[key]) for key in x} if isinstance(x, Mapping) else np.asarray(x)
            return Mapped(several, np.asarray(y), dtype, name)
        found: Inputs = {str(k): as_tensor(x[k], str(k)) for k in x} if isinstance(x, Mapping) else as_tensor(x, "x")
        labels = as_tensor(y, "y")
    except (ValueError, TypeError, RuntimeError) as error:
        raise ContractError(f"{name}: x and y must be tensors or arrays: {error}") from error
    shapes = tuple(tuple(t.shape) for t in (*tensors(found), labels))
    expect(bool(parts) and all(shapes), f"{name}: shapes", shapes, "rows in both")
    return Tensors(found, labels, dtype, name)
