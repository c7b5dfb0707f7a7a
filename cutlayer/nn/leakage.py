"""What the activations at a cut reveal: the distance correlation of input and activation (Székely et al. 2007).

0 if they are independent, 1 if one is the other, scaled and rotated. For samples x_i, a_i:

    d_ij = |x_i - x_j|, doubly centred: D_ij = d_ij - d_i. - d_.j + d_..     (E likewise from the activations)
    dCor^2 = mean(D*E) / sqrt(mean(D*D) * mean(E*E))
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from cutlayer.core.randomness import OwnRandomness
from cutlayer.nn.blocks import as_blocks
from cutlayer.nn.cut import blocks_of
from cutlayer.nn.nested import parted

BATCH = 64


def distance_correlation(x: Tensor, a: Tensor) -> float:
    """dCor of two samples of the same rows."""
    D, E = _centred(_distances(x)), _centred(_distances(a))
    spread = math.sqrt(float((D * D).mean()) * float((E * E).mean()))
    return math.sqrt(max(float((D * E).mean()), 0.0) / spread) if spread > 0 else 0.0


@torch.no_grad()
def leakage(model: nn.Module, x: Tensor) -> list[float]:
    """Return the dCor between the rows `x` and the output of each block, in inference mode."""
    model = as_blocks(model, x[:2])
    found = []
    was = model.training
    with OwnRandomness():
        model.eval()
        parts: list[Any] = list(torch.split(x, BATCH))
        for block in blocks_of(model):
            parts = [block(part) for part in parts]
            found.append(distance_correlation(x, torch.cat([parted(part)[0] for part in parts])))
        model.train(was)
    return found


def _distances(x: Tensor) -> Tensor:
    """Euclidean distances between rows; between rows of integer codes, the root of how many codes differ."""
    flat = x.flatten(1)
    if not x.is_floating_point():
        return torch.stack([(row != flat).sum(dim=1) for row in flat]).double().sqrt()  # row by row to save memory
    return torch.cdist(flat.double(), flat.double())


def _centred(d: Tensor) -> Tensor:
    return d - d.mean(dim=0, keepdim=True) - d.mean(dim=1, keepdim=True) + d.mean()
