"""VGG-11 and VGG-16 (Simonyan and Zisserman, ICLR 2015; configurations A and D), one block per convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from cutlayer.errors import expect
from cutlayer.models.shapes import image, sizes

Head = Literal["small", "original"]
Norm = Literal["bn", "none"]


def vgg11(
    shape: Sequence[int], classes: int, head: Head = "small", norm: Norm = "bn", width: int = 64
) -> nn.Sequential:
    """Blocks: 0 to 7 conv 3x3, norm, relu, and the pooling that follows 0, 1, 3, 5, 7; 8 head.

    The head is average pool, linear (`small`), or average pool to 7x7 and three linear layers with dropout
    (`original`: 120 million parameters). `norm="none"` leaves out batch norm, as the paper does, and initialises the
    convolutions as He et al. (ICCV 2015) do: with torch's defaults, the signal shrinks by a factor of three per block.
    `width`: channels of the first stage; the others have two, four, eight and eight times as many.
    """
    return _vgg((1, 1, 2, 2, 2), shape, classes, (head, norm), width)


def vgg16(
    shape: Sequence[int], classes: int, head: Head = "small", norm: Norm = "bn", width: int = 64
) -> nn.Sequential:
    """Blocks: 0 to 12 conv 3x3, norm, relu, and the pooling that follows 1, 3, 6, 9, 12; 13 head.

    Head, norm and width are those of `vgg11`.
    """
    return _vgg((2, 2, 3, 3, 3), shape, classes, (head, norm), width)


def _vgg(
    depths: Sequence[int], shape: Sequence[int], classes: int, kind: tuple[Head, Norm], width: int
) -> nn.Sequential:
    """Build the stages; the block of a stage's last convolution ends with a pooling."""
    head, norm = kind
    sizes(width=width)
    expect(head in ("small", "original"), "head", head, "'small' or 'original'")
    expect(norm in ("bn", "none"), "norm", norm, "'bn' or 'none'")
    inside, *_ = image(shape, 2 ** len(depths))
    blocks: list[nn.Sequential] = []
    for times, depth in zip((1, 2, 4, 8, 8), depths, strict=True):
        for _ in range(depth):
            blocks.append(_conv(inside, times * width, norm))
            inside = times * width
        blocks[-1].append(nn.MaxPool2d(2))
    return nn.Sequential(*blocks, _head(inside, classes, head))


def _conv(inside: int, width: int, norm: Norm) -> nn.Sequential:
    conv = nn.Conv2d(inside, width, 3, padding=1)
    if norm == "bn":
        return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU())
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return nn.Sequential(conv, nn.ReLU())


def _head(inside: int, classes: int, head: Head) -> nn.Sequential:
    if head == "small":
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        *(nn.Linear(inside * 49, 4096), nn.ReLU(), nn.Dropout()),
        *(nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()),
        nn.Linear(4096, classes),
    )
