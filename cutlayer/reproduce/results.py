"""The numbers of an item's cells, from what their runs have written."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cutlayer.report.measure import Measure
from cutlayer.report.paired import Interval, interval
from cutlayer.report.summary import Outcome, rounds_to, spread
from cutlayer.reproduce.item import Cell, Item

HOUR = 3600.0


@dataclass(frozen=True)
class Result:
    """The numbers of a cell. `missing`: why there are none.

    scores     mean and standard deviation over seeds: accuracy, loss, f1, mcc
    rounds     to the target, mean over seeds; None: a seed did not reach it in `budget` rounds
    hours      simulated, to the target, or of all rounds
    against    accuracy less that of `baseline`, seed by seed
    baseline   the block's own row, or the target's, or the first one of the panel
    """

    cell: Cell
    outcomes: Sequence[Outcome] = ()
    missing: str = ""
    scores: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    target: float = math.nan
    rounds: float | None = None
    budget: int = 0
    speedup: float | None = None
    hours: float | None = None
    against: Interval | None = None
    baseline: str = ""

    @property
    def diverged(self) -> int:
        return sum(o.status == "diverged" for o in self.outcomes)

    def plain(self, drawn: Sequence[str] = ()) -> dict[str, Any]:
        """Return the numbers for JSON. `drawn`: what a figure shows of every round."""
        cell = self.cell
        place = {"panel": cell.panel, "block": cell.block, "row": cell.row, "x": cell.x}
        if self.missing:
            return {**place, "missing": self.missing}
        scores = {name: None if math.isnan(mean) else [mean, std] for name, (mean, std) in self.scores.items()}
        seeds = {
            o.seed: {
                **{"best": _known(o.best), "final": _known(o.final), "last_ten": _known(o.last_ten)},
                **{name: [[n, float(f"{value:.5g}")] for n, value in o.values(name)] for name in drawn},
            }
            for o in self.outcomes
        }
        difference = None if self.against is None else [self.against.mean, self.against.half]
        return {
            **place,
            **scores,
            "target": _known(self.target),
            "rounds": self.rounds,
            "budget": self.budget,
            "speedup": self.speedup,
            "hours": self.hours,
            "baseline": self.baseline,
            "difference_from_baseline": difference,
            "diverged": self.diverged,
            "seeds": seeds,
        }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


Found = Mapping[tuple[str, str, str, float | None], Sequence[Outcome] | str]
"""By a cell's place: what its runs have written, or why there are none."""


def results(item: Item, found: Found, reduced: bool) -> list[Result]:
    """Return the numbers of every cell, those that are not shown included."""
    bare = []
    for cell in item.cells:
        outcomes = found[cell.place]
        if isinstance(outcomes, str):
            bare.append(Result(cell, missing=outcomes))
        else:
            bare.append(Result(cell, outcomes, scores=_scores(item, outcomes), budget=_budget(outcomes)))
    done = []
    for result in bare:
        target = _target(item, result.cell.panel, bare, reduced)
        baseline = next((r for r in bare if _same(r.cell, result.cell) and r.cell.row == r.cell.block), None)
        other = baseline or _compared_with(item, result.cell, bare)
        done.append(result if result.missing else _measured(result, target, baseline, other, item))
    return done


def _compared_with(item: Item, cell: Cell, bare: Sequence[Result]) -> Result:
    """Return what a cell is compared with, if its block has no row of its own name."""
    panel = [r for r in bare if r.cell.panel == cell.panel]
    return next((r for r in panel if r.cell.row == item.target.row), panel[0])


def _same(a: Cell, b: Cell) -> bool:
    return (a.panel, a.block) == (b.panel, b.block)


def _budget(outcomes: Sequence[Outcome]) -> int:
    return max((len(o.rounds) for o in outcomes), default=0)


def _scores(item: Item, outcomes: Sequence[Outcome]) -> dict[str, tuple[float, float]]:
    found = {"accuracy": spread([o.score(item.score) for o in outcomes])}
    for name in ("loss", "f1", "mcc"):
        values = [o.values(name) for o in outcomes]
        found[name] = spread([last[-1][1] if last else math.nan for last in values])
    return found


def _target(item: Item, panel: str, bare: Sequence[Result], reduced: bool) -> float:
    """Return the accuracy that rounds are counted to in a panel; not-a-number if its reference has not been trained."""
    number, share = item.target.of(panel, reduced)
    if number is not None:
        return number
    reference = (r for r in bare if r.cell.panel == panel and r.cell.row == item.target.row)
    bests = [o.best for r in reference for o in r.outcomes if not math.isnan(o.best)]
    return share * statistics.fmean(bests) if bests else math.nan


def _measured(result: Result, target: float, baseline: Result | None, other: Result, item: Item) -> Result:
    measure = Measure(item.score)
    outcomes = result.outcomes
    needed = rounds_to(outcomes, target)
    reference = None if baseline is None else rounds_to(baseline.outcomes, target)
    theirs = {} if other.cell is result.cell else {o.seed: o for o in other.outcomes}
    pairs = [(o.score(measure.score), theirs[o.seed].score(measure.score)) for o in outcomes if o.seed in theirs]
    return Result(
        result.cell,
        outcomes,
        scores=result.scores,
        target=target,
        rounds=needed,
        budget=result.budget,
        speedup=reference / needed if reference and needed else None,
        hours=_hours(outcomes, target),
        against=interval([ours - its for ours, its in pairs if not math.isnan(ours + its)]),
        baseline=other.cell.row,
    )


def _hours(outcomes: Sequence[Outcome], target: float) -> float | None:
    """Return the simulated hours to the target, mean over seeds; of all rounds, if a seed did not reach it."""
    to_target = [o.time_to(target) for o in outcomes]
    if any(time is None for time in to_target):
        to_target = [math.fsum(time for _, time in o.values("sim_seconds")) for o in outcomes]
    known = [time for time in to_target if time is not None]
    return statistics.fmean(known) / HOUR if known else None
