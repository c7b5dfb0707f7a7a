"""What a round needs in memory, counted before it begins; and how many clients fit at a time.

    server halves    weights, a gradient row and optimizer memory, as many as the scheme says (`Traits.copies`)
    client halves    the same for every client of the round
    activations      what the passes under way save for their backward, measured on a few rows
    the model        the global weights, their next version, sums and gradients on their way: a handful of copies

Data, the interpreter and what clients keep between rounds (`kept_memory`) are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cutlayer.core.randomness import OwnRandomness
from cutlayer.engine.subject import Subject
from cutlayer.errors import ContractError
from cutlayer.nn.copies import twin
from cutlayer.nn.cut import blocks_of, in_order
from cutlayer.nn.flat import half
from cutlayer.nn.nested import Inputs, each, length, tensors
from cutlayer.schemes.traits import Traits

COPIES = 6  # of the whole model: W, the next W, the means' sums, an update's momentum
MIB = 2**20


@dataclass(frozen=True)
class Need:
    """The memory that a round needs, in bytes."""

    server: float
    fronts: float
    activations: float
    model: float

    @property
    def total(self) -> float:
        return self.server + self.fronts + self.activations + self.model

    @property
    def words(self) -> str:
        parts = (("server halves", self.server), ("client halves", self.fronts))
        more = (("activations", self.activations), ("the model", self.model))
        return ", ".join(f"{mib(size)} for {name}" for name, size in (*parts, *more))


def mib(size: float) -> str:
    """Return a size in MiB, rounded up so that the number given is enough."""
    digits = 3 if size < MIB else 1
    return f"{math.ceil(size / MIB * 10**digits) / 10**digits:,.{digits}f}"


def saved(model: nn.Module, which: Sequence[int], x: Inputs, device: torch.device) -> tuple[float, Inputs]:
    """Return the bytes per sample that consecutive blocks save for their backward, and their output."""
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
    return sum(seen.values()) / length(x), each(out, torch.detach)


def counter(
    subject: Subject,
    batch: int,
    traits: Traits,
    moments: tuple[int, int],
    flight: int,
    attached: bool,
    spare: tuple[int, int],
) -> Callable[[int], Need]:
    """Return a function from m clients to what a round of them needs.

    moments     of the clients' and of the server's optimizer
    flight      how many clients' passes are under way at once
    attached    a client's pass goes through both halves before the next client's begins
    spare       more vectors for every client, of its front's and of its server half's size: gradients that are kept
    """
    model, layout, cut, x, device = subject.model, subject.layout, subject.cuts[0], subject.x, subject.device
    blocks = blocks_of(model)
    front, a = saved(model, range(cut + 1), x, device)
    back, z = saved(model, layout.server(cut), a, device)
    last = saved(model, range(layout.n - layout.tail, layout.n), z, device)[0] if layout.tail else 0.0
    d_c, d_s = (
        sum(p.numel() * p.element_size() for index in which for p in blocks[index].parameters())
        for which in (layout.client(cut), layout.server(cut))
    )
    smashed = sum(t.nbytes for t in tensors(a)) / length(x)

    def count(m: int) -> Need:
        here = min(m, flight)
        fronts = 1 if traits.carry == "relay" else m
        at_once = 1 if traits.order == "one_by_one" else m
        backs = at_once if layout.tail or traits.meets == "batch" else here  # kept until their clients have answered
        waiting = 0.0 if attached else (front + 2 * smashed) * (fronts - min(here, fronts))
        return Need(
            server=(traits.server_copies(m, moments[1]) + m * spare[1]) * d_s,
            fronts=fronts * (2 + moments[0] + spare[0]) * d_c,
            activations=batch * (here * (front + last + 2 * smashed) + backs * back + waiting),
            model=(COPIES + here) * (d_c + d_s),
        )

    return count


def group(limit: float, m: int, separate: bool, count: Callable[[int], Need], unit: int) -> int | None:
    """Return how many clients fit into `limit` MiB, in whole stacks of `unit` if possible; None: all m of a round."""
    if count(m).total <= limit * MIB:
        return None
    least = 1 if separate else m
    if count(least).total > limit * MIB:
        need = count(least)
        who = "even one client at a time" if separate else f"a round of {m} clients, which step together,"
        raise ContractError(
            f"memory_limit = {limit:g}: {who} needs {mib(need.total)} MiB ({need.words}); "
            "expected at least that, or fewer clients a round, a smaller batch, or more ranks"
        )
    fits, too_many = least, m
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if count(middle).total <= limit * MIB else (fits, middle)
    return fits // unit * unit or fits
