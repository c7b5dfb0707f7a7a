"""Multiply-accumulates of each block, for one sample forward; training costs three times that."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cutlayer.cut import blocks_of
from cutlayer.rng import callers_randomness

TRAINING = 3  # forward 1, backward 2


def block_macs(model: nn.Module, x: Tensor) -> list[int]:
    """MACs of each block for one sample, measured on the rows `x` in training mode."""
    counts, rows = [], len(x)
    with callers_randomness():
        for block in blocks_of(copy.deepcopy(model).train()):
            recurrent = _Recurrent(block)
            with FlopCounterMode(display=False) as counter, torch.enable_grad():
                x = block(x.detach().clone() if isinstance(x, Tensor) else x)
            recurrent.remove()
            counts.append((counter.get_total_flops() // 2 + recurrent.macs) // rows)
    return counts


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
