"""A client's samples, in one of three forms: tensors, a map-style dataset of (x, y), or rows of a stored data set."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cutlayer.core.lazy import Lazy
from cutlayer.core.randomness import OwnRandomness
from cutlayer.data.parts import Parts, Side
from cutlayer.data.rows import StoredRows
from cutlayer.data.schedule import Indices
from cutlayer.data.transform import Draw, Transform
from cutlayer.errors import ContractError, expect
from cutlayer.nn.nested import Inputs, each, tensors

CHUNK = 4096  # rows hashed at a time
SOME = 8  # rows of a dataset that are looked at to know it again


class Digest(Protocol):
    """A hash under way."""

    def update(self, data: Any, /) -> None: ...


def digest_of(sources: Sequence[Source]) -> str:
    """Return a digest of the rows of several sources, in order."""
    found = hashlib.blake2b(digest_size=8)
    for one in sources:
        one.add_to(found)
    return found.hexdigest()


def _add(digest: Digest, tensor: Tensor) -> None:
    digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    for start in range(0, len(tensor), CHUNK):
        digest.update(tensor[start : start + CHUNK].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


class Source(Protocol):
    """Rows that can be counted and taken by index; `name` is what errors call them."""

    name: str

    def __len__(self) -> int: ...
    def take(self, rows: Indices, device: torch.device, draw: Draw | None = None) -> tuple[Inputs, Tensor]:
        """Return (x, y) of these rows, on the device; `draw`: for random changes in training."""

    def expect_classes(self, classes: int) -> None:
        """Refuse labels outside 0..classes-1, now or when they are taken."""

    def add_to(self, digest: Digest) -> None:
        """Add the rows to a digest, so that other rows can be told from these."""


class Tensors:
    """Rows of tensors in memory."""

    def __init__(self, x: Inputs, y: Tensor, dtype: torch.dtype, name: str) -> None:
        for part in tensors(x):
            expect(len(part) == len(y), f"{name}: lengths of x and y", (len(part), len(y)), "the same number of rows")
            check_finite(part, name)
        self.x = each(x, lambda t: t.to(dtype) if t.is_floating_point() else t)
        self.y = _labels(y, dtype)
        self.name = name

    def __len__(self) -> int:
        return len(self.y)

    def expect_classes(self, classes: int) -> None:
        """Refuse labels outside 0..classes-1."""
        check_labels(self.y, classes, self.name)

    def take(self, rows: Indices, device: torch.device, draw: Draw | None = None) -> tuple[Inputs, Tensor]:
        index = torch.from_numpy(rows)
        return each(self.x, lambda t: onto(device, t[index])), onto(device, self.y[index])

    def add_to(self, digest: Digest) -> None:
        for part in (*tensors(self.x), self.y):
            _add(digest, part)


class Items:
    """Rows of a map-style dataset, fetched one by one."""

    def __init__(self, dataset: Any, dtype: torch.dtype, name: str) -> None:
        self.dataset, self.dtype, self.name = dataset, dtype, name
        self.classes: int | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def expect_classes(self, classes: int) -> None:
        """From now on, refuse labels outside 0..classes-1 when they are taken."""
        self.classes = classes

    def take(self, rows: Indices, device: torch.device, draw: Draw | None = None) -> tuple[Inputs, Tensor]:
        try:
            with OwnRandomness(
                0 if draw is None else int(draw().integers(2**63))
            ):  # a dataset may change rows at random
                pairs = [self.dataset[int(row)] for row in rows]
            x = _stacked([pair[0] for pair in pairs])
            labels = torch.stack([torch.as_tensor(pair[1]) for pair in pairs])
        except Exception as error:  # a user's dataset may raise anything
            words = f"expected (x, y) of tensors or numbers, got {type(error).__name__}: {error}"
            raise ContractError(f"{self.name}, one of rows {rows[:4].tolist()}..: {words}") from error
        for part in tensors(x):
            check_finite(part, f"{self.name}, one of rows {rows[0]}..")
        y = _labels(labels, self.dtype)
        if self.classes is not None:
            check_labels(y, self.classes, self.name)
        return each(x, lambda t: onto(device, t.to(self.dtype) if t.is_floating_point() else t)), onto(device, y)

    def add_to(self, digest: Digest) -> None:
        """Add the length and what the dataset says of itself (`fingerprint`, as in the `datasets` library); or, if it
        says nothing, a few rows, unless it changes rows at random in a way that we cannot repeat."""
        said = getattr(self.dataset, "_fingerprint", None) or getattr(self.dataset, "fingerprint", None)
        digest.update(f"{len(self)} {said if isinstance(said, str) else ''}".encode())
        if isinstance(said, str) or not len(self):
            return
        rows = np.unique(np.linspace(0, len(self) - 1, SOME).astype(np.int64))
        (x, y), (x2, y2) = (self.take(rows, torch.device("cpu")) for _ in range(2))
        first, again = (*tensors(x), y), (*tensors(x2), y2)
        for part in first if all(map(torch.equal, first, again)) else ():
            _add(digest, part)


class View:
    """Some rows of a stored data set; `transform` turns them into inputs, and may change them at random in training."""

    def __init__(
        self,
        rows: StoredRows,
        index: Indices,
        transform: Transform,
        dtype: torch.dtype = torch.float32,
        name: str = "rows",
    ) -> None:
        self.rows, self.index, self.transform, self.dtype, self.name = rows, index, transform, dtype, name

    def __len__(self) -> int:
        return len(self.index)

    def expect_classes(self, classes: int) -> None:
        check_labels(torch.from_numpy(self.rows.y[self.index]), classes, self.name)

    def take(self, rows: Indices, device: torch.device, draw: Draw | None = None) -> tuple[Tensor, Tensor]:
        where = self.index[rows]
        x, y = (onto(device, torch.from_numpy(np.asarray(column[where]))) for column in (self.rows.x, self.rows.y))
        return self.transform(x, self.dtype, draw), y

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
    ) -> None:
        self.rows, self.parts, self.transform, self.dtype, self.name = rows, parts, transform, dtype, name

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def sizes(self) -> Indices:
        return self.parts.sizes

    def digest(self) -> str:
        """A digest of all rows and labels, and of which client holds which."""
        parts = self.parts.parts if isinstance(self.parts, Side) else self.parts
        found = hashlib.blake2b(
            f"{self.rows.x.shape} {self.rows.x.dtype} {self.parts.sizes.sum()}".encode(), digest_size=8
        )
        for array in (self.rows.x, self.rows.y, parts.order, parts.ends):
            for start in range(0, len(array), CHUNK):  # so that a memory-mapped array is read piece by piece
                found.update(np.ascontiguousarray(array[start : start + CHUNK]).data)
        return found.hexdigest()

    def everybody(self) -> View:
        """All rows of the data set."""
        return View(self.rows, np.arange(len(self.rows)), self.transform, self.dtype, self.name)

    def at(self, j: int) -> View:
        return View(self.rows, self.parts[j], self.transform, self.dtype, f"{self.name}[{j}]")


def take_together(
    sources: Sequence[Source], rows: Sequence[Indices], device: torch.device
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
    everything = View(first.rows, np.concatenate(where), first.transform, first.dtype)
    x, y = everything.take(np.arange(len(everything)), device)
    shape = len(sources), len(rows[0])
    return x.view(*shape, *x.shape[1:]), y.view(shape)


def onto(device: torch.device, tensor: Tensor) -> Tensor:
    """Return the tensor on a device; a copy to a GPU is asynchronous."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def source(given: Any, dtype: torch.dtype, name: str) -> Source:
    """Return `given` as a source of rows in the model's dtype; `name` is what errors call it."""
    if isinstance(given, View):
        return View(given.rows, given.index, given.transform, dtype, name)
    if isinstance(given, torch.utils.data.TensorDataset):
        given = given.tensors
    if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], Tensor | np.ndarray | Mapping):
        try:
            x = _tensors(given[0])
            y = torch.as_tensor(given[1])
        except (ValueError, TypeError, RuntimeError) as error:
            raise ContractError(f"{name}: x and y must be tensors or arrays: {error}") from error
        shapes = tuple(tuple(t.shape) for t in (*tensors(x), y))
        expect(bool(tensors(x)) and all(shapes), f"{name}: shapes", shapes, "rows in both")
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


def _tensors(x: Any) -> Inputs:
    return {str(key): torch.as_tensor(x[key]) for key in x} if isinstance(x, Mapping) else torch.as_tensor(x)


def _stacked(rows: Sequence[Any]) -> Inputs:
    """Stack the inputs of several samples into one batch."""
    if isinstance(rows[0], Mapping):
        return {str(key): torch.stack([torch.as_tensor(row[key]) for row in rows]) for key in rows[0]}
    return torch.stack([torch.as_tensor(row) for row in rows])


def _labels(y: Tensor, dtype: torch.dtype) -> Tensor:
    if y.is_floating_point():
        return y.to(dtype)
    return y.to(torch.int64)
