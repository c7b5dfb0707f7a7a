"""What a round needs in memory, counted before it begins; and how many clients fit at a time.

    server halves    weights, a gradient row and optimizer memory, as many as the scheme says (`Traits.copies`)
    client halves    the same for every client of the round
    activations      what the passes under way save for their backward, measured on a few rows, and what their backward
                     needs beside that: the gradients of the largest of them, and of what crosses the cut
    steps            what an optimizer step needs for a moment: a vector for each moment, and one more
    testing          instead of activations and steps, while the model is tested: a few batches, and their outputs
    the model        the global weights, their next version, sums and gradients on their way: a handful of copies

Data, the interpreter and what clients keep between rounds (`kept_memory`) are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cutlayer.core.randomness import OwnRandomness
from cutlayer.engine.backend import Backend
from cutlayer.engine.evaluate import BATCH, GROUP
from cutlayer.engine.subject import Subject
from cutlayer.errors import ContractError
from cutlayer.nn.copies import twin
from cutlayer.nn.cut import blocks_of, in_order
from cutlayer.nn.flat import half
from cutlayer.nn.nested import Inputs, each, length, tensors
from cutlayer.schemes.traits import Traits

BESIDE = 4  # of the largest tensor: its gradient, the next one, and an operation's working memory
COPIES = 6  # of the whole model: W, the next W, the means' sums, an update's momentum
MIB = 2**20


@dataclass(frozen=True)
class Need:
    """The memory that a round needs, in bytes."""

    server: float
    fronts: float
    activations: float
    model: float
    steps: float = 0.0
    testing: float = 0.0

    @property
    def held(self) -> float:
        """What stays from step to step."""
        return self.server + self.fronts + self.model

    @property
    def total(self) -> float:
        return self.held + max(self.activations + self.steps, self.testing)

    @property
    def words(self) -> str:
        parts = (("server halves", self.server), ("client halves", self.fronts))
        step = (("activations", self.activations), ("steps", self.steps))
        test = self.testing > self.activations + self.steps
        more = (*((("testing", self.testing),) if test else step), ("the model", self.model))
        return ", ".join(f"{mib(size)} for {name}" for name, size in (*parts, *more))


def mib(size: float) -> str:
    """Return a size in MiB, rounded up so that the number given is enough."""
    digits = 3 if size < MIB else 1
    return f"{math.ceil(size / MIB * 10**digits) / 10**digits:,.{digits}f}"


class Saved(NamedTuple):
    """What consecutive blocks save for their backward, in bytes per sample, the largest of it, and their output."""

    kept: float
    largest: float
    out: Inputs

    @property
    def extra(self) -> float:
        """What their backward needs beside it: gradients, and an operation's own working memory."""
        return BESIDE * self.largest


