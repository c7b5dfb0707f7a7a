"""Many copies of a half in one graph: torch.func.vmap over their rows. It pays for small models, and on a GPU.

Rows that lie side by side are used where they lie; others are copied together, and their gradients copied back, as
BatchNorm's statistics always are: vmap would lose what it writes into parts of a longer row. What vmap cannot do,
`unstackable` finds out beforehand by trying it.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from cutlayer.flat import Half, Rows, Vectors, Views, differentiate
from cutlayer.nested import Inputs, each

Loss = Callable[[Tensor, Tensor], Tensor]
SIZE = 10
"""Rows of a stack on a CPU: enough to share the cost of a call, few enough for several threads to have some each."""

KEEP = 256  # stacks that are kept for later steps


class Stack:
    """Some rows of a half as one."""

    def __init__(self, rows: Rows, which: Sequence[int]) -> None:
        self.rows, self.which = rows, list(which)
        first, n = which[0], len(which)
        self.beside = self.which == list(range(first, first + n))
        self._at = slice(first, first + n) if self.beside else torch.tensor(self.which, device=rows.w.device)
        self.w, self.g = rows.w.data[self._at], rows.g.data[self._at]  # views of rows that lie side by side, or copies
        leaves, b, i, g = rows.half.views(Vectors(self.w, rows.b[self._at], rows.i[self._at]), self.g)
        b, i = ([t.clone(memory_format=torch.contiguous_format) for t in kind] for kind in (b, i))
        self.views = Views(leaves, b, i, g)

    def forward(self, x: Inputs) -> Tensor:
        """[n, batch, ...] through the half, the copy in row j on x[j]."""
        if not self.beside:
            self.w.copy_(self.rows.w[self._at])
        for mine, theirs in self._buffers():
            mine.copy_(theirs[self._at])
        half = self.rows.half.here()

        def one(tensors: Views, x: Inputs) -> Tensor:
            half.bind(tensors)
            out = half.apply(x)
            for _, module, name in half.reassigned(tensors):
                raise RuntimeError(f"{type(module).__name__} replaces its buffer {name!r} in its forward")
            return out

        try:
            out: Tensor = vmap(one)(self.views, x)
        finally:
            half.unbind()
        for mine, theirs in self._buffers():
            theirs[self._at] = mine
        return out

    def _buffers(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each buffer here, and where it is kept, of all rows."""
        for kind, rows, slots in zip(
            (self.views.b, self.views.i), (self.rows.b, self.rows.i), self.rows.half.slots[1:], strict=True
        ):
            yield from ((mine, slot.of(rows)) for mine, slot in zip(kind, slots, strict=True))

    def settle(self) -> None:
        """After `differentiate`: the gradients are in the rows' own places."""
        if not self.beside:
            self.rows.g[self._at] = self.g


class Stacks:
    """The stacks of some rows, made once for each set that steps together."""

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
    """Which places go into one stack: at most `size` rows of one neighbourhood, with batches of one size."""
    if size == 1:
        return [[place] for place in range(len(rows))]
    groups: dict[tuple[int, int], list[int]] = {}
    for place in sorted(range(len(rows)), key=lambda place: rows[place]):
        groups.setdefault((rows[place] // size, samples[place]), []).append(place)
    return list(groups.values())


def stacked(batches: Sequence[Inputs]) -> Inputs:
    """Batches of one shape as one, [n, batch, ...]."""
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.stack([batch for batch in batches if isinstance(batch, Tensor)])
    return {key: torch.stack([batch[key] for batch in batches if not isinstance(batch, Tensor)]) for key in first}


def each_loss(loss: Loss, out: Tensor, y: Tensor) -> Tensor:
    """The loss of every row, [n]."""
    if loss is functional.cross_entropy and out.ndim == 3 and y.ndim == 2:
        every = functional.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none")
        return every.view(y.shape).mean(dim=1)
    return torch.stack([loss(o, t) for o, t in zip(out.unbind(), y.unbind(), strict=True)])


def unstackable(half: Half, state: Vectors, x: Inputs) -> str | None:
    """Why a half cannot be stacked, found by trying it on one batch with two rows; None: it can."""
    if any(isinstance(module, nn.RNNBase) for block in half.blocks for module in block.modules()):
        return "vmap has no rule for recurrent layers"
    rows = Rows(half, 2)
    rows.fill(state, 2)
    torch.default_generator.manual_seed(0)
    before = torch.random.get_rng_state()
    with torch.enable_grad():
        alone = rows.forward(0, each(x, torch.clone))
        if not torch.equal(before, torch.random.get_rng_state()):
            return "it draws random numbers in its forward"
        if alone.requires_grad:
            differentiate(alone.sum(), [rows.views[0]])
        expected, b = rows.g[0].clone(), rows.b[0].clone()
        rows.fill(state, 2)
        try:
            stack = Stack(rows, [0, 1])
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                out = stack.forward(stacked([x, x]))
                if out.requires_grad:
                    differentiate(out.sum(), [stack.views])
            if any("batching rule" in str(warning.message) for warning in said):
                return "vmap has no rule for one of its operations"
        except Exception as error:  # whatever vmap or a model of the user's may raise
            return str(error).splitlines()[0]
        finally:
            half.unbind()
    close = _close(out[1], alone) and _close(rows.g[1], expected) and _close(rows.b[1], b)
    return None if close else "it computes something else under torch.func.vmap"


def _close(one: Tensor, other: Tensor) -> bool:
    tolerance = 1e-3 if one.dtype == torch.float32 else 1e-2 if one.itemsize < 4 else 1e-7
    scale = float(other.detach().abs().max()) if other.numel() else 0.0
    return bool(torch.allclose(one, other, rtol=tolerance, atol=tolerance * scale + 1e-12, equal_nan=True))
