"""A multi-layer perceptron: one block per layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from cutlayer.errors import expect


def mlp(shape: Sequence[int], classes: int, width: int = 64, depth: int = 3) -> nn.Sequential:
    """Blocks: 0 flatten, linear, relu; 1 .. depth-1 linear, relu; depth linear."""
    expect(width >= 1, "width", width, "a whole number, at least 1")
    expect(depth >= 1, "depth", depth, "at least one hidden layer")
    hidden = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth - 1)]
    first = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width), nn.ReLU())
    return nn.Sequential(first, *hidden, nn.Linear(width, classes))
