"""The inputs of a model, or what crosses a cut: one tensor, or several by name.

Of several tensors that cross a cut, the first one is the activations, whose gradient goes back; the others travel
beside it without a gradient (a mask, positions, lengths).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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


def parted(x: Inputs) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the activations, and the tensors that travel beside them."""
    first, *more = tensors(x)
    return first, tuple(more)


def picked(x: Inputs, rows: Tensor) -> Inputs:
    """Return some rows of a batch."""
    return each(x, lambda tensor: tensor[rows])


def unbound(x: Inputs) -> list[Inputs]:
    """Return several batches of one shape, [n, batch, ...], as a list."""
    if isinstance(x, Tensor):
        return list(x.unbind())
    parts = zip(*(tensor.unbind() for tensor in x.values()), strict=True)
    return [dict(zip(x, part, strict=True)) for part in parts]


def stacked(batches: Sequence[Inputs]) -> Inputs:
    """Return batches of one shape as one, [n, batch, ...]."""
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.stack([batch for batch in batches if isinstance(batch, Tensor)])
    return {key: torch.stack([batch[key] for batch in batches if not isinstance(batch, Tensor)]) for key in first}


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
