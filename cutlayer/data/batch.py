"""A batch of rows: tensors in the model's type, checked, on its device; and digests of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from cutlayer.data.schedule import Indices
from cutlayer.errors import ContractError, expect
from cutlayer.nn.language import IGNORED
from cutlayer.nn.nested import Inputs, tensors

CHUNK = 4096  # rows hashed at a time
PIECE = 2**24  # numbers checked at a time
Order = Literal["any", "kept", "stream"]
"""Whether rows may be taken in any order, are to be taken in theirs, or come in theirs, pass by pass."""


class Batches(NamedTuple):
    """The batches that the maker of some rows had in mind."""

    size: int
    drop_last: bool


class Digest(Protocol):
    """A hash under way."""

    def update(self, data: Any, /) -> None: ...


class Taking(Protocol):
    """Rows that can be taken."""

    def take(self, rows: Indices, device: torch.device) -> tuple[Inputs, Tensor]: ...


def few(n: int, some: int) -> Indices:
    """Return a few rows of n, at even distances."""
    return np.unique(np.linspace(0, n - 1, some).astype(np.int64)) if n else np.empty(0, dtype=np.int64)


def add_rows(digest: Digest, tensor: Tensor) -> None:
    """Add a tensor to a digest, piece by piece."""
    digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    for start in range(0, len(tensor), CHUNK):
        digest.update(tensor[start : start + CHUNK].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def add_some(digest: Digest, held: Taking, rows: Indices) -> None:
    """Add a few rows to a digest, unless they change at random in a way that we cannot repeat."""
    if not len(rows):
        return
    (x, y), (x2, y2) = (held.take(rows, torch.device("cpu")) for _ in range(2))
    first, again = (*tensors(x), y), (*tensors(x2), y2)
    for part in first if all(map(torch.equal, first, again)) else ():
        add_rows(digest, part)


def check_finite(x: Tensor, name: str) -> None:
    """Refuse inputs with NaN or infinity. It is done piece by piece: x may be larger than memory."""
    if not x.is_floating_point():
        return
    step = max(1, PIECE * len(x) // max(x.numel(), 1))
    for start in range(0, len(x), step):
        wrong = ~torch.isfinite(x[start : start + step])
        if bool(wrong.any()):
            row = start + int(wrong.reshape(len(wrong), -1).any(dim=1).nonzero()[0])
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


def check_tokens(y: Tensor, vocabulary: int, name: str) -> None:
    """Refuse labels of a language model that it has no output for, and rows without a label to predict."""
    counts = y != IGNORED
    wrong = counts & ((y < 0) | (y >= vocabulary))
    if bool(wrong.any()):
        row = int(wrong.any(dim=1).nonzero()[0])
        words = f"{IGNORED} (ignored) or 0..{vocabulary - 1}, the model's {vocabulary} outputs"
        raise ContractError(f"{name}: labels of row {row} = {int(y[row][wrong[row]][0])}: expected {words}")
    empty = ~counts[:, 1:].any(dim=1)
    if bool(empty.any()):
        words = f"all after the first are ignored ({IGNORED}); expected at least one that counts"
        raise ContractError(f"{name}: labels of row {int(empty.nonzero()[0])}: {words}")


def as_tensor(value: Any, what: str) -> Tensor:
    """Return a number, numbers in lists, an array or a tensor as a tensor; refuse everything else."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "getbands"):  # PIL's images; how one becomes numbers is not ours to decide
        raise ContractError(
            f"{what} is a picture ({type(value).__name__}): expected numbers; let the dataset's transform make a tensor"
        )
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ContractError(f"{what} = {value!r:.60}: expected numbers")
    return torch.as_tensor(array if array.flags.writeable else array.copy())


def stacked(values: Sequence[Any], rows: Indices, what: str) -> Tensor:
    """Stack what several rows hold into one tensor."""
    found = [as_tensor(value, f"{what}, row {row}") for value, row in zip(values, rows, strict=True)]
    for tensor, row in zip(found, rows, strict=True):
        if tensor.shape != found[0].shape:
            shapes = f"row {row} has shape {tuple(tensor.shape)}, row {rows[0]} {tuple(found[0].shape)}"
            raise ContractError(f"{what}: {shapes}; expected rows of one shape, padded if need be")
    return torch.stack(found)


def labels(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Return labels in their type: classes as int64, other targets in the model's."""
    if y.is_floating_point():
        return y.to(dtype)
    return y.to(torch.int64)
