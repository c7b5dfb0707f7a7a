"""What each block costs and puts out for one sample: multiply-accumulates forward (training: three times that)."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cutlayer.cut import blocks_of
from cutlayer.rng import callers_randomness

TRAINING = 3  # forward 1, backward 2


class Shape(NamedTuple):
    """Of each block, for one sample: MACs forward, and elements of its output."""

    macs: list[int]
    elements: list[int]


def shape_of(model: nn.Module, x: Tensor) -> Shape:
    """The blocks' costs and sizes, measured on the rows `x` in training mode."""
    counts, elements, rows = [], [], len(x)
    with callers_randomness():
        for block in blocks_of(copy.deepcopy(model).train()):
            recurrent = _Recurrent(block)
            with FlopCounterMode(display=False) as counter, torch.enable_grad():
                x = block(x.detach().clone() if isinstance(x, Tensor) else x)
            recurrent.remove()
            counts.append((counter.get_total_flops() // 2 + recurrent.macs) // rows)
            elements.append(x.numel() // rows if isinstance(x, Tensor) else 0)
    return Shape(counts, elements)


class _Recurrent:
    """Recurrent layers by formula: the counter does not see into them."""

    def __init__(self, block: nn.Module) -> None:
        self.macs = 0
        layers = [m for m in block.modules() if isinstance(m, nn.RNNBase)]
        self._handles = [layer.register_forward_hook(self._count) for layer in layers]

    def _count(self, layer: nn.RNNBase, inputs: tuple[Any, ...], _: Any) -> None:
        steps = inputs[0].shape[0] * inputs[0].shape[1]  # positions of all sequences
        self.macs += steps * sum(p.numel() for name, p in layer.named_parameters() if "weight" in name)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
