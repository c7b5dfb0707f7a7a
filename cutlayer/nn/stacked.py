"""Several copies of a half in one graph: torch.func.vmap over their rows. It is faster for small models and on a GPU.

Rows are used in place, so the rows of a stack must be neighbours. BatchNorm's statistics are copied out and back: vmap
would lose what it writes into parts of a longer row. `unstackable` tries beforehand whether vmap can compute a half.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from cutlayer.core.randomness import OwnRandomness, StackedRandomness
from cutlayer.nn.flat import Half, Rows, Vectors, Views
from cutlayer.nn.gradients import differentiate
from cutlayer.nn.nested import Inputs, each, parted, stacked

Loss = Callable[[Tensor, Tensor], Tensor]
SIZE = 10
"""Rows of a stack on a CPU: enough to share the cost of a call, few enough to leave stacks for several threads."""

_SAYING = threading.Lock()  # catch_warnings changes the filters of all threads, so one at a time may use it
KEEP = 256  # stacks kept for later steps; each holds views, and copies of the buffers


class Stack:
    """Neighbouring rows of a half, computed together."""

    def __init__(self, rows: Rows, which: Sequence[int]) -> None:
        self.rows, self._at = rows, slice(which[0], which[-1] + 1)
        assert list(which) == list(range(which[0], which[-1] + 1)), "rows that are no neighbours"
        state = Vectors(rows.w.data[self._at], rows.b[self._at], rows.i[self._at])
        leaves, b, i, g, _ = rows.half.views(state, rows.g.data[self._at])
        b, i = ([t.clone(memory_format=torch.contiguous_format) for t in kind] for kind in (b, i))
        self.views = Views(leaves, b, i, g)

    def forward(self, x: Inputs) -> Inputs:
        """Compute the output for x [n, batch, ...]: that of x[j] with row j of the stack. A half that draws random
        numbers draws them from the context that it is called in."""
        for mine, theirs in self._buffers():
            mine.copy_(theirs[self._at])
        half = self.rows.half.here()

        def one(tensors: Views, x: Inputs) -> Inputs:
            half.bind(tensors)
            out = half.apply(x)
            for _, module, name in half.reassigned(tensors):
                raise RuntimeError(f"{type(module).__name__} replaces its buffer {name!r} in its forward")
            return out

        try:
            out: Inputs = vmap(one, randomness=half.style.in_vmap)(self.views, x)
        finally:
            half.unbind()
        for mine, theirs in self._buffers():
            theirs[self._at] = mine
        return out

    def _buffers(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each buffer of this stack together with the buffer of all rows that it is a copy of."""
        for kind, rows, slots in zip(
            (self.views.b, self.views.i), (self.rows.b, self.rows.i), self.rows.half.slots[1:], strict=True
        ):
            yield from ((mine, slot.of(rows)) for mine, slot in zip(kind, slots, strict=True))


class Stacks:
    """The stacks over some rows; each set of rows that steps together gets its stack once."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._made: dict[tuple[int, ...], Stack] = {}
        self._lock = threading.Lock()

    def of(self, which: Sequence[int]) -> Stack:
        key = tuple(which)
        with self._lock:
            if key not in self._made:
                if len(self._made) >= KEEP:  # as clients finish, other sets step together
                    self._made.pop(next(iter(self._made)))
                self._made[key] = Stack(self.rows, which)
            return self._made[key]


def together(rows: Sequence[int], samples: Sequence[int], size: int) -> list[list[int]]:
    """Group places into stacks: neighbouring rows with batches of one size, none across a multiple of `size`."""
    if size == 1:
        return [[place] for place in range(len(rows))]
    groups: list[list[int]] = []
    for place in sorted(range(len(rows)), key=lambda place: rows[place]):
        last = groups[-1][-1] if groups else None
        beside = last is not None and rows[place] == rows[last] + 1 and rows[place] % size != 0
        if last is not None and beside and samples[place] == samples[last]:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def each_loss(loss: Loss, out: Tensor, y: Tensor) -> Tensor:
    """The loss of every row, [n]."""
    if loss is functional.cross_entropy and out.ndim == 3 and y.ndim == 2:
        every = functional.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none")
        return every.view(y.shape).mean(dim=1)
    return torch.stack([loss(o, t) for o, t in zip(out.unbind(), y.unbind(), strict=True)])


def unstackable(half: Half, state: Vectors, x: Inputs, autocast: bool) -> str | None:
    """Return why a half cannot be stacked, found by trying it on one batch with two rows; None if it can."""
    modules = [module for block in half.blocks for module in block.modules()]
    if any(not getattr(block, "stackable", True) for block in half.blocks):
        return "a model of transformers prepares its masks by looking at their values"
    if any(isinstance(module, nn.RNNBase) for module in modules):
        return "vmap has no rule for recurrent layers"
    if autocast and any(isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) for module in modules):
        return "autocast does not reach convolutions under vmap"
    rows = Rows(half, 2)
    rows.fill(state, 2)
    with torch.enable_grad():
        with OwnRandomness(1):
            alone, _ = parted(rows.forward(0, each(x, torch.clone)))
        if alone.requires_grad:
            differentiate(alone.sum(), [rows.views[0]])
        expected, b = rows.g[0].clone(), rows.b[0].clone()
        rows.fill(state, 2)
        try:
            stack = Stack(rows, [0, 1])
            with _SAYING, warnings.catch_warnings(record=True) as said, StackedRandomness([0, 1]):
                warnings.simplefilter("always")
                out, _ = parted(stack.forward(stacked([x, x])))
                if out.requires_grad:
                    differentiate(out.sum(), [stack.views])
            if any("batching rule" in str(warning.message) for warning in said):
                return "vmap has no rule for one of its operations"
            after = [row.clone() for row in (rows.g[1], rows.b[1])]
            if autocast:
                # the input may come from another half in bfloat16
                short = each(x, lambda t: t.bfloat16() if t.is_floating_point() else t)
                with torch.autocast(half.device.type, torch.bfloat16), StackedRandomness([0, 1]):
                    stack.forward(stacked([x, x]))
                    stack.forward(stacked([short, short]))
        except Exception as error:  # vmap and a user's model may raise anything
            return str(error).splitlines()[0]
        finally:
            half.unbind()
    close = _close(out[1], alone) and _close(after[0], expected) and _close(after[1], b)
    return None if close else "it computes something else under torch.func.vmap"


def _close(one: Tensor, other: Tensor) -> bool:
    tolerance = 1e-3 if one.dtype == torch.float32 else 1e-2 if one.itemsize < 4 else 1e-7
    scale = float(other.detach().abs().max()) if other.numel() else 0.0
    return bool(torch.allclose(one, other, rtol=tolerance, atol=tolerance * scale + 1e-12, equal_nan=True))
