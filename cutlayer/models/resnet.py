"""Residual networks (He et al., CVPR 2016): a small one in five blocks; ResNet-18 and -34, one block per residual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from cutlayer.errors import expect
from cutlayer.models.shapes import image, sizes

Norm = Literal["bn", "gn"]
Stem = Literal["imagenet", "cifar"]


def resnet(shape: Sequence[int], classes: int, width: int = 16, norm: Norm = "bn") -> nn.Sequential:
    """Blocks: 0 conv, norm, relu; 1 to 3 residual blocks of width, 2*width, 4*width; 4 average pool, linear.

    `norm="gn"` uses group norm with two groups instead of batch norm.
    """
    expect(width >= 1, "width", width, "a whole number, at least 1")
    expect(norm in ("bn", "gn"), "norm", norm, "'bn' or 'gn'")
    expect(norm == "bn" or width % 2 == 0, "width", width, "an even number, for two groups")
    channels, *_ = image(shape)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), normalise(width, norm), nn.ReLU()),
        Residual(width, width, 1, norm),
        Residual(width, 2 * width, 2, norm),
        Residual(2 * width, 4 * width, 2, norm),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes)),
    )


def resnet18(
    shape: Sequence[int], classes: int, stem: Stem = "imagenet", norm: Norm = "bn", width: int = 64
) -> nn.Sequential:
    """Blocks: 0 stem; 1 to 8 residual blocks, two of 64, 128, 256 and 512 channels each; 9 average pool, linear.

    The stem is conv 7x7/2, norm, relu, max pool 3x3/2 (`imagenet`), or conv 3x3, norm, relu (`cifar`).
    `norm="gn"` uses group norm with two groups instead of batch norm. `width`: channels of the first stage; the others
    have two, four and eight times as many.
    """
    return _staged((2, 2, 2, 2), shape, classes, stem, norm, width)


def resnet34(
    shape: Sequence[int], classes: int, stem: Stem = "imagenet", norm: Norm = "bn", width: int = 64
) -> nn.Sequential:
    """Blocks: 0 stem; 1 to 16 residual blocks: 1-3 of 64 channels, 4-7 of 128, 8-13 of 256, 14-16 of 512; 17 the head.

    Stem, head (average pool, linear), norm and width are those of `resnet18`.
    """
    return _staged((3, 4, 6, 3), shape, classes, stem, norm, width)


def _staged(
    depths: Sequence[int], shape: Sequence[int], classes: int, stem: Stem, norm: Norm, width: int
) -> nn.Sequential:
    """Build stages of 1, 2, 4, 8 times `width` channels; all but the first halve the image in their first block."""
    expect(stem in ("imagenet", "cifar"), "stem", stem, "'imagenet' or 'cifar'")
    expect(norm in ("bn", "gn"), "norm", norm, "'bn' or 'gn'")
    sizes(width=width)
    channels, *_ = image(shape)
    first: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False), normalise(width, norm), nn.ReLU()]
    if stem == "imagenet":
        first[0] = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        first.append(nn.MaxPool2d(3, stride=2, padding=1))
    blocks, inside = [], width
    for outside, depth in zip((width, 2 * width, 4 * width, 8 * width), depths, strict=True):
        for _ in range(depth):
            blocks.append(Residual(inside, outside, 1 if inside == outside else 2, norm))
            inside = outside
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))
    return nn.Sequential(nn.Sequential(*first), *blocks, head)


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
            self.skip = nn.Sequential(ShortCut(inside, outside, stride), normalise(outside, norm))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = functional.relu(self.body(x) + self.skip(x))
        return out


class ShortCut(nn.Conv2d):
    """A 1x1 convolution of every `stride`-th pixel.

    It picks the pixels first. Torch's own kernel for that writes past the end of its memory where images are in
    channels_last order and have few channels, so a narrow network would have to compute in the slower plain order.
    """

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__(inside, outside, 1, bias=False)
        self.every = stride

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(functional.avg_pool2d(x, 1, self.every))
