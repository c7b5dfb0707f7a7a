"""Models of many kinds, written as users write them: classes with a forward, and no blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Basic(nn.Module):
    """A residual block as torchvision has it."""

    def __init__(self, into: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or into != out:
            self.downsample = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    def __init__(self, width: int = 4, classes: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(Basic(width, width), Basic(width, width))
        self.layer2 = nn.Sequential(Basic(width, 2 * width, 2), Basic(2 * width, 2 * width))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer2(self.layer1(x))
        x = torch.flatten(self.avgpool(x), 1)
        x = functional.dropout(x, 0.3, self.training)
        return self.fc(x)  # type: ignore[no-any-return]


class Dense(nn.Module):
    """DenseNet: every layer sees all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.dense = nn.ModuleList(nn.Conv2d(4 + 2 * i, 2, 3, padding=1) for i in range(3))
        self.transition = nn.Sequential(nn.BatchNorm2d(10), nn.ReLU(), nn.Conv2d(10, 4, 1), nn.AvgPool2d(2))
        self.head = nn.Linear(4 * 4 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.stem(x)]
        for layer in self.dense:
            found.append(torch.relu(layer(torch.cat(found, 1))))
        x = self.transition(torch.cat(found, 1))
        return self.head(x.flatten(1))  # type: ignore[no-any-return]


class UNet(nn.Module):
    """Two levels with skips; it can be cut before the first and after the last."""

    def __init__(self) -> None:
        super().__init__()
        self.inc = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        self.stem = nn.Conv2d(4, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 8, 3, 2, 1)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.merge = nn.Conv2d(8, 4, 3, padding=1)
        self.out = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.stem(self.inc(x)))
        low = torch.relu(self.down(first))
        up = self.up(low)
        merged = torch.relu(self.merge(torch.cat([first, up], 1)))
        return self.out(merged)  # type: ignore[no-any-return]


class Classifier(nn.Module):
    """An LSTM over symbols, its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 8, 2, batch_first=True, dropout=0.2)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, codes: Tensor) -> Tensor:
        out, _ = self.lstm(self.embed(codes))
        return self.head(self.norm(out[:, -1]))  # type: ignore[no-any-return]


class Tagger(nn.Module):
    """A GRU that labels every symbol; the same embedding twice on one side."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.gru = nn.GRU(6, 6, batch_first=True, bidirectional=True)
        self.scale = nn.Parameter(torch.ones(12))
        self.register_buffer("shift", torch.full((12,), 0.5))
        self.head = nn.Linear(12, 3)

    def forward(self, codes: Tensor) -> Tensor:
        seen = self.embed(codes) + self.embed(codes.flip(1))
        out = self.gru(seen)[0] * self.scale + self.shift
        return self.head(out).transpose(1, 2)  # type: ignore[no-any-return]


class Inner(nn.Module):
    """What torch.fx cannot follow: control flow on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) if float(x.detach().sum()) > 0 else self.other(x)  # type: ignore[no-any-return]


class Branching(nn.Module):
    """Control flow inside a submodule; the rest can be followed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 4), Inner(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.inner(torch.tanh(self.first(x)))))  # type: ignore[no-any-return]


class Masked(nn.Module):
    """Two inputs by keyword, of which the second is used at once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, power: float = 1.0) -> Tensor:
        h = torch.relu(self.first(x))
        if mask is not None:
            h = h * mask[:, None]
        return self.last(torch.relu(self.middle(h)) ** power)  # type: ignore[no-any-return]


class Moody(nn.Module):
    """Another forward in training than in inference."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.extra, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            h = h + 0.1 * torch.rand_like(h)
        h = self.extra(torch.relu(h))
        return self.last(h)  # type: ignore[no-any-return]


class Residual(nn.Module):
    """The input itself comes back later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x)) + x
        return self.last(torch.relu(self.middle(h)))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """A mask that every layer uses: it crosses every cut, beside the activations."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True, norm_first=True) for _ in range(3)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, codes: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(codes)
        hidden = torch.logical_not(mask)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=hidden)
        weight = mask.to(x.dtype)[:, :, None]
        return self.head((x * weight).sum(1) / weight.sum(1))  # type: ignore[no-any-return]


class Lengths(nn.Module):
    """Lengths made of the input, which the head needs too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.middle, self.head = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, codes: Tensor) -> Tensor:
        n = (codes > 0).sum(1).clamp(min=1)
        h = torch.relu(self.embed(codes))
        h = torch.relu(self.middle(h))
        return self.head(h.sum(1) / n[:, None])  # type: ignore[no-any-return]
