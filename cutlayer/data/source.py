"""A client's samples, in one of three forms: tensors, a map-style dataset of (x, y), or rows of a stored data set."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cutlayer.data.batch import Digest, as_tensors
from cutlayer.data.items import Items
from cutlayer.data.schedule import Indices
from cutlayer.data.tensors import Tensors
from cutlayer.data.transform import Draw
from cutlayer.data.views import View
from cutlayer.errors import ContractError, expect
from cutlayer.nn.nested import Inputs, tensors


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


def digest_of(sources: Sequence[Source]) -> str:
    """Return a digest of the rows of several sources, in order."""
    found = hashlib.blake2b(digest_size=8)
    for one in sources:
        one.add_to(found)
    return found.hexdigest()


def source(given: Any, dtype: torch.dtype, name: str) -> Source:
    """Return `given` as a source of rows in the model's dtype; `name` is what errors call it."""
    if isinstance(given, View):
        return View(given.rows, given.index, given.transform, dtype, name)
    if isinstance(given, torch.utils.data.TensorDataset):
        given = given.tensors
    if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], Tensor | np.ndarray | Mapping):
        try:
            x = as_tensors(given[0])
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
