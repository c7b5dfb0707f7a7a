"""Flat rows: a model's state as three vectors, and n copies of a half as the rows of one tensor.

    w  [d]  the trainable parameters, in block order, so that any cut is an offset
    b  [e]  the floating buffers (BatchNorm's running statistics)
    i  [c]  the int64 buffers (BatchNorm's batch counters)

Frozen parameters, buffers that are not persistent (so not part of a model's state) and buffers of other types are
constants: they stay in the blocks and are in no vector.
Broadcasting is one copy; averaging and momentum are one expression on rows. A vector holds the kernels of a
convolution in `channels_last` order, so that no step has to reorder them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cutlayer.core.randomness import Randomness
from cutlayer.nn.copies import twins
from cutlayer.nn.cut import checked_blocks, in_order
from cutlayer.nn.nested import Inputs, each
from cutlayer.nn.state import Dtypes, channels_last_is_safe, dtypes_of, kind_of, put, tensors_of


class Vectors(NamedTuple):
    """The state of a model, or of a half: parameters, floating buffers, counters."""

    w: Tensor
    b: Tensor
    i: Tensor

    def clone(self) -> Vectors:
        return Vectors(*(v.clone() for v in self))

    def split(self, at: Vectors | tuple[int, int, int]) -> tuple[Vectors, Vectors]:
        """Return the two halves at an offset, as views."""
        pairs = [(v[:o], v[o:]) for v, o in zip(self, at, strict=True)]
        return Vectors(*(p[0] for p in pairs)), Vectors(*(p[1] for p in pairs))

    @property
    def nbytes(self) -> int:
        return sum(v.nbytes for v in self)


class Slot(NamedTuple):
    """One tensor's place in a vector, and every (module, attribute) that uses it."""

    start: int
    stop: int
    shape: torch.Size
    last: bool  # channels last: the kernels of a convolution
    places: list[tuple[nn.Module, str]]

    def of(self, vectors: Tensor) -> Tensor:
        """Return this tensor's part of a vector [d], or of rows [n, d], in the tensor's shape."""
        part = vectors[..., self.start : self.stop]
        lead = part.shape[:-1]
        if not self.last:
            return part.view((*lead, *self.shape))
        out, into, *kernel = self.shape
        return part.view(*lead, out, *kernel, into).movedim(-1, len(lead) + 1)


class Views(NamedTuple):
    """Views of one row (or of several, stacked): the tensors that modules compute with, and where gradients go."""

    w: list[nn.Parameter]
    b: list[Tensor]
    i: list[Tensor]
    g: list[Tensor]
    again: Sequence[tuple[nn.Parameter, Tensor]] = ()  # parameters of two stages: their gradients are added up


@dataclass(frozen=True)
class Style:
    """How the blocks compute: what they draw at random, the shorter dtype, if any, of an autocast forward (its output
    has the model's dtype), and whether torch compiles them."""

    randomness: Randomness = "own"
    autocast: torch.dtype | None = None
    compile: bool = False

    @property
    def in_vmap(self) -> str:
        """What torch.func.vmap is told of draws: each client has its own, or there are none."""
        return "different" if self.randomness == "own" else "error"


