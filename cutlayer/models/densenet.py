"""DenseNet-121 and -169 (Huang et al., CVPR 2017) in nine blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cutlayer.models.shapes import image, sizes


def densenet121(shape: Sequence[int], classes: int, growth: int = 32) -> nn.Sequential:
    """Blocks: 0 conv 7x7/2, norm, relu, max pool 3x3/2; 1, 3, 5, 7 dense; 2, 4, 6 transitions; 8 norm to linear.

    The dense blocks hold 6, 12, 24, 16 layers. A transition halves the channels and the image.
    `growth`: the channels that a layer adds; the stem has twice as many.
    """
    return _densenet((6, 12, 24, 16), shape, classes, growth)


def densenet169(shape: Sequence[int], classes: int, growth: int = 32) -> nn.Sequential:
    """Blocks: those of `densenet121`; the dense blocks hold 6, 12, 32, 32 layers."""
    return _densenet((6, 12, 32, 32), shape, classes, growth)


def _densenet(depths: Sequence[int], shape: Sequence[int], classes: int, growth: int) -> nn.Sequential:
    sizes(growth=growth)
    channels, *_ = image(shape, 29)  # 8x8 after the stem, for three transitions
    width = 2 * growth
    stem = (nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    blocks = [nn.Sequential(*stem, nn.MaxPool2d(3, stride=2, padding=1))]
    for depth in depths:
        if len(blocks) > 1:
            blocks.append(nn.Sequential(*_conv(width, width // 2, 1), nn.AvgPool2d(2)))
            width //= 2
        blocks.append(nn.Sequential(*(Dense(width + i * growth, growth) for i in range(depth))))
        width += depth * growth
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))
    return nn.Sequential(*blocks, nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), *pooled))


def _conv(inside: int, outside: int, kernel: int) -> nn.Sequential:
    conv = nn.Conv2d(inside, outside, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(nn.BatchNorm2d(inside), nn.ReLU(), conv)


class Dense(nn.Module):
    """The input, and `growth` new channels computed from it by 1x1 and 3x3 convolutions."""

    def __init__(self, inside: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_conv(inside, 4 * growth, 1), *_conv(4 * growth, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.body(x)), 1)
