"""A client, which handles one message after another. It is the same in every runtime, and never knows the scheme."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from cutlayer.clients.messages import (
    Address,
    Adopt,
    CutGrad,
    Down,
    FeatureGrad,
    Features,
    Finish,
    Live,
    Momentum,
    NextStep,
    Plan,
    Report,
    Smashed,
    Square,
    Up,
)
from cutlayer.core.devices import onto
from cutlayer.core.randomness import address, forward_randomness, rng
from cutlayer.core.threads import Workers
from cutlayer.data.schedule import Indices, MicroBatch
from cutlayer.data.source import Source
from cutlayer.errors import ClientError, CutlayerError
from cutlayer.nn.cut import takes_beside
from cutlayer.nn.flat import Rows
from cutlayer.nn.gradients import differentiate
from cutlayer.nn.nested import Inputs, ordered, parted
from cutlayer.optim.accumulate import Accumulated
from cutlayer.optim.local import clip, clips, clips_regularised, joint, regularise, squared
from cutlayer.optim.memory import Memory, Moments
from cutlayer.optim.step import Step, optimizer_step

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Seat:
    """Where a client computes: one row of a front's weights and of its optimizer's memory."""

    rows: Rows
    memory: Memory
    index: int


def naming(work: Callable[P, R]) -> Callable[P, R]:
    """Make every error in a client's computation name the client, its round and its step."""

    @functools.wraps(work)
    def named(*given: P.args, **more: P.kwargs) -> R:
        try:
            return work(*given, **more)
        except Exception as error:
            client = given[0]
            assert isinstance(client, Client)
            raise failed([client.here()], error) from error

    return named


def failed(where: Sequence[Address], error: Exception) -> CutlayerError:
    """Return the error with clients, round and step in its text: of the same class if it is ours, or a ClientError."""
    clients = ", ".join(str(at.client) for at in where)
    at = f"round {where[0].round}, client{'s' if len(where) > 1 else ''} {clients}, step {where[0].step}"
    if isinstance(error, CutlayerError):
        return type(error)(f"{at}: {error}")
    return ClientError(f"{at}: {type(error).__name__}: {error}")


