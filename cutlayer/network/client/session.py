"""A client on its own machine: how it answers each frame from the server. It does not know the scheme.

Plan -> Smashed                    Features -> FeatureGrad                 Stop -> nothing: the round is over for it
CutGrad -> [Square] Momentum, or the next Smashed, or its Report           Adopt -> the next Smashed, or its Report
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import nn

from cutlayer.clients.client import Client, Seat
from cutlayer.clients.codec import Encoded, Message
from cutlayer.clients.messages import Adopt, CutGrad, Features, Loss, NextStep, Plan
from cutlayer.clients.state import NOTHING
from cutlayer.core.threads import torch_threads
from cutlayer.data.source import Source, expect_batches
from cutlayer.errors import ClientError, CutlayerError, FrameError
from cutlayer.network.client.store import ClientStore
from cutlayer.network.protocol.codec import decode, encode
from cutlayer.network.protocol.contract import Contract
from cutlayer.network.protocol.settings import Limits
from cutlayer.network.transport.frames import Frame
from cutlayer.nn.cut import Layout
from cutlayer.nn.flat import Rows, Style, half
from cutlayer.optim.memory import Memory

DOWN = ("Plan", "Features", "CutGrad", "Adopt")  # what a server sends in a round


class Terms(NamedTuple):
    """What client and server have agreed on: the model, where it is cut, the contract, and how the blocks compute."""

    model: nn.Module
    layout: Layout
    contract: Contract
    style: Style


class ClientSession:
    """One client's part of a run. `own`: where it keeps its client state between rounds."""

    def __init__(
        self, terms: Terms, source: Source, own: ClientStore, loss: Loss, limits: Limits, device: torch.device
    ) -> None:
        self.model, self.layout, self.contract, self.style = terms
        self.source, self.own, self.loss, self.limits, self.device = source, own, loss, limits, device
        self.client: Client | None = None
        self._cut: int | None = None
        self.plan: Plan | None = None
        self.round = 0
        self._last = (-1, -1)  # the round and attempt of the last plan on this stream

    @property
    def limit(self) -> int:
        """Bytes of the longest frame that the server may send now."""
        rates = 8 * self.limits.steps  # a plan may state one for every step
        if self.plan is None:
            return rates + max(self.contract.longest(L, 0) for L in self.contract.sizes)
        return rates + self.contract.longest(self.plan.cut, self.plan.schedule.batch_size)

    def anew(self) -> None:
        """Forget the round under way, after the stream has broken. The next plan may be of any round and attempt."""
        self.plan, self._last = None, (-1, -1)

    def answer(self, frame: Frame) -> list[Encoded]:
        """Return the answers to a frame. A frame that is late, repeated or not for this step is ignored."""
        try:
            with torch_threads(), torch.no_grad():
                return [encode(message) for message in self._answer(frame)]
        except Exception as error:
            if not _of_the_model(error):
                raise
            raise FrameError(f"a {frame.kind}, which the model cannot follow: {error}") from error

    def _answer(self, frame: Frame) -> Iterator[Message]:
        if frame.kind == "Stop":
            if [frame.words.get(name) for name in ("round", "attempt")] == list(self._last):
                self.plan = None
            return
        if frame.kind not in DOWN:
            raise FrameError(f"a {frame.kind[:20]!r}, which no server sends")
        if self.plan is None and frame.kind != "Plan":
            return
        message = decode(frame, self.loss)
        yield from self._begin(message) if isinstance(message, Plan) else self._step(message)

    def _begin(self, plan: Plan) -> Iterator[Message]:
        """Begin a round, and take its first step."""
        if (plan.address.round, plan.address.attempt) <= self._last:
            return
        self._check(plan)
        expect_batches(self.source, plan.schedule)
        kept = self.own.load(plan.confirmed) if plan.keeps_half or plan.keeps_memory else NOTHING
        if plan.start is None and not plan.keeps_half and kept.front is not None:
            raise FrameError("a plan that asks for the front this client keeps to itself")
        plan = replace(plan, own=kept)
        self.contract.check(plan, plan)
        self.client, self.plan = Client(plan.address.client, self.source, self._seat(plan)), plan
        self._last = plan.address.round, plan.address.attempt
        self.round, self.steps = plan.address.round, plan.schedule.total(len(self.source))
        self.client.handle(plan)
        yield from self._next()

    def _seat(self, plan: Plan) -> Seat:
        """Return the memory for the front and its optimizer, reused from the last round if it fits."""
        seat = None if self.client is None or plan.cut != self._cut else self.client.seat
        if seat is not None and len(seat.memory.moments) == plan.optimizer.moments:
            return seat
        front = half(self.model, self.layout.client(plan.cut), self.device, self.style)
        rows, self._cut = Rows(front, 1) if seat is None else seat.rows, plan.cut
        return Seat(rows, Memory(plan.optimizer, rows.w), 0)

    def _check(self, plan: Plan) -> None:
        """Refuse a plan that is beyond the client's limits, or not as agreed."""
        limits, steps = self.limits, plan.schedule.total(len(self.source)) * plan.schedule.accumulate
        rate, batch = f"above 0, to {limits.rate:g} (--limit-rate)", f"at most {limits.batch:,} (--limit-batch)"
        etas, each = plan.etas, (plan.schedule.total(len(self.source)),)
        listed = etas is None or (tuple(etas.shape) == each and bool(((etas > 0) & (etas <= limits.rate)).all()))
        for what, value, good, expected in (
            ("cut", plan.cut, plan.cut in self.contract.sizes, " or ".join(map(str, self.contract.sizes))),
            ("steps", steps, 1 <= steps <= limits.steps, f"1 to {limits.steps:,} (--limit-steps)"),
            ("rate", plan.eta, math.isfinite(plan.eta) and 0 < plan.eta <= limits.rate, rate),
            ("rates", etas, listed, f"one for each step, {rate}"),
            ("batch", plan.schedule.batch_size, plan.schedule.batch_size <= limits.batch, batch),
            ("noise", plan.noise, math.isfinite(plan.noise) and plan.noise >= 0, "a finite number, at least 0"),
            ("labels", plan.loss is not None, (plan.loss is not None) == bool(self.layout.tail), "as agreed"),
        ):
            if not good:
                raise FrameError(f"a plan with {what} = {value}, expected {expected}")

    def _step(self, message: Features | CutGrad | Adopt) -> Iterator[Message]:
        """Answer a message of the step under way, and go on to the next step when this one is over."""
        client, plan = self.client, self.plan
        assert client is not None and plan is not None, "a plan comes first"
        if message.address != client.here():
            return
        self.contract.check(message, plan, len(client.smashed) if client.waits else 0, last=not client.partial)
        if client.waits == isinstance(message, Adopt):
            return
        if isinstance(message, CutGrad):
            if self.layout.tail and not client.tail_done:
                raise FrameError("a gradient before its features")
            message = replace(message, grad=message.grad.to(self.device) if message.grad is not None else None)
        yield from cast(list[Message], client.handle(message))
        if not client.waits and (isinstance(message, Adopt) or not plan.fuses or client.partial):
            yield from self._next()

    def _next(self) -> Iterator[Message]:
        """Take the next step, or end the round with a report."""
        client, plan = self.client, self.plan
        assert client is not None and plan is not None, "a plan comes first"
        if not client.over:
            yield from cast(list[Message], client.handle(NextStep(client.here())))
            return
        report = client.close()
        if plan.keeps_half or plan.keeps_memory:
            kept = report.own(plan.keeps_half, plan.keeps_memory)
            if not all(bool(torch.isfinite(tensor).all()) for tensor in kept.named().values()):
                raise FrameError(f"a plan that leaves the state this client keeps after round {self.round} not finite")
            self.own.keep(plan.address.round, kept, plan.confirmed)
        self.plan = None
        yield replace(report.sent, clipped=int(report.clipped))


def _of_the_model(error: Exception) -> bool:
    """Whether the model raised it, as a batch norm does for a batch of one row."""
    cause = error.__cause__ if isinstance(error, ClientError) else error
    return isinstance(cause, RuntimeError | ValueError) and not isinstance(cause, CutlayerError)