class Half:
    """Some blocks as a function of rows. It takes over the blocks: they compute with the row that is bound to them.

    `stages`: groups of blocks, by their places; the blocks of a stage are computed one after another. Usually all
    blocks are one stage; a half that consists of the front and the tail of a model has two.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        device: torch.device,
        dtypes: Dtypes | None = None,
        style: Style | None = None,
        last: bool | None = None,
        template: Sequence[nn.Module] | None = None,
        stages: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.style = style or Style()
        self.blocks = list(blocks)
        self.stages = stages or [range(len(self.blocks))]
        if any(t.device != device for block in blocks for _, _, t in tensors_of(block)):
            self.blocks = list(nn.Sequential(*blocks).to(device))
        self.device = device
        self.last = channels_last_is_safe(self.blocks) if last is None else last
        self.images = self.last and any(isinstance(m, nn.Conv2d) for block in self.blocks for m in block.modules())
        self.slots: tuple[list[Slot], list[Slot], list[Slot]] = ([], [], [])
        self.ends: list[tuple[int, int, int]] = []  # the three offsets at which each block ends
        seen: dict[int, Slot] = {}
        for block in self.blocks:
            for module, name, tensor in tensors_of(block):
                kind = kind_of(module, name, tensor)
                if kind is None:
                    continue
                slots = self.slots[kind]
                if id(tensor) not in seen:
                    start = slots[-1].stop if slots else 0
                    kernels = self.last and isinstance(module, nn.Conv2d) and name == "weight"
                    seen[id(tensor)] = Slot(start, start + tensor.numel(), tensor.shape, kernels, [])
                    slots.append(seen[id(tensor)])
                seen[id(tensor)].places.append((module, name))
            self.ends.append(self.sizes)
        self.dtypes: Dtypes = dtypes or dtypes_of(self.blocks)
        self._bound: Views | None = None
        self._programs: dict[int, Callable[[Inputs], Inputs]] = {}
        self._twins: dict[int, Half] = {threading.get_ident(): self}
        self._template = template
        self._mode: bool | None = None
        self.takes: Sequence[str] = ()  # where several tensors cross the cut before it: their names
        self.returns = True  # whether the half before the cut needs a gradient

    @property
    def sizes(self) -> tuple[int, int, int]:
        w, b, i = (slots[-1].stop if slots else 0 for slots in self.slots)
        return w, b, i

    def zeros(self, *rows: int) -> Vectors:
        """Return vectors of this half (or [rows, ...] of them), filled with zeros."""
        made = (
            torch.zeros(*rows, n, dtype=t, device=self.device) for n, t in zip(self.sizes, self.dtypes, strict=True)
        )
        return Vectors(*made)

    def read(self) -> Vectors:
        """Return a copy of what the blocks hold now."""
        out = self.zeros()
        for vector, slots in zip(out, self.slots, strict=True):
            for slot in slots:
                module, name = slot.places[0]
                slot.of(vector).copy_(getattr(module, name).detach())
        return out

    @torch.no_grad()
    def write(self, state: Vectors) -> None:
        """Copy `state` into the tensors the blocks hold."""
        for vector, slots in zip(state, self.slots, strict=True):
            for slot in slots:
                module, name = slot.places[0]
                getattr(module, name).copy_(slot.of(vector))

    def views(self, row: Vectors, g: Tensor | None = None) -> Views:
        """Return views that share memory with `row` (a vector, or rows). `g`: the vector or rows for gradients."""
        w, b, i = ([slot.of(v) for slot in slots] for v, slots in zip(row, self.slots, strict=True))
        leaves = [nn.Parameter(t, requires_grad=g is not None) for t in w]
        return Views(leaves, b, i, [] if g is None else [slot.of(g) for slot in self.slots[0]])

    def bind(self, views: Views) -> None:
        """Make the blocks compute with these tensors."""
        if self._bound is views:
            return
        tensors: Sequence[Sequence[Tensor]] = views[:3]
        for kind, slots in zip(tensors, self.slots, strict=True):
            for tensor, slot in zip(kind, slots, strict=True):
                for module, name in slot.places:
                    put(module, name, tensor)
        self._bound = views

    def unbind(self) -> None:
        """Forget what is bound, so that the next call binds again."""
        self._bound = None

    def inputs(self, a: Tensor, more: Sequence[Tensor]) -> Inputs:
        """Return what crosses the cut before this half as its input: the activations, and the tensors beside them."""
        return dict(zip(self.takes, (a, *more), strict=True)) if more else a

    def __call__(self, x: Inputs, views: Views, stage: int = 0) -> Inputs:
        """Compute the output of a stage in this thread's own copy of the blocks."""
        here = self.here()
        here.bind(views)
        out = here.apply(x, stage)
        for tensor, module, name in here.reassigned(views):
            tensor.data.copy_(getattr(module, name).detach())  # .data: other views of the row may await their backward
            put(module, name, tensor)
        return out

    def apply(self, x: Inputs, stage: int = 0) -> Inputs:
        """Apply a stage's blocks in order, with the tensors that are bound."""
        if self.style.autocast is None:
            return self._program(stage)(x)
        with torch.autocast(self.device.type, self.style.autocast):
            out = self._program(stage)(x)
        return each(out, lambda t: t.to(self.dtypes[0]) if t.is_floating_point() else t)

    def _program(self, stage: int) -> Callable[[Inputs], Inputs]:
        """The blocks of a stage as one function, made once."""
        if stage not in self._programs:
            plain = functools.partial(in_order, [self.blocks[place] for place in self.stages[stage]])
            self._programs[stage] = torch.compile(plain) if self.style.compile else plain
        return self._programs[stage]

    def leaves(self, views: Views, stage: int) -> Views:
        """The parameters of a stage, and where their gradients go. The stages are differentiated last to first; a
        parameter of two stages has its gradient from the later one already when it comes to the earlier one."""
        if len(self.stages) == 1:
            return views
        where = self._where
        mine = [i for i, stages in enumerate(where) if max(stages) == stage]
        again = [(views.w[i], views.g[i]) for i, stages in enumerate(where) if stage in stages and max(stages) > stage]
        return Views([views.w[i] for i in mine], [], [], [views.g[i] for i in mine], again)

    @functools.cached_property
    def _where(self) -> list[set[int]]:
        """The stages that use each parameter."""
        inside = [{id(module) for place in places for module in self.blocks[place].modules()} for places in self.stages]
        return [
            {stage for stage, modules in enumerate(inside) if any(id(module) in modules for module, _ in slot.places)}
            for slot in self.slots[0]
        ]

    def reassigned(self, views: Views) -> Iterator[tuple[Tensor, nn.Module, str]]:
        """Yield the bound buffers that a block has replaced instead of writing into them."""
        for tensors, slots in ((views.b, self.slots[1]), (views.i, self.slots[2])):
            for tensor, slot in zip(tensors, slots, strict=True):
                module, name = slot.places[0]
                if getattr(module, name) is not tensor:
                    yield tensor, module, name

    def here(self) -> Half:
        """Return this thread's copy of the half: separate modules to bind, with the same tensors."""
        if self._template is None:  # copy it for other threads now: a forward may leave things in modules
            self._template = _twin_of(self.blocks)
        found = self._twins.get(threading.get_ident())
        if found is None:
            twin = _twin_of(self._template)
            found = Half(twin, self.device, self.dtypes, self.style, self.last, self._template, self.stages)
            if self._mode is not None:
                found.train(self._mode)
            self._twins[threading.get_ident()] = found
        return found

    def train(self, mode: bool) -> None:
        self._mode = mode
        for twin in self._twins.values():
            for block in twin.blocks:
                block.train(mode)


