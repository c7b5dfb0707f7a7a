"""Checks of a model's input shape and sizes, and an example of an input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cutlayer.errors import expect, is_whole


def image(shape: Sequence[int], least: int = 1) -> tuple[int, int, int]:
    """Return channels, height and breadth of an image; refuse one with fewer than `least` pixels a side."""
    fits = len(shape) == 3 and min(shape[1:]) >= least
    expect(fits, "shape", tuple(shape), f"(channels, height, breadth), images of at least {least}x{least}")
    return shape[0], shape[1], shape[2]


def text(shape: Sequence[int]) -> int:
    """Return the length of a sequence of symbols; refuse other shapes."""
    expect(len(shape) == 1 and shape[0] >= 1, "shape", tuple(shape), "(length,), the numbers of as many symbols")
    return shape[0]


def sizes(**given: int) -> None:
    """Refuse anything but whole numbers of at least 1."""
    for name, value in given.items():
        expect(is_whole(value) and value >= 1, name, value, "a whole number, at least 1")


def example(model: nn.Module, shape: Sequence[int], rows: int = 2) -> Tensor:
    """Return zeros that the model accepts: symbols if it begins with an embedding, else numbers of its own dtype.

    >>> example(nn.Sequential(nn.Embedding(80, 8), nn.Linear(8, 2)), (5,)).dtype
    torch.int64
    """
    first = next((m for m in model.modules() if next(m.parameters(recurse=False), None) is not None), None)
    if first is None:
        return torch.zeros(rows, *shape)
    own = next(first.parameters(recurse=False))
    return torch.zeros(
        rows, *shape, dtype=torch.int64 if isinstance(first, nn.Embedding) else own.dtype, device=own.device
    )
