"""The numbers of a comparison: best accuracy, rounds to target, speed-up, bytes, seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cutlayer.engine.records import Round
from cutlayer.errors import StoreError
from cutlayer.experiment import comparison, config, journal, run_directory

SHARE = 0.9  # the target is this share of the baseline's best accuracy


@dataclass(frozen=True)
class Outcome:
    """What one run has written."""

    seed: int
    rounds: list[Round]
    status: str

    @property
    def best(self) -> float:
        return max((r.accuracy for r in self.rounds if r.accuracy is not None), default=math.nan)

    @property
    def last_ten(self) -> float:
        scores = [r.accuracy for r in self.rounds if r.accuracy is not None][-10:]
        return statistics.fmean(scores) if scores else math.nan

    def time_to(self, target: float) -> float | None:
        """Return the simulated seconds until the accuracy is at least the target, or None."""
        needed = self.rounds_to(target)
        times = [r.sim_seconds for r in self.rounds[:needed]]
        return None if needed is None or None in times else math.fsum(t for t in times if t is not None)

    def rounds_to(self, target: float) -> int | None:
        """Return the first round whose accuracy is at least the target, or None."""
        return next((r.n for r in self.rounds if r.accuracy is not None and r.accuracy >= target), None)


@dataclass(frozen=True)
class Row:
    """The numbers of one method."""

    label: str
    best: float
    best_std: float
    last_ten: float
    rounds_to_target: float | None  # mean over seeds; None: not every seed reached it
    reached: int
    speedup: float | None
    time_to_target: float | None  # simulated seconds, mean over seeds; None: not every seed reached it
    own: dict[str, float]  # with a test set per client: means over seeds, of the last round that tested everybody
    bytes_per_client: float  # up and down, per round
    seconds: float  # mean over seeds
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


def gather(out: Path) -> list[tuple[str, list[Outcome]]]:
    """Read what the runs of a comparison, or a single run, have written so far."""
    if (out / "compare.toml").exists():
        both = comparison.read(out)
        found = []
        for m in both.methods:
            runs = [(seed, comparison.folder(out, m, seed)) for seed in both.seeds]
            found.append((m.label, [outcome(path, seed) for seed, path in runs if path.exists()]))
        return found
    if (out / "config.toml").exists():
        seed = config.read(out / "config.toml").get("seed", 0)  # not parsed: its parts may not be registered here
        return [(out.resolve().name, [outcome(out, int(seed))])]
    raise StoreError(f"{out} holds neither a run nor a comparison")


def outcome(path: Path, seed: int) -> Outcome:
    summary = run_directory.read_summary(path)
    return Outcome(seed, journal.read(path / "journal.jsonl"), summary["status"] if summary else "unfinished")


def tabulate(methods: Sequence[tuple[str, list[Outcome]]], target: float | None = None) -> Table:
    """Make one row per method. The baseline is FedAvg, else the first; `target`: None for 90 % of its best accuracy."""
    labels = [label for label, _ in methods]
    baseline = "FedAvg" if "FedAvg" in labels else labels[0]
    outcomes = dict(methods)
    bests = [o.best for o in outcomes[baseline] if not math.isnan(o.best)]
    if target is None:
        target = SHARE * statistics.fmean(bests) if bests else math.nan
    reference = _rounds_to(outcomes[baseline], target)
    return Table([_row(label, os, target, reference) for label, os in methods], baseline, target)


def _row(label: str, outcomes: list[Outcome], target: float, reference: float | None) -> Row:
    bests = [o.best for o in outcomes if not math.isnan(o.best)]
    rounds = [r for o in outcomes for r in o.rounds]
    turns = sum(r.participants for r in rounds)
    needed = _rounds_to(outcomes, target)
    return Row(
        label=label,
        best=statistics.fmean(bests) if bests else math.nan,
        best_std=statistics.stdev(bests) if len(bests) > 1 else 0.0,
        last_ten=statistics.fmean([o.last_ten for o in outcomes]) if outcomes else math.nan,
        rounds_to_target=needed,
        reached=sum(o.rounds_to(target) is not None for o in outcomes),
        speedup=reference / needed if reference and needed else None,
        time_to_target=_mean_of_all([o.time_to(target) for o in outcomes]),
        own=_own(outcomes),
        bytes_per_client=sum(r.bytes_up + r.bytes_down for r in rounds) / turns if turns else math.nan,
        seconds=sum(r.seconds for r in rounds) / len(outcomes) if outcomes else math.nan,
        outcomes=outcomes,
    )


def _rounds_to(outcomes: Sequence[Outcome], target: float) -> float | None:
    return _mean_of_all([o.rounds_to(target) for o in outcomes])


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is missing."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None
