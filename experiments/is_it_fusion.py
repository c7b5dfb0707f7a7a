"""Is it fusion? The study of experiments/is_it_fusion.md, which was written before it ran.

    python experiments/is_it_fusion.py tune --data-dir DATA --out runs/fusion   choose values on validation rows
    python experiments/is_it_fusion.py test --data-dir DATA --out runs/fusion   train with them, five seeds, test rows
    python experiments/is_it_fusion.py show --out runs/fusion                   the answer so far; is_it_fusion.json

Interrupted, each goes on where it was. `--setting` is one of SETTINGS; the first is the study's own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cutlayer.experiment import config as text
from cutlayer.experiment import journal
from cutlayer.experiment.experiment import Experiment
from cutlayer.report.measure import Measure
from cutlayer.report.paired import difference
from cutlayer.report.retime import WhatIf, retimed
from cutlayer.report.summary import Outcome, Trained, tabulate

RATES, MOMENTA, GLOBAL = (0.01, 0.02, 0.05, 0.1), (0.0, 0.5, 0.9), (0.0, 0.3, 0.5, 0.9)
TUNED_WITH, TESTED_WITH = 100, (0, 1, 2, 3, 4)
RUNGS = ((12, 4), (6, 8), (3, 15))  # successive halving: so many settings, up to so many rounds
VALIDATION = 0.1
PRIMARY = ("SMoFi + FedAvgM", "FedAvgM")
Point = dict[str, float]


@dataclass(frozen=True)
class Studied:
    """A method: what it changes, what is tuned of it, and what is fixed."""

    label: str
    changes: Mapping[str, Any]
    grid: Mapping[str, Sequence[float]] = field(default_factory=lambda: {"lr": RATES, "momentum": MOMENTA})

    def points(self) -> list[Point]:
        """All settings, or as many of them as the first rung has, drawn once."""
        every = [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]
        if len(every) <= RUNGS[0][0]:
            return every
        drawn = np.random.default_rng([TUNED_WITH, *self.label.encode()]).permutation(len(every))
        return [every[i] for i in sorted(drawn[: RUNGS[0][0]])]

    def values(self, point: Point) -> dict[str, Any]:
        """The config values of a setting."""
        rates = {key: point[key] for key in ("lr", "momentum") if key in point}
        out = text.merge({"optimizer": {"name": "sgd"}}, {**self.changes, "optimizer": rates})
        if "server_momentum" in self.changes.get("fixed", {}):
            out["server_optimizer"] = {**out["optimizer"], "name": "sgd", "momentum": 0.0}
        if "beta_g" in point:
            out["update"] = {"name": "fedavgm", "beta": point["beta_g"], **out.get("update", {})}
        return {key: value for key, value in out.items() if key != "fixed"}


BOTH = {"lr": RATES, "momentum": MOMENTA, "beta_g": GLOBAL}
METHODS = (
    Studied("FedAvg", {"scheme": "fedavg"}),
    Studied("FedAvgM", {"scheme": "fedavg"}, BOTH),
    Studied("SMoFi", {"scheme": "smofi"}),
    Studied("SMoFi + FedAvgM", {"scheme": "smofi"}, BOTH),
    Studied("SFLV2 (reset each round)", {"scheme": {"name": "sflv2", "reset": "round"}}),
    Studied("FedNAG", {"scheme": "fedavg", "update": {"name": "fednag"}}, {"lr": RATES, "momentum": MOMENTA[1:]}),
    Studied(
        "control (a): no local momentum, FedAvgM(0.9)",
        {"scheme": "fedavg", "update": {"name": "fedavgm", "beta": 0.9}},
        {"lr": RATES, "momentum": (0.0,)},
    ),
    Studied(
        "control (b): momentum on the front, FedAvgM on the back",
        {"scheme": "fedavg", "update": {"half": "back"}, "fixed": {"server_momentum": 0.0}},
        {"lr": RATES, "momentum": (0.9,), "beta_g": GLOBAL},
    ),
)
CIFAR: dict[str, Any] = {
    "task": "cifar10",
    "train_rows": 20_000,
    "model": {"name": "resnet", "width": 8},
    "cut": 1,
    "clients": 100,
    "participation": 20,
    "partition": {"name": "dirichlet", "gamma": 0.2},
    "batch_size": 32,
    "local_epochs": 5,
    "rounds": 60,
    "profile": "lte",
    "optimizer": {"name": "sgd", "weight_decay": 5e-4, "decay": 0.998},
}
WRITERS = {"task": "femnist", "model": {"name": "leaf_cnn", "width": 16, "hidden": 256}, "cut": 1, "clients": None}
SETTINGS: dict[str, dict[str, Any]] = {
    "cifar10": CIFAR,
    "cifar10-10": {**CIFAR, "participation": 10, "rounds": 30},
    "cifar10-40": {**CIFAR, "participation": 40, "rounds": 30},
    "femnist": {**CIFAR, **WRITERS, "train_rows": None, "partition": {"name": "natural", "min_size": 35}, "rounds": 30},
    "femnist-cyclesl": {
        **{**CIFAR, **WRITERS, "train_rows": None, "partition": {"name": "natural", "min_size": 35}},
        **{"protocol": "cyclesl", "participation": 0.05, "last_batch": "keep", "rounds": 300, "evaluate_every": 10},
    },
    "speech": {
        **{**CIFAR, "task": "speech_commands", "model": {"name": "vgg11", "width": 8}, "cut": 2, "train_rows": None},
        **{"clients": 20, "participation": 5, "batch_size": 8, "partition": {"name": "dirichlet", "min_size": 8}},
    },
}


def methods(setting: str) -> list[Studied]:
    """The methods that a setting allows: FedNAG averages momentum that protocol cyclesl leaves to each client."""
    return [m for m in METHODS if not (m.label == "FedNAG" and SETTINGS[setting].get("protocol") == "cyclesl")]


def base(setting: str, **more: Any) -> dict[str, Any]:
    return {key: value for key, value in {**SETTINGS[setting], **more}.items() if value is not None}


@dataclass(frozen=True)
class Job:
    """A run, to be trained up to a round."""

    values: Mapping[str, Any]
    folder: Path
    upto: int


def advance(job: Job) -> None:
    """Train a run up to a round; it goes on where it was."""
    torch.set_num_threads(1)
    if (job.folder / "config.toml").exists():
        experiment = Experiment.resume(job.folder)
    else:
        experiment = Experiment.start(text.parse(job.values), job.folder)
    rounds = iter(experiment)
    while len(experiment.history) < job.upto and next(rounds, None) is not None:
        pass
    rounds.close()  # type: ignore[attr-defined]


def train(jobs: Sequence[Job], workers: int) -> None:
    """Train these, a few at a time; what is there is not trained again."""
    todo = [job for job in jobs if len(accuracies(job.folder)) < job.upto]
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=1) as pool:
        for number, _ in enumerate(pool.imap_unordered(_try, todo), start=1):
            print(f"{number} of {len(todo)} runs", flush=True)


def _try(job: Job) -> None:
    try:
        advance(job)
    except Exception as error:  # a setting that diverges has lost
        print(f"{job.folder}: {type(error).__name__}: {error}", flush=True)


def accuracies(folder: Path) -> list[float | None]:
    path = folder / "journal.jsonl"
    return [record.accuracy for record in journal.read(path)] if path.exists() else []


def score(folder: Path, rounds: int) -> float:
    """The mean accuracy of the last three rounds up to a round; zero if the run did not get there."""
    found = accuracies(folder)[:rounds]
    last = [value for value in found if value is not None][-3:]
    return statistics.fmean(last) if len(found) == rounds and last else 0.0


def name_of(point: Point) -> str:
    return "-".join(f"{key}{value:g}" for key, value in point.items())


def tune(setting: str, out: Path, data_dir: str, workers: int) -> dict[str, Point]:
    """Choose each method's values by successive halving, with the same budget for every method."""
    alive = {m.label: m.points() for m in methods(setting)}
    chosen, scores = {}, []
    for settings, rounds in RUNGS:
        jobs = []
        for m in methods(setting):
            for point in alive[m.label][:settings]:
                values = base(setting, rounds=RUNGS[-1][1], data_dir=data_dir, seed=TUNED_WITH, validation=VALIDATION)
                folder = out / setting / "tuning" / slug(m.label) / name_of(point)
                jobs.append(Job(text.merge(values, m.values(point)), folder, rounds))
        train(jobs, workers)
        for m in methods(setting):
            where = out / setting / "tuning" / slug(m.label)
            ranked = sorted(alive[m.label][:settings], key=lambda p, at=where: -score(at / name_of(p), rounds))
            scores += [
                {"method": m.label, **p, "round": rounds, "score": score(where / name_of(p), rounds)} for p in ranked
            ]
            alive[m.label] = ranked
            chosen[m.label] = ranked[0]
    (out / setting / "tuned.json").write_text(json.dumps({"chosen": chosen, "scores": scores}, indent=1))
    return chosen


