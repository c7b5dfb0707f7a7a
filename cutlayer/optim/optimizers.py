"""Optimizers on flat vectors, their memory explicit (docs/algorithms.md).

Each is the same three sentences, so that momentum can be fused between them:

    regularise   g <- g + lam*w                      coupled weight decay
    moments      m <- beta*m + fresh(g)              one or two moments; `absorb` adds fresh(g)
    apply        w <- w - eta*direction(g, m, t)     t = steps since the memory was reset, counting from 1

They equal torch.optim.SGD (dampening 0), SGD(nesterov=True), Adam and AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from cutlayer.core.threads import TOGETHER
from cutlayer.errors import expect, is_number

Decay = float | Callable[[int], float]
"""The learning rate's factor per round, or a function round -> factor."""


class Optimizer(Protocol):
    """What training needs of an optimizer; SGD, NAG, Adam and AdamW are ones."""

    @property
    def lr(self) -> float: ...
    @property
    def decay(self) -> Decay: ...
    @property
    def betas(self) -> tuple[float, ...]:
        """The decay of each moment."""

    @property
    def corrected(self) -> bool:
        """Whether moments are divided by 1 - beta^t."""

    def regularise(self, g: Tensor, w: Tensor) -> None:
        """g <- g + lam*w, in place."""

    def absorb(self, moments: Sequence[Tensor], g: Tensor) -> None:
        """moments <- moments + fresh(g), in place."""

    def apply(self, w: Tensor, g: Tensor, moments: Sequence[Tensor], eta: float, t: int) -> None:
        """w <- w - eta*direction, in place."""


@dataclass(frozen=True)
class SGD:
    """SGD with momentum: m <- beta*m + g; w <- w - eta*m."""

    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay: Decay = 1.0
    corrected: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_rates(self)
        expect(is_number(self.momentum) and 0 <= self.momentum < 1, "momentum", self.momentum, "a number in [0, 1)")

    @property
    def betas(self) -> tuple[float]:
        return (self.momentum,)

    def regularise(self, g: Tensor, w: Tensor) -> None:
        if self.weight_decay:
            g.add_(w, alpha=self.weight_decay)

    def absorb(self, moments: Sequence[Tensor], g: Tensor) -> None:
        moments[0].add_(g)

    def apply(self, w: Tensor, g: Tensor, moments: Sequence[Tensor], eta: float, t: int) -> None:
        w.add_(moments[0], alpha=-eta)

    def renew(self, w: Tensor, g: Tensor, past: Tensor, eta: float) -> None:
        """The same from beta*m, with the new m in the place of g: nothing else is read or written."""
        w.add_(g.add_(past), alpha=-eta)


@dataclass(frozen=True)
class NAG(SGD):
    """Nesterov's accelerated gradient, PyTorch's form: m <- beta*m + g; w <- w - eta*(g + beta*m)."""

    def apply(self, w: Tensor, g: Tensor, moments: Sequence[Tensor], eta: float, t: int) -> None:
        w.add_(g, alpha=-eta).add_(moments[0], alpha=-eta * self.momentum)

    def renew(self, w: Tensor, g: Tensor, past: Tensor, eta: float) -> None:
        w.add_(g, alpha=-eta).add_(g.add_(past), alpha=-eta * self.momentum)


@dataclass(frozen=True)
class Adam:
    """Adam: M <- b1*M + (1-b1)*g; V <- b2*V + (1-b2)*g^2; both divided by 1 - b^t."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay: Decay = 1.0
    corrected: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_rates(self)
        ok = (
            isinstance(self.betas, tuple | list)
            and len(self.betas) == 2
            and all(is_number(b) and 0 <= b < 1 for b in self.betas)
        )
        expect(ok, "betas", self.betas, "two numbers in [0, 1)")
        expect(is_number(self.eps) and self.eps > 0, "eps", self.eps, "a number above 0")
        object.__setattr__(self, "betas", tuple(self.betas))

    def regularise(self, g: Tensor, w: Tensor) -> None:
        if self.weight_decay:
            g.add_(w, alpha=self.weight_decay)

    def absorb(self, moments: Sequence[Tensor], g: Tensor) -> None:
        moments[0].add_(g, alpha=1 - self.betas[0])
        moments[1].addcmul_(g, g, value=1 - self.betas[1])

    def apply(self, w: Tensor, g: Tensor, moments: Sequence[Tensor], eta: float, t: int) -> None:
        c1, c2 = (1 - b**t for b in self.betas)
        M, V = moments
        scale = V.sqrt().div_(math.sqrt(c2)).add_(self.eps)
        w.addcdiv_(M, scale, value=-eta / c1)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled decay: w <- w*(1 - eta*lam) before the step."""

    def regularise(self, g: Tensor, w: Tensor) -> None:
        pass

    def apply(self, w: Tensor, g: Tensor, moments: Sequence[Tensor], eta: float, t: int) -> None:
        w.mul_(1 - eta * self.weight_decay)
        super().apply(w, g, moments, eta, t)


