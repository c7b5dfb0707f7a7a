"""What a report measures. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from cutlayer.errors import expect, unknown

Score = Literal["best", "final", "last_ten"]
SCORES: tuple[Score, ...] = get_args(Score)
SHARE = 0.9  # the target is this share of the baseline's best accuracy


@dataclass(frozen=True)
class Measure:
    """What is measured: a score, and the rounds to a target accuracy (None: a share of the baseline's best).
    `baseline`: a method's label (None: FedAvg, or else the first)."""

    score: Score = "best"
    target: float | None = None
    share: float = SHARE
    baseline: str | None = None

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise unknown("score", self.score, SCORES)
        expect(self.target is None or 0 < self.target <= 1, "target", self.target, "an accuracy in (0, 1]")
        expect(0 < self.share <= 2, "share", self.share, "a share of the baseline's best, above 0 and at most 2")

    @property
    def words(self) -> str:
        """The target in words, for a baseline called `{}`."""
        return "" if self.target is not None else f"{self.share:.0%} of {{}}'s best"
