"""The contract: what a message between a client and its server must be (shapes, types, ranges, address).

It follows from the model and a few rows. Every message is checked before it is used; one that does not fit raises a
FrameError that says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from cutlayer.clients.codec import Message, address_of, moved
from cutlayer.clients.messages import (
    Address,
    Adopt,
    CutGrad,
    FeatureGrad,
    Features,
    Momentum,
    Plan,
    Report,
    Smashed,
    Square,
)
from cutlayer.core.randomness import OwnRandomness
from cutlayer.data.source import Source
from cutlayer.errors import FrameError
from cutlayer.network.protocol.codec import decode
from cutlayer.network.transport.frames import Frame
from cutlayer.nn.copies import twin
from cutlayer.nn.cut import Layout, blocks_of, in_order, learns
from cutlayer.nn.flat import Vectors, half
from cutlayer.nn.language import IGNORED
from cutlayer.nn.nested import Inputs, each, ordered, parted
from cutlayer.optim.local import joint

Sizes = tuple[int, int, int]
CPU = torch.device("cpu")
WORDS = 4096  # bytes allowed for a header (generous)
MOMENTS = 2  # moments of an optimizer, at most


@dataclass(frozen=True)
class Contract:
    """The shapes, types and limits of messages.

    `a[L]`: the shape of one sample's activations at cut L. `more[L]`: the shapes and types of the tensors beside them.
    `z`: the shape of one sample's features, where labels stay with the client. `floats`: the type of both. `sizes[L]`:
    the sizes of the three vectors of a front. `frozen`: the cuts whose fronts need no gradient. `y`: the shape and type
    of a label. `classes`: labels are below this (None: any). `tokens`: the same of labels that may be ignored (-100).
    """

    dtype: torch.dtype
    buffers: torch.dtype
    sizes: Mapping[int, Sizes]
    a: Mapping[int, tuple[int, ...]]
    z: tuple[int, ...] | None
    y: tuple[tuple[int, ...], torch.dtype]
    classes: int | None
    more: Mapping[int, tuple[tuple[tuple[int, ...], torch.dtype], ...]] = field(default_factory=dict)
    least: int = 1  # fewest rows of a batch: 2 where a batch norm needs them
    floats: torch.dtype = torch.float32
    frozen: frozenset[int] = frozenset()
    tokens: int | None = None
    device: torch.device = CPU  # where the receiver computes

    def limit(self, plan: Plan) -> int:
        """Bytes of the longest frame a client of this plan may send."""
        return self.longest(plan.cut, plan.schedule.batch_size)

    def longest(self, cut: int, batch: int) -> int:
        """Bytes of the longest frame with this cut, up or down: a batch at the cut, or a front with its moments."""
        n, (w, b, i) = self.dtype.itemsize, self.sizes[cut]
        smashed = batch * (math.prod(self.a[cut]) * self.floats.itemsize + math.prod(self.y[0]) * self.y[1].itemsize)
        smashed += batch * sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.more.get(cut, ()))
        features = batch * math.prod(self.z or ()) * self.floats.itemsize
        return WORDS + max(smashed, features, w * (1 + MOMENTS) * n + b * self.buffers.itemsize + 8 * i)

    def late(self, frame: Frame, plan: Plan) -> bool:
        """Whether a frame belongs to an earlier round or attempt, and can be ignored."""
        at, now = address_of(frame.kind, frame.words), plan.address
        return at.client == now.client and (at.round, at.attempt) < (now.round, now.attempt)

    def message(self, frame: Frame, plan: Plan, expected: Address, samples: int, rows: int = 0) -> Any:
        """Decode and check a frame from this plan's client: its address, its tensors, and the samples of a report."""
        at = address_of(frame.kind, frame.words)
        if at != expected:
            raise FrameError(f"a {frame.kind} for {_where(at)}, expected {_where(expected)}")
        message = decode(frame)
        self.check(message, plan, rows)
        if isinstance(message, Report):
            _must(message.samples == samples, f"a report of {message.samples} samples, expected {samples}")
        return moved(message, self.device)

    def check(self, message: Message, plan: Plan, rows: int = 0, last: bool = True) -> None:
        """Check a message to or from this plan's client. `rows`: the rows of the batch under way (0: not known yet);
        `last`: an optimizer step follows it."""
        match message:
            case Smashed():
                self._batch(message.a, self.a[plan.cut], plan, 0, "smashed data")
                self._labels(message, plan)
                self._beside(message, plan)
            case Features():
                _must(self.z is not None, "features, where labels are sent")
                self._batch(message.z, self.z or (), plan, rows, "features")
            case FeatureGrad():
                _must(self.z is not None, "a gradient of features, where labels are sent")
                self._batch(message.grad, self.z or (), plan, rows, "a gradient")
            case CutGrad():
                if plan.cut in self.frozen:
                    _must(message.grad is None, "a CutGrad with a gradient that nobody needs")
                else:
                    _must(message.grad is not None, "a CutGrad without a gradient")
                    self._batch(cast(Tensor, message.grad), self.a[plan.cut], plan, rows, "a gradient")
                due = joint(plan.local) and last
                _must(message.square is None or due, "a CutGrad with a squared norm nobody asked for")
                _must(message.square is not None or not due, "a CutGrad without its squared norm")
                self._square(message.square)
            case Square():
                self._square(message.value)
            case Momentum() | Adopt():
                _must(plan.fuses, "moments that nobody asked for")
                self._moments(message.m, plan)
            case Plan():
                _must(message.address.step == -1, f"a plan for {_where(message.address)}")
                self._front(message.start or message.own.front, message)
                if (memory := message.memory or message.own.memory) is not None:
                    self._moments(memory.m, message)
            case Report():
                self._report(message, plan)
            case _:
                raise FrameError(f"a {type(message).__name__}, which does not travel")

    def _labels(self, smashed: Smashed, plan: Plan) -> None:
        y, (shape, dtype) = smashed.y, self.y
        if plan.loss is not None:
            _must(y is None, "labels, which should have stayed")
            return
        if y is None:
            raise FrameError("smashed data without labels")
        _must(y.dtype == dtype and tuple(y.shape) == (smashed.samples, *shape), f"labels of {y.dtype} {tuple(y.shape)}")
        if self.classes is not None:
            good = int(y.min()) >= 0 and int(y.max()) < self.classes
            _must(good, f"labels outside 0..{self.classes - 1}")
        elif self.tokens is not None:
            good = bool(((y == IGNORED) | ((y >= 0) & (y < self.tokens))).all())
            _must(good, f"labels other than {IGNORED} and 0..{self.tokens - 1}")
        elif y.is_floating_point():
            _must(bool(torch.isfinite(y).all()), "labels with NaN or infinity")

    def _beside(self, smashed: Smashed, plan: Plan) -> None:
        """Check the tensors that travel beside the activations."""
        expected = self.more.get(plan.cut, ())
        many = f"smashed data with {len(smashed.more)} tensors beside them, expected {len(expected)}"
        _must(len(smashed.more) == len(expected), many)
        for tensor, (shape, dtype) in zip(smashed.more, expected, strict=True):
            _like(tensor, (smashed.samples, *shape), dtype, "a tensor beside smashed data")

    def _report(self, report: Report, plan: Plan) -> None:
        given = (report.end is None, report.memory is None, report.keeps_half, report.shares_memory)
        asked = (plan.keeps_half, not plan.shares_memory, plan.keeps_half, plan.shares_memory)
        _must(given == asked, "a report with parts that were not asked for, or without parts that were")
        if report.end is not None:
            self._front(report.end, plan)
        if report.memory is not None:
            self._moments(report.memory.m, plan)

    def _front(self, front: Vectors | None, plan: Plan) -> None:
        if front is None:
            raise FrameError("a plan without a front, where none has been kept")
        dtypes = (self.dtype, self.buffers, torch.int64)
        for vector, size, dtype in zip(front, self.sizes[plan.cut], dtypes, strict=True):
            _like(vector, (size,), dtype, "a vector")

    def _moments(self, m: Sequence[Tensor], plan: Plan) -> None:
        known = plan.optimizer.moments
        _must(len(m) == known, f"{len(m)} moments, where {type(plan.optimizer).__name__} has {known}")
        for moment in m:
            _like(moment, (self.sizes[plan.cut][0],), self.dtype, "a vector")

    def _square(self, value: Tensor | None) -> None:
        if value is not None:
            _like(value, (), torch.float64, "a squared norm")
            _must(float(value) >= 0, "a squared norm below 0")

    def _batch(self, x: Tensor, shape: tuple[int, ...], plan: Plan, rows: int, what: str) -> None:
        """Check a batch of samples of this shape: `rows` of them, or (0) any number that the plan allows."""
        least, most = (rows, rows) if rows else (self.least, plan.schedule.batch_size)
        found = tuple(x.shape)
        if not (len(found) == 1 + len(shape) and least <= found[0] <= most):
            expected = f"{least} to {most} rows of {shape}" if least < most else str((most, *shape))
            raise FrameError(f"{what} of {x.dtype} {found}, expected finite {self.floats} {expected}")
        _like(x, (found[0], *shape), self.floats, what)


