"""A client: open, forward, backward, close. The same object in every runtime; it never knows the scheme."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.data.source import Source
from cutlayer.feed import Indices
from cutlayer.flat import Rows
from cutlayer.messages import Address, CutGrad, Plan, Report, Smashed
from cutlayer.optim import Memory, step
from cutlayer.rng import seed_forward


@dataclass
class Seat:
    """Where a client computes: one row of a front's weights and of its optimizer's memory."""

    rows: Rows
    memory: Memory
    index: int


class Client:
    """Trains a front on data that never leaves it."""

    def __init__(self, id: int, source: Source) -> None:
        self.id = id
        self.source = source

    def open(self, plan: Plan, seat: Seat) -> None:
        """Begin a round: the seat's weights are W_c, its optimizer's memory is empty."""
        self.plan, self.seat, self.taken = plan, seat, 0
        self._batches: Iterator[Indices] = plan.feed.batches(len(self.source), plan.address.round, self.id)
        self._a: Tensor | None = None

    def forward(self) -> Smashed:
        """The next step's smashed data."""
        seat = self.seat
        seed_forward(self.plan.feed.seed, self.plan.address.round, self.id, self.taken, "client")
        x, y = self.source.take(next(self._batches), seat.rows.half.device)
        with torch.enable_grad():
            self._a = seat.rows.forward(seat.index, x)
        return Smashed(self._here(), self._a.detach(), y)

    def backward(self, reply: CutGrad) -> None:
        """Go on from the gradient at the cut: the front's gradient, and its own optimizer's step."""
        if reply.address != self._here() or self._a is None:
            return  # a doubled or stale reply changes nothing
        seat, plan = self.seat, self.plan
        if self._a.requires_grad:  # a front without parameters has nothing to learn
            seat.rows.backward(seat.index, self._a, reply.grad)
            w, g = seat.rows.w[seat.index], seat.rows.g[seat.index]
            plan.optimizer.regularise(g, w)
            step(plan.optimizer, seat.memory, seat.index, w, g, plan.eta)
        self._a = None
        self.taken += 1

    def close(self) -> Report:
        """End the round and hand in the front."""
        return Report(self.plan.address, self.seat.rows.row(self.seat.index), len(self.source))

    def _here(self) -> Address:
        return Address(self.plan.address.round, self.id, self.taken, self.plan.address.attempt)
