"""The interface of an optimizer: it updates a flat vector and its own memory together (docs/algorithms.md).

    regularise   g <- g + lam*w                     coupled weight decay, where an optimizer has it
    update       w and its moments m, from g        t = steps since the memory was reset, counting from 1

Momentum fusion needs one thing more: how a step continues from the fused momentum. An optimizer with one moment
implements `fused`, which takes the step and overwrites the gradient with the new moment (and, if it can take weight
decay along, `fused_with_decay`). With several moments, each new
one must be beta*m + fresh(g): `betas` are the factors of the old moments, and `accumulate` adds fresh(g).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from cutlayer.errors import expect, is_number

Decay = float | Callable[[int], float]
"""The learning rate's factor per round, or a function round -> factor."""


class Optimizer(Protocol):
    """What an optimizer must provide; SGD, NAG, Adam, AdamW and Lion are optimizers."""

    @property
    def lr(self) -> float: ...
    @property
    def decay(self) -> Decay: ...
    @property
    def moments(self) -> int:
        """How many vectors it remembers."""

    @property
    def remembers(self) -> bool:
        """Whether a step depends on earlier ones. If not, there is no momentum to fuse or to average."""

    @property
    def decoupled(self) -> bool:
        """Whether weight decay acts on the weights directly and is not added to the gradient."""

    def regularise(self, g: Tensor, w: Tensor) -> None:
        """g <- g + lam*w, in place; nothing where the decay is decoupled."""

    def update(self, w: Tensor, g: Tensor, m: Sequence[Tensor], eta: float, t: int) -> None:
        """Take step t: update w and m in place, one vector or several rows at once. `g` has been regularised."""


@runtime_checkable
class OneMoment(Optimizer, Protocol):
    """An optimizer with one moment."""

    def past(self, m_bar: Tensor) -> Tensor:
        """Return what `fused` needs of m_bar; it is called once for all rows."""

    def fused(self, w: Tensor, g: Tensor, past: Tensor, eta: float, t: int) -> None:
        """Take step t of rows whose moment is m_bar: update w in place, and overwrite g with the new moment."""


@runtime_checkable
class OnePass(OneMoment, Protocol):
    """An optimizer with one moment that takes weight decay and step together, faster than one after the other. A class
    that inherits it from another has another step, perhaps, and is not asked for it."""

    def fused_with_decay(self, w: Tensor, g: Tensor, past: Tensor, eta: float, t: int) -> None:
        """`regularise`, then `fused`, of rows (a matrix) whose elements lie side by side in each row."""


@runtime_checkable
class LinearMoments(Optimizer, Protocol):
    """An optimizer whose moments are beta*m + fresh(g)."""

    @property
    def betas(self) -> tuple[float, ...]:
        """The factor of each old moment. The bias of a moment is corrected by 1 - beta^t."""

    def accumulate(self, m: Sequence[Tensor], g: Tensor) -> None:
        """m <- m + fresh(g), in place."""


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


def check_rates(lr: float, weight_decay: float, decay: Decay) -> None:
    """Refuse numbers that no optimizer can work with."""
    expect(is_number(lr) and lr > 0, "lr", lr, "a finite number above 0")
    expect(is_number(weight_decay) and weight_decay >= 0, "weight_decay", weight_decay, "a finite number, at least 0")
    if not callable(decay):
        expect(is_number(decay) and decay > 0, "decay", decay, "a finite number above 0, or a function")


def check_betas(betas: Sequence[float]) -> tuple[float, float]:
    """Check the factors of two moments, and return them as a tuple."""
    two = isinstance(betas, tuple | list) and len(betas) == 2 and all(is_number(b) and 0 <= b < 1 for b in betas)
    expect(two, "betas", betas, "two numbers in [0, 1)")
    return betas[0], betas[1]
