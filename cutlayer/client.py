"""A client: open, forward, backward, close. The same object in every runtime; it never knows the scheme."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.data.source import Source
from cutlayer.feed import Indices
from cutlayer.flat import Rows, Vectors
from cutlayer.local import clip, clips, joint, regularise, squared
from cutlayer.messages import Address, CutGrad, Momentum, Plan, Report, Smashed, Square
from cutlayer.optim import Memory, Moments, step
from cutlayer.rng import address, rng, seed_forward


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
        """Begin a round: with the weights and memory of the plan, or with those it kept, or with empty memory."""
        self.plan, self.seat, self.taken, self.tried, self.clipped = plan, seat, 0, 0, 0
        own = plan.own
        start = plan.start or Vectors(own["w"], own["b"], own["i"])
        seat.rows.put(seat.index, start)
        self.w0 = start.w.to(seat.rows.w.device)
        if plan.memory is not None:
            seat.memory.put(seat.index, plan.memory)
        elif "t" in own:
            seat.memory.put(seat.index, Moments.read(own))
        else:
            seat.memory.reset(seat.index)
        self.place = int(own["place"]) if "place" in own else 0
        self._batches: Iterator[Indices] = plan.feed.batches(len(self.source), plan.address.round, self.id, self.place)
        self._a: Tensor | None = None

    def forward(self) -> Smashed:
        """The next step's smashed data."""
        seat = self.seat
        seed_forward(self.plan.feed.seed, self.plan.address.round, self.id, self.taken, "client")
        draw = functools.partial(rng, self.plan.feed.seed, self.plan.address.round, self.id, f"augment/{self.taken}")
        x, y = self.source.take(next(self._batches), seat.rows.half.device, draw)
        with torch.enable_grad():
            self._a = seat.rows.forward(seat.index, x)
        return Smashed(self._here(), self._noisy(self._a.detach()), y)

    def backward(self, reply: CutGrad) -> Square | None:
        """Go on from the gradient at the cut: the front's gradient, and its own optimizer's step.

        What it sends back is its half of a joint norm, where the plan's local rule has one.
        """
        if reply.address != self._here() or self._a is None:
            return None  # a doubled or stale reply changes nothing
        seat, plan, own = self.seat, self.plan, 0.0
        if self._a.requires_grad:  # a front without parameters has nothing to learn
            seat.rows.backward(seat.index, self._a, reply.grad)
            w, g = seat.rows.w[seat.index], seat.rows.g[seat.index]
            regularise(plan.local, plan.optimizer, g, w, self.w0)
            if plan.local is not None and clips(plan.local):
                own = squared(g)
                self.tried += 1
                self.clipped += clip(plan.local, g, own + (reply.square or 0.0))
            step(plan.optimizer, seat.memory, seat.index, w, g, plan.eta)
        self._a = None
        self.taken += 1
        return Square(reply.address, own) if joint(plan.local) else None

    def momentum(self) -> Momentum:
        """Its optimizer's moments as they are now."""
        return Momentum(self._here(), self.seat.memory.get(self.seat.index).m)

    def adopt(self, fused: Momentum) -> None:
        """Take these moments over."""
        if fused.address == self._here():
            self.seat.memory.put(self.seat.index, Moments(fused.m, self.seat.memory.t[self.seat.index]))

    def close(self) -> Report:
        """End the round and hand in the front."""
        plan, seat = self.plan, self.seat
        return Report(
            plan.address,
            seat.rows.row(seat.index),
            len(self.source),
            seat.memory.get(seat.index),
            self.place + self.taken,
            self.tried,
            self.clipped,
            plan.keeps_half,
            plan.shares_memory,
        )

    def _noisy(self, a: Tensor) -> Tensor:
        """Each sample's activations plus Gaussian noise whose expected norm is `noise` times theirs."""
        if not self.plan.noise or not a.is_floating_point():
            return a
        generator = torch.Generator()
        use = f"noise/{self.taken}"
        generator.manual_seed(address(self.plan.feed.seed, self.plan.address.round, self.id, use))
        z = torch.randn(a.shape, generator=generator, dtype=a.dtype).to(a.device)
        rms = a.flatten(1).square().mean(dim=1).sqrt()
        return a + self.plan.noise * rms.reshape(-1, *[1] * (a.ndim - 1)) * z

    def _here(self) -> Address:
        return Address(self.plan.address.round, self.id, self.taken, self.plan.address.attempt)