class Client:
    """Trains a front on data that never leaves it."""

    def __init__(self, id: int, source: Source, seat: Seat) -> None:
        self.id, self.source, self.seat = id, source, seat

    def handle(self, message: Down) -> list[Up]:
        """Do what a message asks, and return the answers. A late or repeated reply changes nothing."""
        match message:
            case Plan():
                self.open(message)
            case NextStep():
                return [self.forward()]
            case Features():
                back = self.tail_step(message)
                return [] if back is None else [back]
            case CutGrad() if self.asked(message):
                square = self.backward(message)
                return [*([] if square is None else [square]), *self.momenta()]
            case Adopt():
                self.adopt(message)
            case Finish():
                return [self.close()]
        return []

    def open(self, plan: Plan) -> None:
        """Begin a round with the weights and memory of the plan, or else those the client kept, or empty memory."""
        seat = self.seat
        self.plan, self.taken, self.steps, self.tried = plan, 0, 0, 0  # taken: batches; steps: of the optimizer
        self.clipped: int | Tensor = 0
        own = plan.own
        start = plan.start or own.front
        assert start is not None, "a plan without a front is for a client that kept one"
        seat.rows.put(seat.index, start)
        self.start = start
        self.w0 = start.w.to(seat.rows.w.device)
        if plan.memory is not None:
            seat.memory.put(seat.index, plan.memory)
        elif own.memory is not None:
            seat.memory.put(seat.index, own.memory)
        else:
            seat.memory.reset(seat.index)
        self.position = own.position
        schedule = plan.schedule if self.source.order == "any" else replace(plan.schedule, shuffle=False)
        self._batches: Iterator[MicroBatch] = schedule.batches(
            len(self.source), plan.address.round, self.id, own.position
        )
        self._next = next(self._batches, None)
        self._gathered = Accumulated()
        self.partial = False  # whether the step goes on after the batch under way
        self._a: Tensor | None = None  # the smashed data with their graph, until their gradient arrives
        self.waits = False  # whether it waits for that gradient
        self.tail_done = False  # where labels stay: whether this step has been through the last block

    @property
    def how(self) -> Step:
        """The settings of its optimizer step."""
        return Step(self.plan.local, self.plan.optimizer, self.w0, self.eta)

    @property
    def eta(self) -> float:
        """The learning rate of the step under way."""
        return self.plan.eta if self.plan.etas is None else float(self.plan.etas[self.steps])

    @property
    def over(self) -> bool:
        """Whether it has taken all batches of the round."""
        return self._next is None

    def next(self) -> Indices:
        """The indices of the next batch's samples; the same until the batch begins."""
        assert self._next is not None, "the round is over"
        return self._next.rows

    def begin(self) -> None:
        """Mark the next batch as begun."""
        assert self._next is not None, "the round is over"
        self.partial, self._rows = not self._next.last, len(self._next.rows)
        self.waits, self.tail_done = True, False
        self._next = next(self._batches, None)

    def batch(self) -> tuple[Inputs, Tensor]:
        """Begin the next step, and return its samples."""
        plan, device, rows = self.plan, self.seat.rows.half.device, self.next()
        self.begin()
        round, use = plan.address.round, f"augment/{self.taken}"
        if self.source.order == "stream":
            round, use = plan.schedule.pass_of(len(self.source), round, self.position, self.steps)
        draw = functools.partial(rng, plan.schedule.seed, round, self.id, use)
        x, y = self.source.take(rows, device, draw)
        return ordered(x, self.seat.rows.half.images), y

    @naming
    def live(self) -> Live:
        """Take the next step forward, and return the smashed data with their graph."""
        x, y = self.batch()
        rows, where = self.seat.rows, self.here()
        seed, drawn = self.plan.schedule.seed, rows.half.style.randomness
        with torch.enable_grad():
            with forward_randomness(drawn, seed, where.round, self.id, where.step, "client"):
                self._crossing = rows.forward(self.seat.index, x)
            a, more = parted(self._crossing)
            return Live(self.noisy(a), y, rows.leaves(self.seat.index), more)

    def forward(self) -> Smashed:
        """Take the next step forward, and return the smashed data."""
        self._a, y, _, more = self.live()
        return self.sent(self._a.detach(), y, tuple(t.detach() for t in more))

    def sent(self, a: Tensor, y: Tensor, more: tuple[Tensor, ...] = ()) -> Smashed:
        """Return the message with the smashed data. Labels are sent with them, or stay here for `tail_step`."""
        self._y = y
        return Smashed(self.here(), a, y if self.plan.loss is None else None, more)

    @naming
    def tail_step(self, features: Features) -> FeatureGrad | None:
        """Where labels stay: run the server's features through the last block to the loss, and return the gradient."""
        plan, rows, j, where = self.plan, self.seat.rows, self.seat.index, self.here()
        if plan.loss is None or not self.waits or self.tail_done or features.address != where:
            return None
        self.tail_done = True
        z = features.z.detach().to(rows.half.device).requires_grad_()
        drawn = rows.half.style.randomness
        with torch.enable_grad():
            with forward_randomness(drawn, plan.schedule.seed, where.round, self.id, where.step, "last"):
                loss = plan.loss(cast(Tensor, rows.forward(j, self._behind(z.clone()), stage=1)), self._y)
            (grad,) = differentiate(loss, [rows.leaves(j, 1)], inputs=[z])
        return FeatureGrad(where, grad)

    def _behind(self, z: Tensor) -> Inputs:
        """What the last block takes: the server's features, and beside them, if it uses them, this client's own masks
        and positions."""
        if not takes_beside(self.seat.rows.half.blocks[0]) or isinstance(own := self._crossing, Tensor):
            return z
        return dict(zip(own, (z, *(t.detach() for t in parted(own)[1])), strict=True))

    @naming
    def backward(self, reply: CutGrad) -> Square | None:
        """Compute the front's gradient from the one at the cut, and take the optimizer step, or wait for the step's
        other micro-batches.

        Return the client's part of the joint norm, where the plan's local rule has one.
        """
        seat, plan, own = self.seat, self.plan, torch.zeros((), dtype=torch.float64)
        self.receive(reply)
        w, g = seat.rows.w[seat.index], seat.rows.g[seat.index]
        if plan.schedule.accumulate > 1:
            self._gathered.add(0, g, self._rows, last=not self.partial)
        if self.partial:
            self.stepped()
            return None
        if plan.local is not None and clips(plan.local):
            if clips_regularised(plan.local):
                regularise(plan.local, plan.optimizer, g, w, self.w0)
            own = squared(g)
            self.tried += 1
            whole = own if reply.square is None else own + reply.square.to(own.device)
            self.clipped = self.clipped + clip(plan.local, g, whole)
        optimizer_step(Workers.on(seat.rows.w.device), self.how, seat.rows, seat.memory, [seat.index])
        self.stepped()
        return Square(reply.address, own) if joint(plan.local) else None

    def receive(self, reply: CutGrad) -> None:
        """Compute the front's gradient from the one at the cut, unless the server's backward pass has done so."""
        if reply.grad is not None and self._a is not None:
            differentiate(self._a, [self.seat.rows.leaves(self.seat.index)], reply.grad)

    @property
    def smashed(self) -> Tensor:
        """The smashed data whose gradient it waits for."""
        assert self._a is not None, "nothing is under way"
        return self._a

    def asked(self, reply: CutGrad) -> bool:
        """Whether the reply is to the step under way; a stale or repeated one is not."""
        return self.waits and reply.address == self.here()

    def stepped(self) -> None:
        """Mark the batch under way as finished, and with the last of its micro-batches the step."""
        self._a, self.waits = None, False
        self.taken += 1
        self.steps += not self.partial

    def momenta(self) -> list[Momentum]:
        """The optimizer's current moments as a message, where the plan asks for them after each step."""
        moments = self.seat.memory.get(self.seat.index).m
        return [Momentum(self.here(), moments)] if self.plan.fuses and not self.partial else []

    def adopt(self, fused: Adopt) -> None:
        """Replace the optimizer's moments by the fused ones."""
        if fused.address == self.here():
            self.seat.memory.put(self.seat.index, Moments(fused.m, self.seat.memory.t[self.seat.index]))

    def close(self) -> Report:
        """End the round and hand in the front."""
        plan, seat = self.plan, self.seat
        return Report(
            plan.address,
            seat.rows.row(seat.index),
            len(self.source),
            seat.memory.get(seat.index),
            self.position + self.steps,
            self.tried,
            self._count(),
            plan.keeps_half,
            plan.shares_memory,
        )

    def _count(self) -> int:
        """How many gradients were clipped; on a GPU, the tensor that will say so."""
        waits = isinstance(self.clipped, Tensor) and self.clipped.device.type != "cpu"
        return cast(int, self.clipped) if waits else int(self.clipped)

    def noisy(self, a: Tensor) -> Tensor:
        """Add Gaussian noise to each sample's activations, with `noise` times their root mean square as deviation."""
        if not self.plan.noise or not a.is_floating_point():
            return a
        generator = torch.Generator()
        use = f"noise/{self.taken}"
        generator.manual_seed(address(self.plan.schedule.seed, self.plan.address.round, self.id, use))
        z = onto(a.device, torch.randn(a.shape, generator=generator, dtype=a.dtype))
        rms = a.detach().flatten(1).square().mean(dim=1).sqrt()
        return a + self.plan.noise * rms.reshape(-1, *[1] * (a.ndim - 1)) * z

    def here(self) -> Address:
        return Address(self.plan.address.round, self.id, self.taken, self.plan.address.attempt)
