"""What every cut of a model costs: sizes and multiply-accumulates on either side, and what crosses it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from cutlayer.core.randomness import OwnRandomness
from cutlayer.nn.blocks import as_blocks
from cutlayer.nn.cut import block_names, blocks_of
from cutlayer.nn.macs import shape_of
from cutlayer.nn.nested import Inputs, parted
from cutlayer.simulation.devices import kilobits


@dataclass(frozen=True)
class CutCost:
    """One cut: blocks 0..cut are the client's."""

    cut: int
    output: tuple[int, ...]  # of one sample, at the cut
    weights: tuple[int, int]  # client, server
    macs: tuple[int, int]  # forward, one sample
    kbit: float  # the activations of one sample; their gradient is as large
    name: str = ""  # of the last block of the client's

    @property
    def share(self) -> float:
        """The client's share of the multiply-accumulates."""
        return self.macs[0] / max(sum(self.macs), 1)


@torch.no_grad()
def cuts(model: nn.Module, x: Inputs) -> list[CutCost]:
    """Return the cost of every possible cut, measured on a few rows `x`. The server keeps at least the last block.

    >>> import torch, cutlayer as cl
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> [(c.cut, c.output, c.weights, c.macs, c.kbit) for c in cl.cuts(model, torch.zeros(2, 8))]
    [(0, (4,), (36, 10), (32, 8), 0.128), (1, (4,), (36, 10), (32, 8), 0.128)]
    """
    model = as_blocks(model, x)
    measured = shape_of(model, x)
    weights = list(accumulate(sum(p.numel() for p in block.parameters()) for block in blocks_of(model)))
    macs, names = list(accumulate(measured.macs)), block_names(model)
    found, was = [], model.training
    with OwnRandomness():
        model.eval()
        after: Any = x
        for L, block in enumerate(blocks_of(model)[:-1]):
            after = block(after)
            shape = tuple(parted(after)[0].shape[1:]) if isinstance(after, torch.Tensor | dict) else ()
            sides = (weights[L], weights[-1] - weights[L]), (macs[L], macs[-1] - macs[L])
            found.append(CutCost(L, shape, *sides, kilobits(measured.elements[L]), names[L][0]))
        model.train(was)
    return found
