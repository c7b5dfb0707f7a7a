"""Studies that are written down before they run: tune by successive halving on validation rows, then test.

A study is a table of methods and a table of settings. Every method has the same budget for its tuning; the runs that
are tested use other seeds and the test rows. What was interrupted goes on where it was.

Of FEMNIST's writers and Shakespeare's roles, every third is set aside for the last test of a method of our own
(`set_aside`); no study touches them before.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from collect import commit, machine

import cutlayer as cl
from cutlayer.core import heap
from cutlayer.core.files import write_aside
from cutlayer.data.tasks import load_task
from cutlayer.engine.records import Round
from cutlayer.errors import Diverged
from cutlayer.experiment import config as text
from cutlayer.experiment import journal
from cutlayer.experiment.experiment import Experiment

RATES, MOMENTA, GLOBAL = (0.01, 0.02, 0.05, 0.1), (0.0, 0.5, 0.9), (0.0, 0.3, 0.5, 0.9)
TUNED_WITH, TESTED_WITH = 100, (0, 1, 2, 3, 4)
RUNGS = ((12, 4), (6, 8), (3, 15))  # successive halving: so many settings, up to so many rounds
VALIDATION = 0.1
KEPT = Path(__file__).with_name("studies")
COLUMNS = ("accuracy", "loss", "sim_seconds", "drift_server")  # of a run's rounds, and its sums, that are kept
TOTALS = ("participants", "bytes_up", "bytes_down", "macs_client", "macs_server", "seconds")
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
        out = text.merge({"optimizer": {"name": "sgd"}}, {**consistent(self.changes, point), "optimizer": rates})
        if "server_momentum" in self.changes.get("fixed", {}):
            out["server_optimizer"] = {**out["optimizer"], "name": "sgd", "momentum": 0.0}
        if "beta_g" in point:
            out["update"] = {"name": "fedavgm", "beta": point["beta_g"], **out.get("update", {})}
        return {key: value for key, value in out.items() if key != "fixed"}


def consistent(changes: Mapping[str, Any], point: Point) -> Mapping[str, Any]:
    """A method at a point: momentum that fades with its age (`fade`) fades as it does inside the optimizer."""
    scheme = changes.get("scheme")
    if not isinstance(scheme, Mapping) or scheme.get("fade") is None:
        return changes
    return text.merge(changes, {"scheme": {"fade": point["momentum"]}})


@dataclass(frozen=True)
class Job:
    """A run, to be trained up to a round."""

    values: Mapping[str, Any]
    folder: Path
    upto: int


def advance(job: Job) -> None:
    """Train a run up to a round; it goes on where it was."""
    torch.set_num_threads(1)
    heap.keep()
    if (job.folder / "config.toml").exists():
        experiment = Experiment.resume(job.folder)
    else:
        experiment = Experiment.start(text.parse(job.values), job.folder)
    rounds = iter(experiment)
    while len(experiment.history) < job.upto and next(rounds, None) is not None:
        pass
    rounds.close()  # type: ignore[attr-defined]


def _try(job: Job) -> Job:
    with suppress(Diverged):  # a setting that diverges has lost
        advance(job)
    return job


@dataclass(frozen=True)
class Runs:
    """Runs in a folder, and what they have found in a file beside the program, a line for each. The file is committed,
    so that a study goes on on another machine: a run that was trained there is not trained again."""

    out: Path
    kept: Path

    def train(self, jobs: Sequence[Job], workers: int) -> None:
        """Train these, a few at a time; what is there is not trained again."""
        known = self.known()
        todo = [job for job in jobs if not _enough(known.get(self.name(job.folder)), job)]
        begin = time.monotonic()
        with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=1) as pool:
            for number, job in enumerate(pool.imap_unordered(_try, todo), start=1):
                self.keep(job)
                minutes = (time.monotonic() - begin) / 60
                print(f"{number} of {len(todo)} runs, {minutes:.1f} min: {self.name(job.folder)}", flush=True)

    def name(self, folder: Path) -> str:
        return folder.relative_to(self.out).as_posix()

    def keep(self, job: Job) -> None:
        """Write down what a run has found so far, in place of what it had found before."""
        rounds = journal.read(job.folder / journal.FILE) if (job.folder / journal.FILE).exists() else []
        line = {
            **{"run": self.name(job.folder), "config": digest(job.values), "commit": commit()},
            "machine": machine(),
            "diverged": len(rounds) < job.upto,
            **{name: [_short(getattr(r, name)) for r in rounds] for name in COLUMNS},
            **{name: sum(getattr(r, name) for r in rounds) for name in TOTALS},
        }
        lines = {**self.known(), line["run"]: line}
        self.kept.parent.mkdir(exist_ok=True)
        write_aside(self.kept, "".join(f"{json.dumps(lines[name])}\n" for name in sorted(lines)).encode())

    def known(self) -> dict[str, dict[str, Any]]:
        """What is written down, by the run's name."""
        lines = map(json.loads, self.kept.read_text().splitlines()) if self.kept.exists() else ()
        return {line["run"]: line for line in lines}

    def rounds(self, folder: Path) -> list[Round]:
        """The rounds of a run that are written down."""
        found = self.known().get(self.name(folder), dict.fromkeys(COLUMNS, ()))
        columns = zip(*(found[name] for name in COLUMNS), strict=True)
        return [Round(n, **dict(zip(COLUMNS, values, strict=True))) for n, values in enumerate(columns, start=1)]

    def score(self, folder: Path, upto: int) -> float:
        """The mean accuracy of the last three tests up to a round; zero if the run did not get there."""
        found = [record.accuracy for record in self.rounds(folder)[:upto]]
        last = [value for value in found if value is not None][-3:]
        return statistics.fmean(last) if len(found) == upto and last else 0.0