def agreed(
    model: nn.Module, cuts: tuple[int, int], layout: Layout, rows: Source, classes: int | None, device: torch.device
) -> Contract:
    """Return the contract that follows from a model and a few rows like the clients'."""
    x, y = rows.take(np.zeros(2, dtype=np.int64), device)
    shapes: list[tuple[int, ...]] = []
    beside: list[tuple[tuple[tuple[int, ...], torch.dtype], ...]] = []
    floats: list[torch.dtype] = []
    with torch.no_grad(), OwnRandomness():
        out: Any = ordered(x, False)
        for block in blocks_of(twin(model).to(device).eval()):
            out = block(out)
            first, more = parted(out) if isinstance(out, Tensor | dict) else (None, ())
            shapes.append(() if first is None else tuple(first.shape[1:]))
            floats.append(torch.float32 if first is None else first.dtype)
            beside.append(tuple((tuple(t.shape[1:]), t.dtype) for t in more))
    fronts = {L: half(model, layout.client(L), device) for L in range(cuts[0], cuts[1] + 1)}
    dtype, buffers, _ = fronts[cuts[0]].dtypes
    return Contract(
        dtype=dtype,
        buffers=buffers,
        sizes={L: front.sizes for L, front in fronts.items()},
        a={L: shapes[L] for L in fronts},
        more={L: beside[L] for L in fronts if beside[L]},
        z=shapes[-1 - layout.tail] if layout.tail else None,
        y=(tuple(y.shape[1:]), y.dtype),
        classes=classes,
        floats=floats[cuts[0]],
        frozen=frozenset(L for L in fronts if not learns(model, L)),
        least=1 if _takes_one(model, each(ordered(x, False), lambda t: t[:1]), device) else 2,
    )


def _takes_one(model: nn.Module, x: Inputs, device: torch.device) -> bool:
    """Whether the model can train on a batch of one row; a batch norm may then see a single number, and raise."""
    try:
        with torch.no_grad(), OwnRandomness():
            in_order(blocks_of(twin(model).to(device).train()), x)
    except ValueError:
        return False
    return True


def _must(good: bool, what: str) -> None:
    if not good:
        raise FrameError(what)


def _like(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> None:
    good = x.dtype == dtype and tuple(x.shape) == shape
    _must(good, f"{what} of {x.dtype} {tuple(x.shape)}, expected finite {dtype} {shape}")
    _must(bool(torch.isfinite(x).all()), f"{what} with NaN or infinity, expected finite {dtype} {shape}")


def _where(at: Address) -> str:
    step = "report" if at.step < 0 else f"step {at.step}"
    return f"round {at.round}, attempt {at.attempt}, client {at.client}, {step}"
