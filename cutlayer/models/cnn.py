"""A plain convolutional network in four blocks, without normalisation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from cutlayer.errors import expect
from cutlayer.models.shapes import image


def cnn(shape: Sequence[int], classes: int, width: int = 16) -> nn.Sequential:
    """Blocks: 0 conv, relu (pooled above 16x16); 1 and 2 conv, relu, pool; 3 flatten, linear."""
    expect(width >= 1, "width", width, "a whole number, at least 1")
    channels, height, breadth = image(shape)
    shrink = 4 if height <= 16 else 8
    stem: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
    if shrink == 8:
        stem.append(nn.MaxPool2d(2))
    features = 2 * width * (height // shrink) * (breadth // shrink)
    return nn.Sequential(
        nn.Sequential(*stem),
        nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(features, classes)),
    )
