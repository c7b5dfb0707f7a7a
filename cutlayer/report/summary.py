"""The numbers of a comparison: accuracy, rounds to target, speed-up, bytes, seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cutlayer.core import toml
from cutlayer.engine.records import Round
from cutlayer.errors import StoreError, unknown
from cutlayer.experiment import comparison, journal, run_directory
from cutlayer.report.measure import Measure, Score


@dataclass(frozen=True)
class Outcome:
    """What one run has written."""

    seed: int
    rounds: list[Round]
    status: str

    def values(self, name: str) -> list[tuple[int, float]]:
        """Return a number of every round that has it: (round, number)."""
        found = ((r.n, getattr(r, name)) for r in self.rounds)
        return [(n, value) for n, value in found if value is not None]

    @property
    def best(self) -> float:
        return max((value for _, value in self.values("accuracy")), default=math.nan)

    @property
    def final(self) -> float:
        return next((value for _, value in reversed(self.values("accuracy"))), math.nan)

    @property
    def last_ten(self) -> float:
        scores = [value for _, value in self.values("accuracy")][-10:]
        return statistics.fmean(scores) if scores else math.nan

    def score(self, kind: Score) -> float:
        """Return the accuracy of the best round, of the last one, or the mean of the last ten."""
        return {"best": self.best, "final": self.final, "last_ten": self.last_ten}[kind]

    def time_to(self, target: float) -> float | None:
        """Return the simulated seconds until the accuracy is at least the target, or None."""
        needed = self.rounds_to(target)
        times = [r.sim_seconds for r in self.rounds[:needed]]
        return None if needed is None or None in times else math.fsum(t for t in times if t is not None)

    def rounds_to(self, target: float) -> int | None:
        """Return the first round whose accuracy is at least the target, or None."""
        return next((n for n, value in self.values("accuracy") if value >= target), None)


@dataclass(frozen=True)
class Trained:
    """The runs of one method. `baseline`: the method whose rounds are its 1.00x, if it is not the comparison's.
    `at`: the values of the parameters that a sweep varies."""

    label: str
    outcomes: list[Outcome]
    baseline: str | None = None
    at: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """The numbers of one method."""

    label: str
    score: float
    score_std: float
    best: float
    best_std: float
    final: float
    last_ten: float
    rounds_to_target: float | None  # mean over seeds; None: not every seed reached it
    reached: int
    baseline: str  # whose rounds are 1.00x
    speedup: float | None
    time_to_target: float | None  # simulated seconds, mean over seeds; None: not every seed reached it
    own: dict[str, float]  # with a test set per client: means over seeds, of the last round that tested everybody
    bytes_per_client: float  # up and down, per round
    seconds: float  # mean over seeds
    at: Mapping[str, float]  # where the method stands in a sweep
    outcomes: list[Outcome]

    @property
    def budget(self) -> int:
        return max((len(o.rounds) for o in self.outcomes), default=0)

    @property
    def diverged(self) -> int:
        return sum(o.status == "diverged" for o in self.outcomes)


@dataclass(frozen=True)
class Table:
    """The numbers of a comparison."""

    rows: list[Row]
    baseline: str
    target: float
    measure: Measure
    validation: bool = False  # tested on rows of the training set that were set aside

    @property
    def goal(self) -> str:
        """The target in words."""
        at = "" if math.isnan(self.target) else f"{100 * self.target:.2f} %"
        return ", ".join(part for part in (self.measure.words.format(self.baseline), at) if part)


OWN = ("accuracy", "f1", "mcc", "auc", "client_std", "worst_tenth")


def _own(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the scores of the clients' models on their own rows, where these were tested: means over seeds."""
    last = [next((r.series["all"] for r in reversed(o.rounds) if "all" in r.series), None) for o in outcomes]
    means = {}
    for name in OWN:
        values = [float(value) for found in last if found and (value := found.get(name)) is not None]
        if values and len(values) == len(outcomes):
            means[name] = statistics.fmean(values)
    return means


def gather(out: Path) -> list[Trained]:
    """Read what the runs of a comparison, or a single run, have written so far."""
    if (out / "compare.toml").exists():
        both = comparison.read(out)
        found = []
        for m in both.methods:
            runs = [(seed, comparison.folder(out, m, seed)) for seed in both.seeds]
            outcomes = [outcome(path, seed) for seed, path in runs if path.exists()]
            found.append(Trained(m.label, outcomes, m.baseline or None, m.at))
        return found
    if (out / "config.toml").exists():
        seed = toml.read(out / "config.toml").get("seed", 0)  # not parsed: its parts may not be registered here
        return [Trained(out.resolve().name, [outcome(out, int(seed))])]
    raise StoreError(f"{out} holds neither a run nor a comparison")


def outcome(path: Path, seed: int) -> Outcome:
    summary = run_directory.read_summary(path)
    return Outcome(seed, journal.read(path / "journal.jsonl"), summary["status"] if summary else "unfinished")


def tabulate(methods: Sequence[Trained], measure: Measure = Measure(), validation: bool = False) -> Table:
    """Make one row per method."""
    labels = [one.label for one in methods]
    baseline = measure.baseline or ("FedAvg" if "FedAvg" in labels else labels[0])
    if baseline not in labels:
        raise unknown("baseline", baseline, labels)
    outcomes = {one.label: one.outcomes for one in methods}
    bests = [o.best for o in outcomes[baseline] if not math.isnan(o.best)]
    target = measure.target
    if target is None:
        target = measure.share * statistics.fmean(bests) if bests else math.nan
    rows = []
    for one in methods:
        against = one.baseline if one.baseline in labels and measure.baseline is None else baseline
        assert against is not None
        rows.append(_row(one, measure.score, target, against, rounds_to(outcomes[against], target)))
    return Table(rows, baseline, target, measure, validation)


def _row(one: Trained, score: Score, target: float, baseline: str, reference: float | None) -> Row:
    outcomes = one.outcomes
    rounds = [r for o in outcomes for r in o.rounds]
    turns = sum(r.participants for r in rounds)
    needed = rounds_to(outcomes, target)
    mean, std = spread([o.score(score) for o in outcomes])
    best, best_std = spread([o.best for o in outcomes])
    return Row(
        label=one.label,
        score=mean,
        score_std=std,
        best=best,
        best_std=best_std,
        final=spread([o.final for o in outcomes])[0],
        last_ten=spread([o.last_ten for o in outcomes])[0],
        rounds_to_target=needed,
        reached=sum(o.rounds_to(target) is not None for o in outcomes),
        baseline=baseline,
        speedup=reference / needed if reference and needed else None,
        time_to_target=_mean_of_all([o.time_to(target) for o in outcomes]),
        own=_own(outcomes),
        bytes_per_client=sum(r.bytes_up + r.bytes_down for r in rounds) / turns if turns else math.nan,
        seconds=sum(r.seconds for r in rounds) / len(outcomes) if outcomes else math.nan,
        at=one.at,
        outcomes=outcomes,
    )


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation of the values that are numbers; not-a-number if there are none."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan, 0.0
    return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0


def rounds_to(outcomes: Sequence[Outcome], target: float) -> float | None:
    """Return the rounds to a target accuracy, mean over seeds, or None if a seed never reached it."""
    return _mean_of_all([o.rounds_to(target) for o in outcomes])


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is missing."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None
