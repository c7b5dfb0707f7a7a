"""What a model takes: one tensor, or several by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Inputs = Tensor | dict[str, Tensor]


def each(x: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The change applied to every tensor."""
    return change(x) if isinstance(x, Tensor) else {name: change(tensor) for name, tensor in x.items()}


def ordered(x: Inputs, last: bool) -> Inputs:
    """A batch in the order of memory the model computes in, whatever its own: images channels last, or all plain."""

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
    """Shapes of one row, for errors."""
    if isinstance(x, Mapping):
        return "{" + ", ".join(f"{name}: {tuple(t.shape[1:])}" for name, t in x.items()) + "}"
    return str(tuple(x.shape[1:]))


def kind(x: Inputs) -> object:
    """What two batches have in common if a model takes both: names, shapes of a row, dtypes."""
    if isinstance(x, Mapping):
        return tuple((name, t.shape[1:], t.dtype) for name, t in sorted(x.items()))
    return x.shape[1:], x.dtype
