"""FedNAR's character transformer for Shakespeare (Vaswani et al. 2017; Li et al., NeurIPS 2023), a block per layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from cutlayer.errors import expect
from cutlayer.models.shapes import sizes, text


def transformer(
    shape: Sequence[int],
    classes: int,
    vocabulary: int = 80,
    width: int = 128,
    heads: int = 4,
    hidden: int = 512,
    depth: int = 6,
    dropout: float = 0.1,
) -> nn.Sequential:
    """Blocks: 0 embeddings; 1 .. depth encoder layers (post-norm, relu, no mask); depth+1 last position, linear.

    `hidden` is the width of the feed-forward layers.
    """
    length = text(shape)
    sizes(vocabulary=vocabulary, width=width, heads=heads, hidden=hidden, depth=depth)
    expect(width % heads == 0, "width", width, f"a multiple of heads = {heads}")
    expect(0 <= dropout < 1, "dropout", dropout, "a probability below 1")
    layers = [nn.TransformerEncoderLayer(width, heads, hidden, dropout, batch_first=True) for _ in range(depth)]
    return nn.Sequential(
        Embeddings(vocabulary, length, width), *layers, nn.Sequential(LastPosition(), nn.Linear(width, classes))
    )


class Embeddings(nn.Module):
    """Each symbol's vector times sqrt(width), plus a learned vector of its position."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.symbols(x) * math.sqrt(self.symbols.embedding_dim)
        return out + self.positions.weight[: x.shape[1]]


class LastPosition(nn.Module):
    """The last position of the sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]
