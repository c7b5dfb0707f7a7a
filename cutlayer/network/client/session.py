"""A client on a machine of its own: what it answers to each frame of the server. It never knows the scheme.

Plan -> Smashed                    Features -> FeatureGrad                 Stop -> nothing: the round is over for it
CutGrad -> [Square] Momentum, or the next Smashed, or its Report           Adopt -> the next Smashed, or its Report
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cutlayer.clients.client import Client, Seat
from cutlayer.clients.messages import CutGrad, FeatureGrad, Features, Loss, Momentum, Plan, Report, Smashed, Square
from cutlayer.clients.state import NOTHING
from cutlayer.core.threads import one_thread
from cutlayer.data.source import Source
from cutlayer.errors import ClientError, CutlayerError, FrameError
from cutlayer.network.client.store import ClientStore
from cutlayer.network.protocol.codec import decode
from cutlayer.network.protocol.contract import Contract, address_of
from cutlayer.network.protocol.settings import Limits
from cutlayer.network.transport.frames import Frame
from cutlayer.nn.cut import Layout
from cutlayer.nn.flat import Rows, Style, half
from cutlayer.optim.local import joint
from cutlayer.optim.memory import Memory

Answer = tuple[str, dict[str, Any], list[Tensor]]


class Terms(NamedTuple):
    """What the client has agreed to: the model, where it is cut, what messages must be, what the model draws."""

    model: nn.Module
    layout: Layout
    contract: Contract
    style: Style


class ClientSession:
    """One client's part of a run. `own`: where it keeps what lives on with it between rounds."""

    def __init__(
        self, terms: Terms, source: Source, own: ClientStore, loss: Loss, limits: Limits, device: torch.device
    ) -> None:
        self.model, self.layout, self.contract, self.style = terms
        self.source, self.own, self.loss, self.limits, self.device = source, own, loss, limits, device
        self.client = Client(0, source)
        self._seat: Seat | None = None
        self._cut: int | None = None
        self.plan: Plan | None = None
        self.round = 0
        self._last = (-1, -1)  # the round and attempt of the last plan on this stream

    @property
    def limit(self) -> int:
        """Bytes of the longest frame that the server may send now."""
        if self.plan is None:
            return max(self.contract.longest(L, 0) for L in self.contract.sizes)
        return self.contract.longest(self.plan.cut, self.plan.schedule.batch_size)

    def anew(self) -> None:
        """The stream has broken: what was under way is over, and the next one may begin anywhere."""
        self.plan, self._last = None, (-1, -1)

    def answer(self, frame: Frame) -> list[Answer]:
        """What goes back. A frame that is late, doubled or not for this step changes nothing."""
        try:
            with one_thread(), torch.no_grad():
                return self._answer(frame)
        except Exception as error:
            if not _of_the_model(error):
                raise
            raise FrameError(f"a {frame.kind}, which the model cannot follow: {error}") from error

    def _answer(self, frame: Frame) -> list[Answer]:
        match frame.kind:
            case "Plan":
                return self._begin(decode(frame.words, frame.tensors, self.loss))
            case "Stop":
                if [frame.words.get(name) for name in ("round", "attempt")] == list(self._last):
                    self.plan = None
                return []
            case _ if self.plan is None:
                return []
            case "Features":
                return self._tail_step(frame)
            case "CutGrad":
                return list(self._step(frame))
            case "Adopt":
                return self._adopt(frame)
        raise FrameError(f"a {frame.kind[:20]!r}, which no server sends")

    def _begin(self, plan: Plan) -> list[Answer]:
        if (plan.address.round, plan.address.attempt) <= self._last:
            return []
        self._check(plan)
        if self._seat is None or plan.cut != self._cut:
            rows = Rows(half(self.model, self.layout.client(plan.cut), self.device, self.style), 1)
            self._seat, self._cut = Seat(rows, Memory(plan.optimizer, rows.w), 0), plan.cut
        elif len(self._seat.memory.moments) != plan.optimizer.moments:
            self._seat.memory = Memory(plan.optimizer, self._seat.rows.w)
        kept = self.own.load(plan.confirmed) if plan.keeps_half or plan.keeps_memory else NOTHING
        if plan.start is None and kept.front is None:
            raise FrameError("a plan without a front, where none has been kept")
        if plan.start is None and not plan.keeps_half:
            raise FrameError("a plan that asks for the front this client keeps to itself")
        plan = replace(plan, own=kept)
        self._fits(plan, self._seat)
        self.plan = plan
        self._last = plan.address.round, plan.address.attempt
        self.client, self.round = Client(plan.address.client, self.source), plan.address.round
        self.client.open(plan, self._seat)
        self.steps = plan.schedule.total(len(self.source))
        return self._next()

    def _check(self, plan: Plan) -> None:
        """The client's own limits."""
        limits, steps = self.limits, plan.schedule.total(len(self.source))
        rate, batch = f"above 0, to {limits.rate:g} (--limit-rate)", f"at most {limits.batch:,} (--limit-batch)"
        for what, value, good, expected in (
            ("cut", plan.cut, plan.cut in self.contract.sizes, " or ".join(map(str, self.contract.sizes))),
            ("steps", steps, 1 <= steps <= limits.steps, f"1 to {limits.steps:,} (--limit-steps)"),
            ("rate", plan.eta, math.isfinite(plan.eta) and 0 < plan.eta <= limits.rate, rate),
            ("batch", plan.schedule.batch_size, plan.schedule.batch_size <= limits.batch, batch),
            ("noise", plan.noise, math.isfinite(plan.noise) and plan.noise >= 0, "a finite number, at least 0"),
            ("labels", plan.loss is not None, (plan.loss is not None) == bool(self.layout.tail), "as agreed"),
        ):
            if not good:
                raise FrameError(f"a plan with {what} = {value}, expected {expected}")

    def _fits(self, plan: Plan, seat: Seat) -> None:
        """Vectors of the front's sizes and types, and finite: those it begins with, and those it kept."""
        sizes, dtypes, own = seat.rows.half.sizes, seat.rows.half.dtypes, plan.own
        start = plan.start or own.front
        assert start is not None, "it was looked for before"
        for vector, size, dtype in zip(start, sizes, dtypes, strict=True):
            _vector(vector, size, dtype)
        memory = plan.memory or own.memory
        if memory is not None:
            self._moments(memory.m, plan)

    def _moments(self, m: Sequence[Tensor], plan: Plan) -> None:
        if len(m) != plan.optimizer.moments:
            raise FrameError(f"{len(m)} moments, where {type(plan.optimizer).__name__} has {plan.optimizer.moments}")
        for moment in m:
            _vector(moment, self.contract.sizes[plan.cut][0], self.contract.dtype)

    def _tail_step(self, frame: Frame) -> list[Answer]:
        at, (z,), shape = address_of(frame), self._tensors(frame, 1), self.contract.z
        if shape is None:
            raise FrameError("features, where labels are sent")
        if at != self.client.here() or not self.client.waits or self.client.tail_done:
            return []
        _like(z, (len(self.client.smashed), *shape), self.contract.dtype, "features")
        back = self.client.tail_step(Features(at, z))
        return [] if back is None else [_written(back)]

    def _step(self, frame: Frame) -> Iterator[Answer]:
        assert self.plan is not None
        at = address_of(frame)
        grad, *square = self._tensors(frame, 1 + joint(self.plan.local))
        if at != self.client.here() or not self.client.waits:
            return
        if self.layout.tail and not self.client.tail_done:
            raise FrameError("a gradient before its features")
        _like(grad, tuple(self.client.smashed.shape), self.contract.dtype, "a gradient")
        for norm in square:
            _like(norm, (), torch.float64, "a squared norm")
            if norm < 0:
                raise FrameError("a squared norm below 0")
        back = self.client.backward(CutGrad(at, grad.to(self.device), None, square[0] if square else None))
        if back is not None:
            yield _written(back)
        if self.plan.fuses:
            yield _written(self.client.momentum())
        else:
            yield from self._next()

    def _adopt(self, frame: Frame) -> list[Answer]:
        assert self.plan is not None
        at, m = address_of(frame), frame.tensors
        if not self.plan.fuses:
            raise FrameError("moments that nobody asked for")
        if at != self.client.here() or self.client.waits:
            return []
        self._moments(m, self.plan)
        self.client.adopt(Momentum(at, m))
        return self._next()

    def _next(self) -> list[Answer]:
        """The next step, or the end of the round."""
        assert self.plan is not None
        if self.client.taken < self.steps:
            return [_written(self.client.forward())]
        report = self.client.close()
        if self.plan.keeps_half or self.plan.keeps_memory:
            kept = report.own(self.plan.keeps_half, self.plan.keeps_memory)
            if not all(bool(torch.isfinite(tensor).all()) for tensor in kept.named().values()):
                raise FrameError(f"orders after which, at the end of round {self.round}, what is kept is not finite")
            self.own.keep(self.plan.address.round, kept, self.plan.confirmed)
        self.plan = None
        return [_written(report)]

    def _tensors(self, frame: Frame, n: int) -> tuple[Tensor, ...]:
        if len(frame.tensors) != n:
            raise FrameError(f"a {frame.kind} of {len(frame.tensors)} tensors, expected {n}")
        return frame.tensors