class Rows:
    """n copies of a half: `w, b, i` of shape [n, ...], a gradient row for each, and their views."""

    def __init__(self, half: Half, n: int) -> None:
        self.half = half
        self.w, self.b, self.i = half.zeros(n)
        self.g = torch.zeros_like(self.w)
        self.views: list[Views] = []
        for j in range(n):
            # .data gives each row its own version counter: an in-place step on one row must not
            # look to autograd like a change of the others, whose graphs may still be waiting.
            row = Vectors(self.w[j].data, self.b[j].data, self.i[j].data)
            self.views.append(half.views(row, self.g[j].data))

    def __len__(self) -> int:
        return len(self.views)

    def fill(self, start: Vectors, n: int) -> None:
        """Make the first n rows copies of `start`."""
        for rows, vector in zip((self.w, self.b, self.i), start, strict=True):
            rows[:n] = vector

    def put(self, j: int, start: Vectors) -> None:
        """Make row j a copy of `start`."""
        for rows, vector in zip((self.w, self.b, self.i), start, strict=True):
            rows[j] = vector

    def row(self, j: int) -> Vectors:
        return Vectors(self.w[j], self.b[j], self.i[j])

    def forward(self, j: int, x: Inputs, stage: int = 0) -> Inputs:
        """Compute the half's output with row j."""
        return self.half(x, self.views[j], stage)

    def leaves(self, j: int, stage: int = 0) -> Views:
        return self.half.leaves(self.views[j], stage)


def half(model: nn.Module, which: Sequence[int], device: torch.device, style: Style | None = None) -> Half:
    """Return the half of a model that consists of the blocks `which`, given in the order of their weights.

    It has separate modules, in training mode; the model itself is their template and must not be run. Consecutive
    blocks are one stage. The vectors have the dtypes of the whole model.
    """
    blocks = checked_blocks(model)
    template = [blocks[index] for index in which]
    stages: list[list[int]] = []
    for index in sorted(which):
        if index - 1 not in which:
            stages.append([])
        stages[-1].append(list(which).index(index))
    moves = any(t.device != device for block in template for _, _, t in tensors_of(block))
    mine = twins(template) if moves else _twin_of(template)
    last = channels_last_is_safe(blocks)
    made = Half(mine, device, dtypes_of(blocks), style, last, None if moves else template, stages)
    made.train(True)
    return made


def _twin_of(blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Return copies of the blocks that share the tensors to be bound; constants are copied."""
    bound = (t for block in blocks for module, name, t in tensors_of(block) if kind_of(module, name, t) is not None)
    return twins(blocks, shared=bound)
