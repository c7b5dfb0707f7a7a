"""What a client on another machine may send, from the model alone: shapes, types, ranges, addresses. Everything is held
against it before it is used; what does not fit is a FrameError that says why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cutlayer.clients.messages import Address, FeatureGrad, Momentum, Plan, Report, Smashed, Square
from cutlayer.core.randomness import OwnRandomness
from cutlayer.data.source import Source
from cutlayer.errors import FrameError
from cutlayer.network.transport.frames import Frame
from cutlayer.nn.copies import twin
from cutlayer.nn.cut import Layout, blocks_of, in_order
from cutlayer.nn.flat import Vectors, half
from cutlayer.nn.nested import Inputs, each, ordered
from cutlayer.optim.memory import Moments

Sizes = tuple[int, int, int]
WORDS = 4096  # bytes of a header, generously
MOMENTS = 2  # of an optimizer, at most


@dataclass(frozen=True)
class Contract:
    """`a[L]`: the shape of a sample at cut L; `z`: where labels stay, of the server's features; `sizes[L]`: of the
    three vectors of a front; `y`: the shape and type of a label; `classes`: labels are below this (None: any)."""

    dtype: torch.dtype
    buffers: torch.dtype
    sizes: Mapping[int, Sizes]
    a: Mapping[int, tuple[int, ...]]
    z: tuple[int, ...] | None
    y: tuple[tuple[int, ...], torch.dtype]
    classes: int | None
    least: int = 1  # rows of a batch: two, where a batch norm needs them

    def limit(self, plan: Plan) -> int:
        """Bytes of the longest frame a client of this plan may send."""
        return self.longest(plan.cut, plan.schedule.batch_size)

    def longest(self, cut: int, batch: int) -> int:
        """Bytes of the longest frame with this cut, either way: a batch at the cut, or a front with its moments."""
        n, (w, b, i) = self.dtype.itemsize, self.sizes[cut]
        smashed = batch * (math.prod(self.a[cut]) * n + math.prod(self.y[0]) * self.y[1].itemsize)
        features = batch * math.prod(self.z or ()) * n
        return WORDS + max(smashed, features, w * (1 + MOMENTS) * n + b * self.buffers.itemsize + 8 * i)

    def message(self, frame: Frame, plan: Plan, step: int, samples: int) -> Any:
        """The frame as a message: of this plan's client, at this step of its own (a report: -1)."""
        at = address_of(frame)
        expected = Address(plan.address.round, plan.address.client, step, plan.address.attempt)
        if at != expected:
            raise FrameError(f"a {frame.kind} for {_where(at)}, expected {_where(expected)}")
        match frame.kind:
            case "Smashed":
                return self._smashed(frame, at, plan)
            case "FeatureGrad":
                (grad,) = self._tensors(frame, 1)
                self._batch(grad, self.z or (), plan, "a gradient")
                return FeatureGrad(at, grad)
            case "Square":
                (value,) = self._tensors(frame, 1)
                good = value.shape == () and value.dtype == torch.float64 and float(value) >= 0
                _must(good and bool(torch.isfinite(value)), "a squared norm that is none")
                return Square(at, value)
            case "Momentum":
                m = self._tensors(frame, plan.optimizer.moments)
                for moment in m:
                    self._vector(moment, self.sizes[plan.cut][0], self.dtype)
                return Momentum(at, tuple(m))
            case "Report":
                return self._report(frame, at, plan, samples)
        raise FrameError(f"a {frame.kind[:20]!r}, which no client sends")

    def step(self, frame: Frame, plan: Plan) -> int | None:
        """The step it is of; None: of an earlier round or attempt, late and of no consequence."""
        at, now = address_of(frame), plan.address
        late = at.client == now.client and (at.round, at.attempt) < (now.round, now.attempt)
        return None if late else at.step

    def _smashed(self, frame: Frame, at: Address, plan: Plan) -> Smashed:
        stays = plan.loss is not None
        a, *rest = self._tensors(frame, 1 if stays else 2)
        self._batch(a, self.a[plan.cut], plan, "smashed data")
        if stays:
            return Smashed(at, a, None)
        y, (shape, dtype) = rest[0], self.y
        _must(y.dtype == dtype and tuple(y.shape) == (len(a), *shape), f"labels of {y.dtype} {tuple(y.shape)}")
        if self.classes is not None:
            good = int(y.min()) >= 0 and int(y.max()) < self.classes
            _must(good, f"labels outside 0..{self.classes - 1}")
        elif y.is_floating_point():
            _must(bool(torch.isfinite(y).all()), "labels with NaN or infinity")
        return Smashed(at, a, y)

    def _report(self, frame: Frame, at: Address, plan: Plan, samples: int) -> Report:
        words: dict[str, Any] = frame.words
        moments = plan.optimizer.moments if plan.shares_memory else 0
        numbers: dict[str, Any] = {name: words.get(name) for name in ("samples", "t", "position", "tried", "clipped")}
        for name, number in numbers.items():
            _must(isinstance(number, int) and 0 <= number < 2**53, f"a report with {name} = {number!r}")
        _must(numbers["samples"] == samples, f"a report of {numbers['samples']} samples, expected {samples}")
        tensors = self._tensors(frame, moments + (0 if plan.keeps_half else 3))
        end = None
        if not plan.keeps_half:
            w, b, i = self.sizes[plan.cut]
            for vector, size, dtype in zip(tensors, (w, b, i), (self.dtype, self.buffers, torch.int64), strict=False):
                self._vector(vector, size, dtype)
            end = Vectors(*tensors[:3])
        m = tensors[len(tensors) - moments :]
        for moment in m:
            self._vector(moment, self.sizes[plan.cut][0], self.dtype)
        return Report(
            at,
            end,
            numbers["samples"],
            Moments(tuple(m), numbers["t"]) if m else None,
            numbers["position"],
            numbers["tried"],
            numbers["clipped"],
            plan.keeps_half,
            plan.shares_memory,
        )

    def _tensors(self, frame: Frame, n: int) -> list[Tensor]:
        _must(len(frame.tensors) == n, f"a {frame.kind} of {len(frame.tensors)} tensors, expected {n}")
        return list(frame.tensors)

    def _batch(self, x: Tensor, shape: tuple[int, ...], plan: Plan, what: str) -> None:
        """Rows of one shape, as many as a batch may have."""
        B = plan.schedule.batch_size
        good = x.dtype == self.dtype and x.ndim == 1 + len(shape) and tuple(x.shape[1:]) == shape
        expected = f"expected {self.dtype} {self.least}..{B} x {shape}"
        _must(good and self.least <= len(x) <= B, f"{what} of {x.dtype} {tuple(x.shape)}, {expected}")
        _must(bool(torch.isfinite(x).all()), f"{what} with NaN or infinity")

    def _vector(self, x: Tensor, size: int, dtype: torch.dtype) -> None:
        _must(
            x.dtype == dtype and tuple(x.shape) == (size,), f"a vector of {x.dtype} {tuple(x.shape)}, expected {size}"
        )
        _must(not x.is_floating_point() or bool(torch.isfinite(x).all()), "weights with NaN or infinity")


