"""A multi-layer perceptron in three blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn


def mlp(shape: Sequence[int], classes: int, width: int = 64) -> nn.Sequential:
    """Blocks: 0 flatten, linear, relu; 1 linear, relu; 2 linear."""
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width), nn.ReLU()),
        nn.Sequential(nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, classes),
    )
