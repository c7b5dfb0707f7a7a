"""Local rules: what a client (and its server half) adds to the plain gradient (docs/algorithms.md).

    w0   the weights at the start of the round        h   g + mu*(w - w0) + lam*w, the regularised gradient
    A    max_norm                                      c   min(1, A / (||h|| + 1e-6)), one factor for all of h
                                                           (`Clip`: of g itself, before anything is added to it)

Both sides of the cut follow the same rule, each on its own half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from torch import Tensor

from cutlayer.errors import expect, is_number
from cutlayer.optim.optimizer import Optimizer

Norm = Literal["joint", "half"]


class Local(Protocol):
    """What a local rule must provide; FedProx and FedNAR are local rules."""

    @property
    def max_norm(self) -> float:
        """A, the largest norm of h; infinity: nothing is clipped."""

    @property
    def norm(self) -> Norm:
        """What ||h|| is taken over: both halves of a client together ("joint"), or each half separately ("half")."""

    @property
    def plain(self) -> bool:
        """Whether it clips the plain gradient, before the rules' terms and weight decay are added."""

    def pull(self, g: Tensor, w: Tensor, w0: Tensor) -> None:
        """Add the rule's term to the gradient, in place, before weight decay."""


@dataclass(frozen=True)
class FedProx:
    """A proximal term (Li et al. 2020): g <- g + mu*(w - w0). It is separable, so nothing more is sent."""

    mu: float = 0.01
    max_norm: ClassVar[float] = math.inf
    norm: ClassVar[Norm] = "half"
    plain: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_mu(self.mu)

    def pull(self, g: Tensor, w: Tensor, w0: Tensor) -> None:
        g.add_(w - w0, alpha=self.mu)


@dataclass(frozen=True)
class FedNAR:
    """Gradient and weight decay clipped together (Li et al. 2023): h <- c*h.

    `norm` "joint": ||h|| is taken over both halves of a client. This equals the method on the uncut model, and sends
    one number each way at every step. "half": each side clips by the norm of its own half, and nothing more is sent.
    """

    max_norm: float = 10.0
    norm: Norm = "joint"
    plain: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_norm(self.max_norm, self.norm)

    def pull(self, g: Tensor, w: Tensor, w0: Tensor) -> None:
        pass


@dataclass(frozen=True)
class Clip:
    """The gradient clipped by its norm, as `torch.nn.utils.clip_grad_norm_` does it: g <- c*g, before the rules' terms,
    weight decay and momentum. `norm`: of each "half" separately, or "joint", which sends one number each way at every
    step."""

    max_norm: float = 1.0
    norm: Norm = "half"
    plain: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_norm(self.max_norm, self.norm)

    def pull(self, g: Tensor, w: Tensor, w0: Tensor) -> None:
        pass


@dataclass(frozen=True)
class Rules:
    """Several rules at once: all of them add their terms, and at most one of them clips the result."""

    rules: tuple[Local, ...]

    def __post_init__(self) -> None:
        clipping = [rule for rule in self.rules if clips(rule)]
        expect(len(clipping) <= 1, "local", self.rules, "one rule that clips, at most")

    @property
    def max_norm(self) -> float:
        return min((rule.max_norm for rule in self.rules), default=math.inf)

    @property
    def norm(self) -> Norm:
        return next((rule.norm for rule in self.rules if clips(rule)), "half")

    @property
    def plain(self) -> bool:
        return any(rule.plain for rule in self.rules if clips(rule))

    def pull(self, g: Tensor, w: Tensor, w0: Tensor) -> None:
        for rule in self.rules:
            rule.pull(g, w, w0)

    def __str__(self) -> str:
        return " + ".join(str(rule) for rule in self.rules)


def fedprox_fednar(mu: float = 0.01, max_norm: float = 10.0, norm: Norm = "joint") -> Rules:
    """FedProx's term, then FedNAR's clipping."""
    return Rules((FedProx(mu), FedNAR(max_norm, norm)))


def parts_of(local: Local | None) -> tuple[Local, ...]:
    """The single rules that a local rule consists of."""
    return () if local is None else local.rules if isinstance(local, Rules) else (local,)


def combined(rules: Sequence[Local]) -> Local | None:
    """Combine several rules into one; None if there are none."""
    return Rules(tuple(rules)) if len(rules) > 1 else rules[0] if rules else None


def regularise(rule: Local | None, optimizer: Optimizer, g: Tensor, w: Tensor, w0: Tensor) -> None:
    """g <- h, in place."""
    if rule is not None:
        rule.pull(g, w, w0)
    optimizer.regularise(g, w)


def clips(rule: Local | None) -> bool:
    return rule is not None and rule.max_norm < math.inf


def clips_regularised(rule: Local | None) -> bool:
    """Whether it clips the regularised gradient, which must be whole before the step."""
    return rule is not None and clips(rule) and not rule.plain


def joint(rule: Local | None) -> bool:
    """Whether the two sides need each other's norm."""
    return rule is not None and clips(rule) and rule.norm == "joint"


def squared(h: Tensor) -> Tensor:
    """||h||^2, left on the device of h so that nothing waits for it."""
    square: Tensor = h.norm().double().square()
    return square


def clip(rule: Local, h: Tensor, square: Tensor) -> Tensor:
    """h <- c*h, in place; return whether c was below 1. `square`: ||h||^2, over one half or both as `norm` says."""
    c = rule.max_norm / (square.sqrt() + 1e-6)
    h.mul_(c.clamp(max=1).to(h.dtype))
    return c < 1


def _check_norm(max_norm: float, norm: str) -> None:
    ok = max_norm == math.inf or (is_number(max_norm) and max_norm > 0)
    expect(ok, "max_norm", max_norm, "a number above 0, or infinity")
    expect(norm in ("joint", "half"), "norm", norm, "'joint' or 'half'")


def _check_mu(mu: float) -> None:
    expect(is_number(mu) and mu >= 0, "mu", mu, "a finite number, at least 0")
