"""The inputs of a model: one tensor, or several by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Inputs = Tensor | dict[str, Tensor]


def each(x: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Apply `change` to every tensor."""
    return change(x) if isinstance(x, Tensor) else {name: change(tensor) for name, tensor in x.items()}


def ordered(x: Inputs, last: bool) -> Inputs:
    """Return a batch in the memory order that the model computes in: images channels_last if `last`, the rest plain."""

    def one(tensor: Tensor) -> Tensor:
        images = last and tensor.ndim == 4
        return tensor.contiguous(memory_format=torch.channels_last if images else torch.contiguous_format)

    return each(x, one)


def tensors(x: Inputs) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else list(x.values())


def length(x: Inputs) -> int:
    """The number of rows."""
    return len(tensors(x)[0])


def describe(x: Inputs) -> str:
    """The shapes of one row, for error messages."""
    if isinstance(x, Mapping):
        return "{" + ", ".join(f"{name}: {tuple(t.shape[1:])}" for name, t in x.items()) + "}"
    return str(tuple(x.shape[1:]))


def kind(x: Inputs) -> object:
    """The names, row shapes and dtypes of a batch: a model that takes one batch takes all of the same kind."""
    if isinstance(x, Mapping):
        return tuple((name, t.shape[1:], t.dtype) for name, t in sorted(x.items()))
    return x.shape[1:], x.dtype