class Moments(NamedTuple):
    """What an optimizer remembers of one vector: its moments, and the steps since they were empty."""

    m: tuple[Tensor, ...]
    t: int

    def clone(self) -> Moments:
        return Moments(tuple(m.clone() for m in self.m), self.t)

    @property
    def nbytes(self) -> int:
        return sum(m.nbytes for m in self.m)

    def named(self) -> dict[str, Tensor]:
        """As tensors with names, to be kept; `read` takes them back."""
        return {**{f"moment{i}": m for i, m in enumerate(self.m)}, "t": torch.tensor(self.t)}

    @classmethod
    def read(cls, named: Mapping[str, Tensor]) -> Moments:
        m = tuple(named[f"moment{i}"] for i in range(sum(name.startswith("moment") for name in named)))
        return cls(m, int(named["t"]))


class Memory:
    """The moments of n rows and the steps each has taken."""

    def __init__(self, optimizer: Optimizer, like: Tensor) -> None:
        self.moments = [torch.zeros_like(like, memory_format=torch.contiguous_format) for _ in optimizer.betas]
        self.t = [0] * like.shape[0]

    def put(self, row: int, moments: Moments) -> None:
        """Remember this in a row."""
        for mine, theirs in zip(self.moments, moments.m, strict=True):
            mine[row] = theirs
        self.t[row] = moments.t

    def get(self, row: int) -> Moments:
        """What a row remembers, as views."""
        return Moments(tuple(m[row] for m in self.moments), self.t[row])

    def reset(self, row: int | slice = slice(None)) -> None:
        """Forget: moments zero, counters zero."""
        for moment in self.moments:
            moment[row].zero_()
        rows = range(len(self.t))[row] if isinstance(row, slice) else [row]
        for j in rows:
            self.t[j] = 0


def remember(optimizer: Optimizer, into: Sequence[Tensor], old: Sequence[Tensor], g: Tensor) -> None:
    """into <- beta*old + fresh(g); `old` may be one vector for all rows of `g`, or be `into` itself."""
    if type(optimizer).absorb is SGD.absorb:  # its one moment in one pass
        torch.add(g, old[0], alpha=optimizer.betas[0], out=into[0])
        return
    for new, moment, beta in zip(into, old, optimizer.betas, strict=True):
        if new is not moment:
            new.copy_(moment)
        new.mul_(beta)
    optimizer.absorb(into, g)


def step(optimizer: Optimizer, moments: Sequence[Tensor], w: Tensor, g: Tensor, eta: float, t: int) -> None:
    """Step t, counted from 1, of a vector or of several rows at once; `g` has been regularised."""
    remember(optimizer, moments, moments, g)
    optimizer.apply(w, g, moments, eta, t)


def runs(rows: Sequence[int], t: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Neighbouring rows with the same count of steps, a few at a time, as slices: what steps in one expression."""
    start = 0
    for end in range(1, len(rows) + 1):
        full = end - start == TOGETHER
        if full or end == len(rows) or rows[end] != rows[end - 1] + 1 or t[rows[end]] != t[rows[start]]:
            yield slice(rows[start], rows[end - 1] + 1), t[rows[start]]
            start = end


def rate(optimizer: Optimizer, round: int) -> float:
    """eta_n: lr * decay^(n-1), or lr * decay(n) where decay is a function."""
    if callable(optimizer.decay):
        factor = float(optimizer.decay(round))
        expect(is_number(factor) and factor >= 0, f"decay({round})", factor, "a finite number, at least 0")
        return optimizer.lr * factor
    try:
        return float(optimizer.lr * optimizer.decay ** (round - 1))
    except OverflowError:
        return math.inf


def _check_rates(o: SGD | Adam) -> None:
    expect(is_number(o.lr) and o.lr > 0, "lr", o.lr, "a finite number above 0")
    expect(
        is_number(o.weight_decay) and o.weight_decay >= 0, "weight_decay", o.weight_decay, "a finite number, at least 0"
    )
    if not callable(o.decay):
        expect(is_number(o.decay) and o.decay > 0, "decay", o.decay, "a finite number above 0, or a function")
