"""A batch of rows: tensors in the model's type, checked, on its device; and digests of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from cutlayer.errors import ContractError, expect
from cutlayer.nn.nested import Inputs

CHUNK = 4096  # rows hashed at a time


class Digest(Protocol):
    """A hash under way."""

    def update(self, data: Any, /) -> None: ...


def add_rows(digest: Digest, tensor: Tensor) -> None:
    """Add a tensor to a digest, piece by piece."""
    digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    for start in range(0, len(tensor), CHUNK):
        digest.update(tensor[start : start + CHUNK].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def onto(device: torch.device, tensor: Tensor) -> Tensor:
    """Return the tensor on a device; a copy to a GPU is asynchronous."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


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


def as_tensors(x: Any) -> Inputs:
    return {str(key): torch.as_tensor(x[key]) for key in x} if isinstance(x, Mapping) else torch.as_tensor(x)


def stacked(rows: Sequence[Any]) -> Inputs:
    """Stack the inputs of several samples into one batch."""
    if isinstance(rows[0], Mapping):
        return {str(key): torch.stack([torch.as_tensor(row[key]) for row in rows]) for key in rows[0]}
    return torch.stack([torch.as_tensor(row) for row in rows])


def labels(y: Tensor, dtype: torch.dtype) -> Tensor:
    if y.is_floating_point():
        return y.to(dtype)
    return y.to(torch.int64)
