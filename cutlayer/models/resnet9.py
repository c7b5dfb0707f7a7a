"""The nine-layer residual network of CycleSL's CIFAR-100 experiments, in seven blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from cutlayer.models.shapes import image, sizes


def resnet9(shape: Sequence[int], classes: int, width: int = 64) -> nn.Sequential:
    """Blocks: 0 conv; 1 conv, pool; 2 residual; 3 and 4 conv, pool; 5 residual; 6 max pool 4x4, flatten, linear.

    A conv is 3x3 with bias, batch norm, relu; the channels are 64, 128, 128, 256, 512, 512, or as many times `width`
    as of 64.
    """
    sizes(width=width)
    one, two, four, eight = (times * width for times in (1, 2, 4, 8))
    channels, height, breadth = image(shape, 32)
    features = eight * (height // 32) * (breadth // 32)
    return nn.Sequential(
        _conv(channels, one),
        _conv(one, two, nn.MaxPool2d(2)),
        Plus(nn.Sequential(_conv(two, two), _conv(two, two))),
        _conv(two, four, nn.MaxPool2d(2)),
        _conv(four, eight, nn.MaxPool2d(2)),
        Plus(nn.Sequential(_conv(eight, eight), _conv(eight, eight))),
        nn.Sequential(nn.MaxPool2d(4), nn.Flatten(), nn.Linear(features, classes)),
    )


def _conv(inside: int, outside: int, *then: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), *then)


class Plus(nn.Module):
    """The body's output plus its input; nothing after the sum."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + x
        return out