def saved(model: nn.Module, which: Sequence[int], x: Inputs, device: torch.device) -> Saved:
    """Measure what consecutive blocks save for their backward."""
    part = half(twin(model), which, device)
    own = {t.untyped_storage().data_ptr() for block in part.blocks for t in (*block.parameters(), *block.buffers())}
    seen: dict[int, int] = {}

    def look(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with OwnRandomness(), torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(look, lambda t: t):
        out = in_order(part.blocks, each(x, lambda t: t.detach().clone()))
    n, largest = length(x), max([*seen.values(), *(t.nbytes for t in tensors(out))])
    return Saved(sum(seen.values()) / n, largest / n, each(out, torch.detach))


@dataclass(frozen=True)
class Sizes:
    """What was measured of a model and a run: bytes per sample, and of whole halves.

    front, back, last   what a client's blocks, the server's, and the last of a U-shape save; d_c, d_s: their weights
    smashed, row        what crosses the cut, and a sample;  out: the model's output with its label
    moments             of the clients' and of the server's optimizer
    attached            a client's pass goes through both halves before the next client's begins
    spare               more vectors for every client, of its front's and of its server half's size: kept gradients
    """

    batch: int
    traits: Traits
    moments: tuple[int, int]
    attached: bool
    spare: tuple[int, int]
    front: Saved
    back: Saved
    last: Saved
    halves: tuple[int, int]
    smashed: float
    row: float
    out: float
    item: int
    tail: bool

    def need(self, how: Backend, m: int) -> Need:
        """Return what a round of m clients needs. `how`: how many clients' passes are under way at once, and on how
        much an expression works."""
        front, back, last, traits, smashed = self.front, self.back, self.last, self.traits, self.smashed
        (d_c, d_s), workers = self.halves, how.workers
        here = min(m, how.size * workers.n)
        fronts = 1 if traits.carry == "relay" else m
        at_once = 1 if traits.order == "one_by_one" else m
        merged = traits.meets == "batch"
        backs = at_once if self.tail or merged else here  # kept until their clients have answered
        waiting = 0.0 if self.attached else (front.kept + 2 * smashed) * (fronts - min(here, fronts))
        pooled = 3 * smashed * at_once if merged or not traits.own_gradient else 0.0  # everybody's, as one batch
        beside = here * (front.extra + last.extra + self.row) + (at_once if merged else here) * back.extra + pooled
        passes = here * (front.kept + last.kept + 2 * smashed) + backs * back.kept + waiting
        part = workers.part * self.item
        each_row = max(min(part, d) * (1 + o) for d, o in zip(self.halves, self.moments, strict=True))
        return Need(
            server=(traits.server_copies(m, self.moments[1]) + m * self.spare[1]) * d_s,
            fronts=fronts * (2 + self.moments[0] + self.spare[0]) * d_c,
            activations=self.batch * (passes + beside),
            model=(COPIES + here) * (d_c + d_s),
            steps=workers.n * (1 if traits.halves == "one" else min(m, workers.together)) * each_row,
        )

    @property
    def tested(self) -> float:
        """Bytes for a row of a test batch: what its pass needs for a moment, and the outputs that are kept a while."""
        largest = max(self.front.largest, self.back.largest, self.last.largest)
        return self.row + BESIDE * largest + GROUP * self.out


def measured(
    subject: Subject,
    batch: int,
    traits: Traits,
    moments: tuple[int, int],
    attached: bool,
    spare: tuple[int, int],
) -> Sizes:
    """Measure a model on a few rows."""
    model, layout, cut, x, device = subject.model, subject.layout, subject.cuts[0], subject.x, subject.device
    blocks = blocks_of(model)
    front = saved(model, range(cut + 1), x, device)
    a = front.out
    back = saved(model, layout.server(cut), a, device)
    tail = range(layout.n - layout.tail, layout.n)
    last = saved(model, tail, back.out, device) if layout.tail else Saved(0.0, 0.0, x)
    d_c, d_s = (
        sum(p.numel() * p.element_size() for index in which for p in blocks[index].parameters())
        for which in (layout.client(cut), layout.server(cut))
    )
    out = last.out if layout.tail else back.out
    smashed, row, ends = (sum(t.nbytes for t in tensors(v)) / length(x) for v in (a, x, out))
    kinds = traits, moments, attached, spare
    item = subject.W.w.element_size()
    return Sizes(batch, *kinds, front, back, last, (d_c, d_s), smashed, row, ends + 8, item, bool(layout.tail))


@dataclass(frozen=True)
class Fit:
    """How a round fits into memory. Neither the stacks nor the rows depend on the number of threads.

    how       the backend: stacks so small that they fit, and as many threads as fit beside them
    group     clients that train at a time (None: all of a round)
    rows      rows of a test batch, at most
    testers   threads that test at once
    """

    how: Backend
    group: int | None
    rows: int
    testers: int


def fit(
    sizes: Callable[[], Sizes], how: Backend, limit: float | None, free: float | None, m: int, separate: bool
) -> Fit:
    """Fit a round of m clients into `limit` MiB, and its stacks into the `free` bytes of a device; refuse what cannot
    fit. `separate`: clients may train in groups."""
    n, one = how.workers.n, how.with_threads(1)
    limits = [] if limit is None or separate else [limit * MIB]
    for room in limits + ([] if free is None else [free]):
        one = shrunk(one, room, m, sizes)
    if limit is None:
        return Fit(one.with_threads(n), None, BATCH, n)
    here, room = sizes(), limit * MIB
    group = in_groups(limit, m, separate, lambda c: here.need(one, c), one.size)
    rows = max(1, min(BATCH, int((room - here.need(one, group or m).held) // here.tested)))
    found = one
    for threads in range(n, 1, -1):
        more = one.with_threads(threads)
        fits = most_that_fit(limit, m, lambda c, more=more: here.need(more, c))  # type: ignore[misc]
        if fits == m or (separate and fits >= threads * one.size):
            found, group = more, None if fits == m else fits // one.size * one.size
            break
    if found.workers.n < min(n, m):
        found = replace(found, asked=n)
    left = room - here.need(found, group or m).held
    return Fit(found, group, rows, max(1, min(found.workers.n, int(left // (rows * here.tested)))))


def shrunk(how: Backend, room: float, m: int, sizes: Callable[[], Sizes]) -> Backend:
    """Return the backend with stacks so small that a round of m clients, which step together, fits into `room` bytes;
    the loop, if not even two clients fit into one graph."""
    while how.size > 1 and sizes().need(how, m).total > room:
        how = replace(how, size=how.size // 2)
        if how.size == 1:
            return replace(how, name="loop", why="two clients in one graph do not fit into memory")
    return how


def in_groups(limit: float, m: int, separate: bool, count: Callable[[int], Need], unit: int) -> int | None:
    """Return how many clients fit into `limit` MiB, in whole stacks of `unit` if possible; None: all m of a round."""
    fits = most_that_fit(limit, m, count)
    if fits == m:
        return None
    if not separate or fits == 0:
        need = count(1 if separate else m)
        who = "even one client at a time" if separate else f"a round of {m} clients, which step together,"
        raise ContractError(
            f"memory_limit = {limit:g}: {who} needs {mib(need.total)} MiB ({need.words}); "
            "expected at least that, or fewer clients a round, a smaller batch, or more ranks"
        )
    return fits // unit * unit or fits


def most_that_fit(limit: float, m: int, count: Callable[[int], Need]) -> int:
    """Return how many clients of m fit into `limit` MiB."""
    fits, too_many = 0, m + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if count(middle).total <= limit * MIB else (fits, middle)
    return fits
