"""The FEMNIST network of LEAF (Caldas et al. 2018) in four blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from cutlayer.errors import expect


def leaf_cnn(shape: Sequence[int], classes: int, hidden: int = 2048) -> nn.Sequential:
    """Blocks: 0 and 1 conv 5x5 (32 and 64 channels), relu, pool; 2 flatten, linear, relu; 3 linear."""
    expect(hidden >= 1, "hidden", hidden, "a whole number, at least 1")
    channels, height, breadth = shape
    expect(min(height, breadth) >= 4, "shape", tuple(shape), "images of at least 4x4, for two poolings")
    features = 64 * (height // 4) * (breadth // 4)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(features, hidden), nn.ReLU()),
        nn.Linear(hidden, classes),
    )
