"""The nine-layer residual network of CycleSL's CIFAR-100 experiments, in seven blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from cutlayer.models.shapes import image


def resnet9(shape: Sequence[int], classes: int) -> nn.Sequential:
    """Blocks: 0 conv; 1 conv, pool; 2 residual; 3 and 4 conv, pool; 5 residual; 6 max pool 4x4, flatten, linear.

    A conv is 3x3 with bias, batch norm, relu; the channels are 64, 128, 128, 256, 512, 512.
    """
    channels, height, breadth = image(shape, 32)
    features = 512 * (height // 32) * (breadth // 32)
    return nn.Sequential(
        _conv(channels, 64),
        _conv(64, 128, nn.MaxPool2d(2)),
        Plus(nn.Sequential(_conv(128, 128), _conv(128, 128))),
        _conv(128, 256, nn.MaxPool2d(2)),
        _conv(256, 512, nn.MaxPool2d(2)),
        Plus(nn.Sequential(_conv(512, 512), _conv(512, 512))),
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