def address_of(frame: Frame) -> Address:
    """Which message of which step it is, by its own words."""
    at = frame.words.get("at")
    if not (isinstance(at, list) and len(at) == 4 and all(isinstance(n, int) for n in at)):
        raise FrameError(f"a {frame.kind[:20]!r} without an address")
    return Address(*at)


def agreed(
    model: nn.Module, cuts: tuple[int, int], layout: Layout, rows: Source, classes: int | None, device: torch.device
) -> Contract:
    """What a model and a few rows like the clients' say."""
    x, y = rows.take(np.zeros(2, dtype=np.int64), device)
    shapes: list[tuple[int, ...]] = []
    with torch.no_grad(), OwnRandomness():
        out: Any = ordered(x, False)
        for block in blocks_of(twin(model).to(device).eval()):
            out = block(out)
            shapes.append(tuple(out.shape[1:]) if isinstance(out, Tensor) else ())
    fronts = {L: half(model, layout.client(L), device) for L in range(cuts[0], cuts[1] + 1)}
    dtype, buffers, _ = fronts[cuts[0]].dtypes
    return Contract(
        dtype=dtype,
        buffers=buffers,
        sizes={L: front.sizes for L, front in fronts.items()},
        a={L: shapes[L] for L in fronts},
        z=shapes[-1 - layout.tail] if layout.tail else None,
        y=(tuple(y.shape[1:]), y.dtype),
        classes=classes,
        least=1 if _takes_one(model, each(ordered(x, False), lambda t: t[:1]), device) else 2,
    )


def _takes_one(model: nn.Module, x: Inputs, device: torch.device) -> bool:
    """Whether a batch of one row can be trained on: a batch norm may see one number then, and refuse."""
    try:
        with torch.no_grad(), OwnRandomness():
            in_order(blocks_of(twin(model).to(device).train()), x)
    except ValueError:
        return False
    return True


def _must(good: bool, what: str) -> None:
    if not good:
        raise FrameError(what)


def _where(at: Address) -> str:
    step = "report" if at.step < 0 else f"step {at.step}"
    return f"round {at.round}, attempt {at.attempt}, client {at.client}, {step}"
