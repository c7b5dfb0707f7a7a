"""Learning-rate schedules: a factor on the rates of both optimizers, by round and by step within it.

n   the round, from 1        k   the client's optimizer step in it, from 0        eta   lr * decay^(n-1) * factor(n, k)

A factor is a function of round and step, so nothing has to be remembered: a resumed run has the rates of one that was
never interrupted. Within a round, a client's server half steps with the rate of the client's own step.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cutlayer.errors import ContractError, expect, is_number, is_whole


class LRSchedule(Protocol):
    """A factor on the learning rates."""

    @property
    def by_step(self) -> bool:
        """Whether the factor changes within a round."""

    def __call__(self, n: int, k: int) -> float:
        """The factor of step k of round n, at least 0."""


@dataclass(frozen=True)
class Cosine:
    """A linear rise over the first `warmup` rounds to 1, then half a cosine down to `floor` after `rounds` rounds.

    Without `warmup` it is torch's CosineAnnealingLR(T_max=rounds), stepped once a round.

    >>> [round(Cosine(rounds=6, warmup=2)(n), 3) for n in range(1, 9)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """

    rounds: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        expect(is_whole(self.rounds) and self.rounds >= 1, "rounds", self.rounds, "a whole number, at least 1")
        few = is_whole(self.warmup) and 0 <= self.warmup < self.rounds
        expect(few, "warmup", self.warmup, f"rounds, from 0 to below {self.rounds}")
        expect(is_number(self.floor) and 0 <= self.floor <= 1, "floor", self.floor, "a number from 0 to 1")

    @property
    def by_step(self) -> bool:
        return False

    def __call__(self, n: int, k: int = 0) -> float:
        if n <= self.warmup:
            return n / self.warmup
        t = min((n - 1 - self.warmup) / (self.rounds - self.warmup), 1.0)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * t)) / 2


@dataclass(frozen=True)
class Warmup:
    """A linear rise to 1 over the first `rounds` rounds, and within each round over its first `steps` steps.

    >>> [Warmup(rounds=2, steps=2)(n, k) for n in (1, 2, 3) for k in (0, 1, 2)]
    [0.25, 0.5, 0.5, 0.5, 1.0, 1.0, 0.5, 1.0, 1.0]
    """

    rounds: int = 5
    steps: int = 0

    def __post_init__(self) -> None:
        for name in ("rounds", "steps"):
            value = getattr(self, name)
            expect(is_whole(value) and value >= 0, name, value, "a whole number, at least 0")

    @property
    def by_step(self) -> bool:
        return self.steps > 1

    def __call__(self, n: int, k: int = 0) -> float:
        return min(1.0, n / max(self.rounds, 1)) * min(1.0, (k + 1) / max(self.steps, 1))


@dataclass(frozen=True)
class OfFunction:
    """A user's function of the round, or of the round and the step."""

    function: Callable[..., float]
    by_step: bool

    def __call__(self, n: int, k: int) -> float:
        where = (n, k) if self.by_step else (n,)
        factor = self.function(*where)
        good = is_number(factor) and factor >= 0
        expect(good, f"lr_schedule({', '.join(map(str, where))})", factor, "a finite number, at least 0")
        return float(factor)


def as_lr_schedule(given: Any) -> LRSchedule | None:
    """Return a schedule; a function becomes one, by its parameters that have no default: one (n), or two (n, k)."""
    if given is None or hasattr(given, "by_step"):
        made: LRSchedule | None = given
        return made
    takes = inspect.signature(given).parameters.values()
    needed = [p for p in takes if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(needed) not in (1, 2):
        raise ContractError(
            f"lr_schedule = {given}: expected a function of the round, or of the round and the step, not of "
            f"{len(needed)} parameters"
        )
    return OfFunction(given, len(needed) == 2)
