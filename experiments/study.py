"""Studies that are written down before they run: tune by successive halving on validation rows, then test.

A study is a table of methods and a table of settings. Every method has the same budget for its tuning; the runs that
are tested use other seeds and the test rows. What was interrupted goes on where it was.

Of FEMNIST's writers and Shakespeare's roles, every third is set aside for the last test of a method of our own
(`set_aside`); no study touches them before.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cutlayer as cl
from cutlayer.data.tasks import load_task
from cutlayer.experiment import config as text
from cutlayer.experiment import journal
from cutlayer.experiment.experiment import Experiment

RATES, MOMENTA, GLOBAL = (0.01, 0.02, 0.05, 0.1), (0.0, 0.5, 0.9), (0.0, 0.3, 0.5, 0.9)
TUNED_WITH, TESTED_WITH = 100, (0, 1, 2, 3, 4)
RUNGS = ((12, 4), (6, 8), (3, 15))  # successive halving: so many settings, up to so many rounds
VALIDATION = 0.1
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


def slug(label: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in label.lower()).strip("-")


def set_aside(task: str, min_size: int, data_dir: str | None, out: Path) -> None:
    """Write who takes part in studies (TASK-open.json) and who is set aside (TASK-aside.json), as partition files."""
    rows = load_task(task, None if data_dir is None else Path(data_dir)).everything
    parts = list(cl.partition.natural(rows.owners, min_size=min_size))
    out.mkdir(parents=True, exist_ok=True)
    for name, some in (("open", [p for i, p in enumerate(parts) if i % 3]), ("aside", parts[::3])):
        lines = json.dumps({j: part.tolist() for j, part in enumerate(some)})
        (out / f"{task}-{name}.json").write_text(lines)


@dataclass(frozen=True)
class Study:
    """The settings by name, the methods of each, and where the runs are."""

    settings: Mapping[str, Mapping[str, Any]]
    methods: Callable[[str], Sequence[Studied]]
    out: Path
    data_dir: str | None = None
    workers: int = 2

    def base(self, setting: str, **more: Any) -> dict[str, Any]:
        told = {**self.settings[setting], **more, "data_dir": self.data_dir}
        if told["partition"]["name"] == "file":
            told["partition"] = {**told["partition"], "path": str((self.out / told["partition"]["path"]).absolute())}
        return {key: value for key, value in told.items() if value is not None}

    def tune(self, setting: str) -> dict[str, Point]:
        """Choose each method's values by successive halving, with the same budget for every method."""
        alive = {m.label: m.points() for m in self.methods(setting)}
        chosen, scores = {}, []
        for settings, rounds in RUNGS:
            jobs = []
            for m in self.methods(setting):
                for point in alive[m.label][:settings]:
                    values = self.base(setting, rounds=RUNGS[-1][1], seed=TUNED_WITH, validation=VALIDATION)
                    folder = self.out / setting / "tuning" / slug(m.label) / name_of(point)
                    jobs.append(Job(text.merge(values, m.values(point)), folder, rounds))
            train(jobs, self.workers)
            for m in self.methods(setting):
                where = self.out / setting / "tuning" / slug(m.label)
                ranked = sorted(alive[m.label][:settings], key=lambda p, at=where: -score(at / name_of(p), rounds))
                scores += [
                    {"method": m.label, **p, "round": rounds, "score": score(where / name_of(p), rounds)}
                    for p in ranked
                ]
                alive[m.label] = ranked
                chosen[m.label] = ranked[0]
        (self.out / setting / "tuned.json").write_text(json.dumps({"chosen": chosen, "scores": scores}, indent=1))
        return chosen

    def tests(self, setting: str) -> Iterator[tuple[Studied, int, Job]]:
        """The runs that are tested, with the values that were chosen."""
        chosen = json.loads((self.out / setting / "tuned.json").read_text())["chosen"]
        for seed in TESTED_WITH:
            for m in self.methods(setting):
                values = text.merge(self.base(setting, seed=seed), m.values(chosen[m.label]))
                folder = self.out / setting / "test" / slug(m.label) / f"seed-{seed}"
                yield m, seed, Job(values, folder, int(self.settings[setting]["rounds"]))

    def test(self, setting: str) -> None:
        train([job for *_, job in self.tests(setting)], self.workers)
