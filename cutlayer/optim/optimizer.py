"""What an optimizer is: one update of a flat vector, direction and memory together (docs/algorithms.md).

    regularise   g <- g + lam*w                     coupled weight decay, where an optimizer has it
    update       w and its moments m, from g        t = steps since the memory was reset, counting from 1

Momentum fusion asks one thing more, how a step goes on from the fused momentum. An optimizer with one moment says it in
`fused`: the step is taken, and the new moment takes the place of the gradient. One with more has moments that are
linear in something of the gradient: `accumulate` adds that, and `betas` are the factors of the old moments.
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
    """What training needs of an optimizer; SGD, NAG, Adam, AdamW and Lion are ones."""

    @property
    def lr(self) -> float: ...
    @property
    def decay(self) -> Decay: ...
    @property
    def moments(self) -> int:
        """How many vectors it remembers."""

    @property
    def remembers(self) -> bool:
        """Whether a step depends on those before it: without momentum there is nothing to fuse or to average."""

    @property
    def decoupled(self) -> bool:
        """Whether weights decay apart from the gradient."""

    def regularise(self, g: Tensor, w: Tensor) -> None:
        """g <- g + lam*w, in place; nothing where the decay is decoupled."""

    def update(self, w: Tensor, g: Tensor, m: Sequence[Tensor], eta: float, t: int) -> None:
        """Step t: w and m in place. All may be one vector, or several rows at once; `g` has been regularised."""


@runtime_checkable
class OneMoment(Optimizer, Protocol):
    """An optimizer with one moment."""

    def past(self, m_bar: Tensor) -> Tensor:
        """What `fused` needs of m_bar, once for all rows."""

    def fused(self, w: Tensor, g: Tensor, past: Tensor, eta: float, t: int) -> None:
        """Step t of rows whose moment is m_bar: w in place, and the new moment in the place of g."""


@runtime_checkable
class LinearMoments(Optimizer, Protocol):
    """An optimizer whose moments are beta*m + fresh(g)."""

    @property
    def betas(self) -> tuple[float, ...]:
        """The factor of each old moment; they are corrected by 1 - beta^t."""

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
    """Two factors of moments, as a tuple."""
    two = isinstance(betas, tuple | list) and len(betas) == 2 and all(is_number(b) and 0 <= b < 1 for b in betas)
    expect(two, "betas", betas, "two numbers in [0, 1)")
    return betas[0], betas[1]
