"""A client on a machine of its own: what it answers to each frame of the server. It never knows the scheme.

Plan -> Smashed                    Features -> FeatureGrad                 Stop -> nothing: the round is over for it
CutGrad -> [Square] Momentum, or the next Smashed, or its Report           Adopt -> the next Smashed, or its Report
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import Any

import torch
from torch import Tensor, nn

from cutlayer.client import Client, Seat
from cutlayer.cohorts.contract import Contract
from cutlayer.cohorts.orders import heard
from cutlayer.cut import Layout
from cutlayer.data.source import Source
from cutlayer.errors import FrameError
from cutlayer.flat import Rows, Style, half
from cutlayer.messages import Address, CutGrad, FeatureGrad, Features, Loss, Momentum, Plan, Report, Smashed, Square
from cutlayer.net.frames import Frame
from cutlayer.optim import Memory
from cutlayer.own import Own
from cutlayer.terms import Limits
from cutlayer.workers import one_thread

Answer = tuple[str, dict[str, Any], list[Tensor]]


class Remote:
    """One client's part of a run. `own`: where it keeps what lives on with it between rounds."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        contract: Contract,
        source: Source,
        loss: Loss,
        own: Own,
        limits: Limits,
        device: torch.device,
        style: Style,
    ) -> None:
        self.model, self.layout, self.contract, self.source = model, layout, contract, source
        self.loss, self.own, self.limits, self.device, self.style = loss, own, limits, device, style
        self.client = Client(0, source)
        self._seat: Seat | None = None
        self._cut: int | None = None
        self.plan: Plan | None = None
        self.round = 0

    @property
    def limit(self) -> int:
        """Bytes of the longest frame that the server may send now."""
        if self.plan is None:
            return max(self.contract.longest(L, 0) for L in self.contract.sizes)
        return self.contract.longest(self.plan.cut, self.plan.feed.batch_size)

    def answer(self, frame: Frame) -> list[Answer]:
        """What goes back. A frame that is late, doubled or not for this step changes nothing."""
        with one_thread(), torch.no_grad():
            match frame.kind:
                case "Plan":
                    return self._begin(heard(frame.words, frame.tensors, self.loss))
                case "Stop":
                    self.plan = None
                    return []
                case _ if self.plan is None:
                    return []
                case "Features":
                    back = self.client.turn(Features(self._at(frame), *self._tensors(frame, 1)))
                    return [] if back is None else [_written(back)]
                case "CutGrad":
                    return list(self._step(frame))
                case "Adopt":
                    n = len(self.plan.optimizer.betas)
                    return self._adopt(Momentum(self._at(frame), tuple(self._tensors(frame, n))))
        raise FrameError(f"a {frame.kind[:20]!r}, which no server sends")

    def _begin(self, plan: Plan) -> list[Answer]:
        self._check(plan)
        if self._seat is None or plan.cut != self._cut:
            rows = Rows(half(self.model, self.layout.client(plan.cut), self.device, self.style), 1)
            self._seat, self._cut = Seat(rows, Memory(plan.optimizer, rows.w), 0), plan.cut
        elif len(self._seat.memory.moments) != len(plan.optimizer.betas):
            self._seat.memory = Memory(plan.optimizer, self._seat.rows.w)
        self._fits(plan, self._seat)
        kept = self.own.load(plan.confirmed) if plan.keeps_half or plan.keeps_memory else {}
        if plan.start is None and "w" not in kept:
            raise FrameError("a plan without a front, where none has been kept")
        self.plan = plan = replace(plan, own=kept)
        self.client, self.round = Client(plan.address.client, self.source), plan.address.round
        self.client.open(plan, self._seat)
        self.steps = sum(plan.feed.epochs_of(len(self.source)))
        return self._next()

    def _check(self, plan: Plan) -> None:
        """The client's own limits."""
        limits, steps = self.limits, sum(plan.feed.epochs_of(len(self.source)))
        for what, value, good, expected in (
            ("cut", plan.cut, plan.cut in self.contract.sizes, " or ".join(map(str, self.contract.sizes))),
            ("steps", steps, 1 <= steps <= limits.steps, f"1 to {limits.steps:,}"),
            ("rate", plan.eta, math.isfinite(plan.eta) and 0 < plan.eta <= limits.rate, f"above 0, to {limits.rate:g}"),
            ("batch", plan.feed.batch_size, plan.feed.batch_size <= limits.batch, f"at most {limits.batch:,}"),
            ("noise", plan.noise, math.isfinite(plan.noise) and plan.noise >= 0, "a finite number, at least 0"),
            ("labels", plan.loss is not None, (plan.loss is not None) == bool(self.layout.tail), "as agreed"),
        ):
            if not good:
                raise FrameError(f"a plan with {what} = {value}, expected {expected}")

    def _fits(self, plan: Plan, seat: Seat) -> None:
        """Vectors of the front's sizes and types, and finite."""
        sizes, dtypes = seat.rows.half.sizes, seat.rows.half.dtypes
        for vector, size, dtype in zip(plan.start or (), sizes, dtypes, strict=False):
            _vector(vector, size, dtype)
        for moment in plan.memory.m if plan.memory else ():
            _vector(moment, sizes[0], dtypes[0])

    def _step(self, frame: Frame) -> Iterator[Answer]:
        assert self.plan is not None
        at = self._at(frame)
        grad, *square = frame.tensors or self._tensors(frame, 1)
        if at != self.client.here() or not self.client.waits:
            return
        a = self.client.smashed
        good = grad.shape == a.shape and grad.dtype == a.dtype and bool(torch.isfinite(grad).all())
        if not good or len(square) > 1:
            raise FrameError(f"a gradient of {grad.dtype} {tuple(grad.shape)}, expected finite {tuple(a.shape)}")
        back = self.client.backward(CutGrad(at, grad.to(self.device), None, square[0] if square else None))
        if back is not None:
            yield _written(back)
        if self.plan.fuses:
            yield _written(self.client.momentum())
        else:
            yield from self._next()

    def _adopt(self, fused: Momentum) -> list[Answer]:
        if fused.address != self.client.here():
            return []
        self.client.adopt(fused)
        return self._next()

    def _next(self) -> list[Answer]:
        """The next step, or the end of the round."""
        assert self.plan is not None
        if self.client.taken < self.steps:
            return [_written(self.client.forward())]
        report = self.client.close()
        if self.plan.keeps_half or self.plan.keeps_memory:
            self.own.keep(self.plan.address.round, report.own(self.plan.keeps_half, self.plan.keeps_memory))
        self.plan = None
        return [_written(report)]

    def _at(self, frame: Frame) -> Address:
        at = frame.words.get("at")
        if not (isinstance(at, list) and len(at) == 4 and all(isinstance(n, int) for n in at)):
            raise FrameError(f"a {frame.kind[:20]!r} without an address")
        return Address(*at)

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
            numbers = {name: getattr(message, name) for name in ("samples", "place", "tried", "clipped")}
            end = [] if message.keeps_half or message.end is None else list(message.end)
            shared = list(memory.m) if message.shares_memory and memory is not None else []
            return kind, {**words, **numbers, "t": 0 if memory is None else memory.t}, [*end, *shared]


def _vector(x: Tensor, size: int, dtype: torch.dtype) -> None:
    good = x.dtype == dtype and tuple(x.shape) == (size,)
    if not good or (x.is_floating_point() and not bool(torch.isfinite(x).all())):
        raise FrameError(f"a vector of {x.dtype} {tuple(x.shape)}, expected finite {dtype} of {size}")