def _enough(line: Mapping[str, Any] | None, job: Job) -> bool:
    """Whether a run was trained with these values, as far as it is to be."""
    if line is None or line["config"] != digest(job.values):
        return False
    return bool(line["diverged"]) or len(line["accuracy"]) >= job.upto


def digest(values: Mapping[str, Any]) -> str:
    """A name for what is trained, wherever its files are."""
    told = {key: value for key, value in values.items() if key != "data_dir"}
    if told.get("partition", {}).get("name") == "file":
        told["partition"] = {**told["partition"], "path": Path(told["partition"]["path"]).name}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def name_of(point: Point) -> str:
    return "-".join(f"{key}{value:g}" for key, value in point.items())


def slug(label: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in label.lower()).strip("-")


def set_aside(task: str, min_size: int, data_dir: str | None, out: Path, most: int | None = None) -> None:
    """Write who takes part in studies (TASK-open.json) and who is set aside (TASK-aside.json), as partition files.
    `most`: the first so many rows of each."""
    rows = load_task(task, None if data_dir is None else Path(data_dir)).everything
    parts = list(cl.partition.natural(rows.owners, min_size=min_size))
    out.mkdir(parents=True, exist_ok=True)
    for name, some in (("open", [p for i, p in enumerate(parts) if i % 3]), ("aside", parts[::3])):
        lines = json.dumps({j: part[:most].tolist() for j, part in enumerate(some)})
        (out / f"{task}-{name}.json").write_text(lines)


@dataclass(frozen=True)
class Study:
    """The settings by name, the methods of each, and where the runs are."""

    name: str
    settings: Mapping[str, Mapping[str, Any]]
    methods: Callable[[str], Sequence[Studied]]
    out: Path
    data_dir: str | None = None
    workers: int = 2
    rounds: Callable[[Studied], int] | None = None  # of a method's test; None: as the setting says
    longer: Mapping[str, int] = field(default_factory=dict)  # settings whose tuning has so many times the rounds

    def base(self, setting: str, **more: Any) -> dict[str, Any]:
        told = {**self.settings[setting], **more, "data_dir": self.data_dir}
        if told["partition"]["name"] == "file":
            told["partition"] = {**told["partition"], "path": str((self.out / told["partition"]["path"]).absolute())}
        return {key: value for key, value in told.items() if value is not None}

    def runs(self, setting: str) -> Runs:
        return Runs(self.out / setting, KEPT / f"{self.name}-{setting}.jsonl")

    def tune(self, setting: str) -> dict[str, Point]:
        """Choose each method's values by successive halving, with the same budget for every method."""
        alive, runs = {m.label: m.points() for m in self.methods(setting)}, self.runs(setting)
        chosen, scores = {}, []
        rungs = [(settings, rounds * self.longer.get(setting, 1)) for settings, rounds in RUNGS]
        for settings, rounds in rungs:
            jobs = []
            for m in self.methods(setting):
                for point in alive[m.label][:settings]:
                    values = self.base(setting, rounds=rungs[-1][1], seed=TUNED_WITH, validation=VALIDATION)
                    folder = runs.out / "tuning" / slug(m.label) / name_of(point)
                    jobs.append(Job(text.merge(values, m.values(point)), folder, rounds))
            runs.train(jobs, self.workers)
            for m in self.methods(setting):
                where = runs.out / "tuning" / slug(m.label)
                found = [(runs.score(where / name_of(p), rounds), p) for p in alive[m.label][:settings]]
                found.sort(key=lambda one: -one[0])
                scores += [{"method": m.label, **p, "round": rounds, "score": score} for score, p in found]
                alive[m.label] = [p for _, p in found]
                chosen[m.label] = alive[m.label][0]
        lines = ",\n  ".join(map(json.dumps, scores))
        self.tuned(setting).write_text(f'{{"chosen": {json.dumps(chosen, indent=1)},\n "scores": [\n  {lines}]}}\n')
        return chosen

    def tuned(self, setting: str) -> Path:
        """The file with the values that were chosen."""
        return KEPT / f"{self.name}-{setting}-tuned.json"

    def tests(self, setting: str) -> Iterator[tuple[Studied, int, Job]]:
        """The runs that are tested, with the values that were chosen."""
        chosen = json.loads(self.tuned(setting).read_text())["chosen"]
        for m in self.methods(setting):
            rounds = int(self.settings[setting]["rounds"]) if self.rounds is None else self.rounds(m)
            for seed in TESTED_WITH:
                values = text.merge(self.base(setting, seed=seed, rounds=rounds), m.values(chosen[m.label]))
                folder = self.runs(setting).out / "test" / slug(m.label) / f"seed-{seed}"
                yield m, seed, Job(values, folder, rounds)

    def test(self, setting: str) -> None:
        self.runs(setting).train([job for *_, job in self.tests(setting)], self.workers)