def slug(label: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in label.lower()).strip("-")


def tests(setting: str, out: Path, data_dir: str | None) -> Iterator[tuple[Studied, int, Job]]:
    chosen = json.loads((out / setting / "tuned.json").read_text())["chosen"]
    for seed in TESTED_WITH:
        for m in methods(setting):
            values = text.merge(base(setting, data_dir=data_dir, seed=seed), m.values(chosen[m.label]))
            folder = out / setting / "test" / slug(m.label) / f"seed-{seed}"
            yield m, seed, Job(values, folder, SETTINGS[setting]["rounds"])


def show(setting: str, out: Path) -> None:
    """Print the table and the comparisons that were named beforehand; write is_it_fusion.json beside this file."""
    outcomes: dict[str, list[Outcome]] = {m.label: [] for m in methods(setting)}
    for m, seed, job in tests(setting, out, None):
        if (job.folder / "summary.json").exists():
            timed = retimed(job.folder, journal.read(job.folder / "journal.jsonl"), WhatIf(profile="lte"))
            outcomes[m.label].append(Outcome(seed, timed, "complete"))
    found = tabulate([Trained(label, some) for label, some in outcomes.items()], Measure("last_ten"))
    rows = {row.label: row for row in found.rows}
    kept: dict[str, Any] = {"setting": setting, "primary": PRIMARY, "rows": {}, "differences": {}}
    for label, row in rows.items():
        drift = [r.drift_server for o in row.outcomes for r in o.rounds if r.drift_server is not None]
        kept["rows"][label] = {
            "seeds": [o.seed for o in row.outcomes],
            "last_ten": [o.last_ten for o in row.outcomes],
            "best": [o.best for o in row.outcomes],
            "rounds_to_target": row.rounds_to_target,
            "time_to_target": row.time_to_target,
            "drift_server": statistics.fmean(drift) if drift else None,
        }
        other = difference(rows[PRIMARY[0]], row, found)
        if other is not None and label != PRIMARY[0]:
            kept["differences"][label] = [other.score.mean, other.score.half]
            star = " *" if other.score.excludes_zero else ""
            print(f"{PRIMARY[0]} - {label}: {100 * other.score.mean:+.2f} ± {100 * other.score.half:.2f} points{star}")
        print(label, f"{100 * row.last_ten:.2f} %", "R", row.rounds_to_target)
    path = Path(__file__).with_name("is_it_fusion.json")
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, setting: kept}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tune", "test", "show"))
    parser.add_argument("--setting", default="cifar10", choices=tuple(SETTINGS))
    parser.add_argument("--data-dir", help="folder of data sets")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    args = parser.parse_args()
    if args.what == "tune":
        print(json.dumps(tune(args.setting, args.out, args.data_dir, args.jobs), indent=1))
    elif args.what == "test":
        train([job for *_, job in tests(args.setting, args.out, args.data_dir)], args.jobs)
    else:
        show(args.setting, args.out)


if __name__ == "__main__":
    main()
