"""MobileNetV2 (Sandler et al., CVPR 2018) in nineteen blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from cutlayer.models.shapes import image, sizes

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""t, c, n, s of the paper's table 2: expansion, channels, number of blocks, stride of the first block."""


def mobilenetv2(shape: Sequence[int], classes: int, width: int = 32) -> nn.Sequential:
    """Blocks: 0 conv 3x3/2; 1 to 17 inverted residuals; 18 conv 1x1, average pool, dropout, linear.

    A conv has no bias and is followed by batch norm and relu6. `width`: channels of the first block; all others are
    wider or narrower in proportion.
    """
    sizes(width=width)
    channels, *_ = image(shape)
    blocks, inside, last = [], width, max(1, 1280 * width // 32)
    for t, c, n, s in STAGES:
        for i in range(n):
            outside = max(1, c * width // 32)
            blocks.append(Inverted(inside, outside, s if i == 0 else 1, t))
            inside = outside
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(last, classes))
    return nn.Sequential(_conv(channels, width, 3, 2), *blocks, nn.Sequential(*_conv(inside, last, 1), *pooled))


def _conv(inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inside, outside, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outside), nn.ReLU6())


class Inverted(nn.Module):
    """Widen by 1x1, filter each channel by 3x3, narrow by 1x1 without relu; add the input if the shapes agree."""

    def __init__(self, inside: int, outside: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inside * expansion
        widen = _conv(inside, wide, 1) if expansion > 1 else ()
        narrow = (nn.Conv2d(wide, outside, 1, bias=False), nn.BatchNorm2d(outside))
        self.body = nn.Sequential(*widen, *_conv(wide, wide, 3, stride, groups=wide), *narrow)
        self.adds = stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out + x if self.adds else out
