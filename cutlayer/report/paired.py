"""Paired differences: two methods with the same seeds saw the same clients and batches, so they are compared seed by
seed. The interval is Student's t, 95 %, over the seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from cutlayer.report.summary import Row, Table

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """The mean of paired differences, and half the width of its interval."""

    mean: float
    half: float
    seeds: int

    @property
    def excludes_zero(self) -> bool:
        return abs(self.mean) > self.half


@dataclass(frozen=True)
class Difference:
    """A method less another: scores, and rounds to the target where all seeds of both reached it."""

    label: str
    baseline: str
    score: Interval
    rounds: Interval | None


def interval(differences: Sequence[float]) -> Interval | None:
    """Return mean and interval of two or more differences, or None.

    >>> found = interval([1.0, 2.0, 3.0])
    >>> found.mean, round(found.half, 3), found.seeds
    (2.0, 2.484, 3)
    """
    n = len(differences)
    if n < 2:
        return None
    from scipy.special import stdtrit  # here: it takes a while to load, and many reports have one seed

    t = float(stdtrit(n - 1, (1 + LEVEL) / 2))
    return Interval(statistics.fmean(differences), t * statistics.stdev(differences) / math.sqrt(n), n)


def difference(row: Row, baseline: Row, table: Table) -> Difference | None:
    """Return what one method has over another, or None with fewer than two seeds in common."""
    theirs = {o.seed: o for o in baseline.outcomes}
    pairs = [(o, theirs[o.seed]) for o in row.outcomes if o.seed in theirs]
    kind = table.measure.score
    scores = [ours.score(kind) - other.score(kind) for ours, other in pairs]
    found = interval([score for score in scores if not math.isnan(score)])
    if found is None:
        return None
    needed = [(ours.rounds_to(table.target), other.rounds_to(table.target)) for ours, other in pairs]
    both = [a - b for a, b in needed if a is not None and b is not None]
    return Difference(row.label, baseline.label, found, interval(both) if len(both) == len(needed) else None)


def differences(table: Table) -> list[Difference]:
    """Return every method less its baseline, where there are two seeds or more."""
    rows = {row.label: row for row in table.rows}
    found = (difference(row, rows[row.baseline], table) for row in table.rows if row.baseline != row.label)
    return [one for one in found if one is not None]
