"""The cost of each block for one sample, in multiply-accumulates (MACs) of its forward, and the size of its output.

Training takes three times the MACs of the forward.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from cutlayer.core.randomness import OwnRandomness
from cutlayer.nn.copies import twin
from cutlayer.nn.cut import checked_blocks
from cutlayer.nn.nested import Inputs, each, length, parted

TRAINING = 3  # forward 1, backward 2
ATEN = torch.ops.aten
FORMULAS: dict[Any, Any] = {
    **flop_registry,
    ATEN._scaled_dot_product_flash_attention_for_cpu: flop_registry[ATEN._scaled_dot_product_flash_attention],
}


class Shape(NamedTuple):
    """For each block and one sample: the MACs of the forward, and the elements of the output."""

    macs: list[int]
    elements: list[int]

    def folded(self, tail: int) -> Shape:
        """Return the shape with the last `tail` blocks, which are the client's too, folded into the others: their MACs
        count with the first block, and their input is sent in addition to the output of the front."""
        if not tail:
            return self
        macs, elements = self.macs[:-tail], self.elements[:-tail]
        return Shape([macs[0] + sum(self.macs[-tail:]), *macs[1:]], [e + elements[-1] for e in elements])


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up MACs with torch's formulas. (torch's own counter is not used: it watches the modules of all threads.)"""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch loads its whole compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = FORMULAS.get(func._overloadpacket)
        if formula is not None:
            self.macs += formula(*args, **(kwargs or {}), out_val=out) // 2  # it counts multiply and add as two
        return out


def shape_of(model: nn.Module, x: Inputs) -> Shape:
    """Measure the blocks' costs and output sizes on the rows `x` in training mode."""
    counts, elements, rows = [], [], length(x)
    blocks = checked_blocks(twin(model).train())
    with OwnRandomness():
        for block in blocks:
            with _Counter() as counter, torch.enable_grad():
                recurrent = _Recurrent(block, counter)
                x = block(each(x, lambda t: t.detach().clone()) if isinstance(x, Tensor | dict) else x)
            recurrent.remove()
            counts.append((counter.macs + recurrent.macs) // rows)
            elements.append(_crossing(x) // rows)
    return Shape(counts, elements)


def _crossing(x: Any) -> int:
    """Return the elements of what a block gives. A tensor beside the activations crosses a cut once, not twice, so it
    counts half its bytes, in elements of 32 bits."""
    if not isinstance(x, Tensor | dict):
        return 0
    a, more = parted(x)
    return a.numel() + sum(t.nbytes for t in more) // 8


class _Recurrent:
    """Counts recurrent layers by formula, less what the counter has already counted of them, which depends on the kind
    of layer, the dtype and the device."""

    def __init__(self, block: nn.Module, counter: _Counter) -> None:
        self.macs, self._counter = 0, counter
        layers = [m for m in block.modules() if isinstance(m, nn.RNNBase)]
        self._handles = [layer.register_forward_pre_hook(self._enter) for layer in layers]
        self._handles += [layer.register_forward_hook(self._leave) for layer in layers]

    def _enter(self, *_: Any) -> None:
        self.macs += self._counter.macs

    def _leave(self, layer: nn.RNNBase, inputs: tuple[Any, ...], _: Any) -> None:
        steps = inputs[0].shape[0] * inputs[0].shape[1]  # positions of all sequences
        weights = sum(p.numel() for name, p in layer.named_parameters() if "weight" in name)
        self.macs += steps * weights - self._counter.macs

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
