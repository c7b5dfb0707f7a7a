"""A small residual network in five blocks (He et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from cutlayer.errors import expect

Norm = Literal["bn", "gn"]


def resnet(shape: Sequence[int], classes: int, width: int = 16, norm: Norm = "bn") -> nn.Sequential:
    """Blocks: 0 conv, norm, relu; 1 to 3 residual blocks of width, 2*width, 4*width; 4 average pool, linear.

    `norm="gn"` puts group norm with two groups where batch norm would be.
    """
    expect(width >= 1, "width", width, "a whole number, at least 1")
    expect(norm in ("bn", "gn"), "norm", norm, "'bn' or 'gn'")
    expect(norm == "bn" or width % 2 == 0, "width", width, "an even number, for two groups")
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], width, 3, padding=1, bias=False), normalise(width, norm), nn.ReLU()),
        Residual(width, width, 1, norm),
        Residual(width, 2 * width, 2, norm),
        Residual(2 * width, 4 * width, 2, norm),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes)),
    )


def normalise(channels: int, norm: Norm) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm == "bn" else nn.GroupNorm(2, channels)


class Residual(nn.Module):
    """conv-norm-relu-conv-norm, plus the input (through a 1x1 convolution where the shape changes), relu."""

    def __init__(self, inside: int, outside: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False),
            normalise(outside, norm),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            normalise(outside, norm),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.skip = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), normalise(outside, norm))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = functional.relu(self.body(x) + self.skip(x))
        return out
