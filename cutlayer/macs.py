"""What each block costs and puts out for one sample: multiply-accumulates forward (training: three times that)."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

from cutlayer.cut import blocks_of
from cutlayer.nested import Inputs, each, length
from cutlayer.rng import callers_randomness

TRAINING = 3  # forward 1, backward 2


class Shape(NamedTuple):
    """Of each block, for one sample: MACs forward, and elements of its output."""

    macs: list[int]
    elements: list[int]

    def folded(self, tail: int) -> Shape:
        """Where the last `tail` blocks are the client's too: they count with the first, and what goes into them travels
        with what comes out of the front."""
        if not tail:
            return self
        macs, elements = self.macs[:-tail], self.elements[:-tail]
        return Shape([macs[0] + sum(self.macs[-tail:]), *macs[1:]], [e + elements[-1] for e in elements])


def _without_the_compiler() -> None:
    """torch keeps its compiler away from the counter, and loads all of it to do so: seconds, for nothing here."""
    counting = getattr(getattr(flop_counter, "_FlopCounterMode", None), "__torch_dispatch__", None)
    plain = getattr(counting, "__wrapped__", None)
    if plain is not None and not hasattr(plain, "__dynamo_disable"):
        plain.__dynamo_disable = plain


_without_the_compiler()


def shape_of(model: nn.Module, x: Inputs) -> Shape:
    """The blocks' costs and sizes, measured on the rows `x` in training mode."""
    counts, elements, rows = [], [], length(x)
    with callers_randomness(), sdpa_kernel(SDPBackend.MATH):  # the counter does not see into every fused attention
        for block in blocks_of(copy.deepcopy(model).train()):
            with FlopCounterMode(display=False) as counter, torch.enable_grad():
                recurrent = _Recurrent(block, counter)
                x = block(each(x, lambda t: t.detach().clone()) if isinstance(x, Tensor | dict) else x)
            recurrent.remove()
            counts.append((counter.get_total_flops() // 2 + recurrent.macs) // rows)
            elements.append(x.numel() // rows if isinstance(x, Tensor) else 0)
    return Shape(counts, elements)


class _Recurrent:
    """Recurrent layers by formula, less what the counter sees of them: all or nothing, by kind, type and device."""

    def __init__(self, block: nn.Module, counter: FlopCounterMode) -> None:
        self.macs, self._counter = 0, counter
        layers = [m for m in block.modules() if isinstance(m, nn.RNNBase)]
        self._handles = [layer.register_forward_pre_hook(self._enter) for layer in layers]
        self._handles += [layer.register_forward_hook(self._leave) for layer in layers]

    def _enter(self, *_: Any) -> None:
        self.macs += self._counter.get_total_flops() // 2

    def _leave(self, layer: nn.RNNBase, inputs: tuple[Any, ...], _: Any) -> None:
        steps = inputs[0].shape[0] * inputs[0].shape[1]  # positions of all sequences
        weights = sum(p.numel() for name, p in layer.named_parameters() if "weight" in name)
        self.macs += steps * weights - self._counter.get_total_flops() // 2

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