def _written(message: Smashed | FeatureGrad | Square | Momentum | Report) -> Answer:
    kind, words = type(message).__name__, {"at": list(astuple(message.address))}
    match message:
        case Smashed():
            return kind, words, [message.a, *([] if message.y is None else [message.y])]
        case FeatureGrad():
            return kind, words, [message.grad]
        case Square():
            return kind, words, [message.value]
        case Momentum():
            return kind, words, list(message.m)
        case Report():
            memory = message.memory
            numbers = {name: getattr(message, name) for name in ("samples", "position", "tried", "clipped")}
            end = [] if message.keeps_half or message.end is None else list(message.end)
            shared = list(memory.m) if message.shares_memory and memory is not None else []
            return kind, {**words, **numbers, "t": 0 if memory is None else memory.t}, [*end, *shared]


def _of_the_model(error: Exception) -> bool:
    """Whether torch raised it: for a batch of one row, say, where there is batch norm."""
    cause = error.__cause__ if isinstance(error, ClientError) else error
    return isinstance(cause, RuntimeError | ValueError) and not isinstance(cause, CutlayerError)


def _vector(x: Tensor, size: int, dtype: torch.dtype) -> None:
    _like(x, (size,), dtype, "a vector")


def _like(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> None:
    if x.dtype != dtype or tuple(x.shape) != shape or not bool(torch.isfinite(x).all()):
        raise FrameError(f"{what} of {x.dtype} {tuple(x.shape)}, expected finite {dtype} {shape}")
