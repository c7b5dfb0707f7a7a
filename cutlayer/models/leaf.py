"""The networks of LEAF (Caldas et al. 2018) for FEMNIST, CelebA and Shakespeare, as CycleSL cuts them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from cutlayer.models.shapes import image, sizes, text


def leaf_cnn(shape: Sequence[int], classes: int, hidden: int = 2048, width: int = 32) -> nn.Sequential:
    """Blocks: 0 and 1 conv 5x5 (`width` and twice as many channels), relu, pool; 2 flatten, linear, relu; 3 linear."""
    sizes(hidden=hidden, width=width)
    channels, height, breadth = image(shape, 4)
    features = 2 * width * (height // 4) * (breadth // 4)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(width, 2 * width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(features, hidden), nn.ReLU()),
        nn.Linear(hidden, classes),
    )


def celeba_cnn(shape: Sequence[int], classes: int, width: int = 32) -> nn.Sequential:
    """Blocks: 0 to 3 conv 3x3, batch norm, pool, relu; 4 flatten, linear."""
    sizes(width=width)
    channels, height, breadth = image(shape, 16)
    blocks = [
        nn.Sequential(nn.Conv2d(inside, width, 3, padding=1), nn.BatchNorm2d(width), nn.MaxPool2d(2), nn.ReLU())
        for inside in (channels, width, width, width)
    ]
    features = width * (height // 16) * (breadth // 16)
    return nn.Sequential(*blocks, nn.Sequential(nn.Flatten(), nn.Linear(features, classes)))


def leaf_lstm(
    shape: Sequence[int], classes: int, vocabulary: int = 80, embedding: int = 8, hidden: int = 256, depth: int = 2
) -> nn.Sequential:
    """Blocks: 0 embedding; 1 LSTM of `depth` layers, its last step; 2 linear."""
    text(shape)
    sizes(vocabulary=vocabulary, embedding=embedding, hidden=hidden, depth=depth)
    recurrent = LastStep(nn.LSTM(embedding, hidden, depth, batch_first=True))
    return nn.Sequential(nn.Embedding(vocabulary, embedding), recurrent, nn.Linear(hidden, classes))


class LastStep(nn.Module):
    """A recurrent layer's output at the end of the sequence."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0][:, -1]
        return out
