"""Several methods, several seeds: one run directory each, in parallel processes, resumable as a whole.

OUT/compare.toml     what is compared: seeds, the common config, each method's differences
OUT/runs/LABEL/seed-0/   a run directory like any other
"""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
import torch

from cutlayer import config as text
from cutlayer import store
from cutlayer.config import Config
from cutlayer.errors import CutlayerError, Diverged, StoreError, expect, unknown
from cutlayer.experiment import Experiment, assemble
from cutlayer.methods import Method


@dataclass(frozen=True)
class Comparison:
    """Methods x seeds over one common config."""

    base: Mapping[str, Any]
    methods: Sequence[Method]
    seeds: Sequence[int]

    def __post_init__(self) -> None:
        expect(len(self.methods) > 0, "schemes", [], "at least one method")
        expect(len(self.seeds) > 0, "seeds", [], "at least one seed")
        expect(len(set(self.seeds)) == len(self.seeds), "seeds", list(self.seeds), "each seed once")
        labels = [m.label for m in self.methods]
        expect(len({slug(label) for label in labels}) == len(labels), "schemes", labels, "each method once")

    def config(self, m: Method, seed: int) -> Config:
        return text.parse({**text.merge(self.base, m.changes), "seed": seed})

    def runs(self) -> list[tuple[Method, int]]:
        """Seed by seed, so that an interrupted comparison has whole seeds."""
        return [(m, seed) for seed in self.seeds for m in self.methods]

    def dump(self) -> str:
        methods = [{"label": m.label, **m.changes} for m in self.methods]
        return tomli_w.dumps({"seeds": list(self.seeds), "base": dict(self.base), "methods": methods})

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Comparison:
        for key in values:
            if key not in ("seeds", "base", "methods"):
                raise unknown("comparison key", key, ("seeds", "base", "methods"))
        methods = []
        for entry in values.get("methods", []):
            changes = {key: value for key, value in entry.items() if key != "label"}
            expect("label" in entry, "methods", entry, "a label in each")
            methods.append(Method(str(entry["label"]), changes))
        return cls(dict(values.get("base", {})), methods, list(values.get("seeds", [0])))


def read(out: Path) -> Comparison:
    return Comparison.parse(text.read(out / "compare.toml"))


def slug(label: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-")


def folder(out: Path, m: Method, seed: int) -> Path:
    return out / "runs" / slug(m.label) / f"seed-{seed}"


def start(comparison: Comparison, out: Path, overwrite: bool) -> None:
    """Check every method against the data, then make the directory."""
    for m in comparison.methods:
        try:
            assemble(comparison.config(m, comparison.seeds[0]))
        except CutlayerError as error:
            raise type(error)(f"{m.label}: {error}") from error
    store.claim(out, "compare.toml", comparison.dump(), overwrite)


@dataclass(frozen=True)
class Progress:
    """How far one run of a comparison is."""

    label: str
    seed: int
    done: int
    total: int
    accuracy: float | None
    status: str  # waiting, running, complete, diverged


def train_all(comparison: Comparison, out: Path, jobs: int) -> Iterator[list[Progress]]:
    """Train whatever is not trained yet, `jobs` runs at a time; yields where every run is, a few times a second."""
    todo = {}
    for m, seed in comparison.runs():
        if store.read_summary(folder(out, m, seed)) is None:
            todo[m.label, seed] = (text.dump(comparison.config(m, seed)), str(folder(out, m, seed)))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=max(1, min(jobs, len(todo) or 1)), mp_context=context) as pool:
        futures: dict[Future[None], tuple[str, int]] = {pool.submit(_work, *job): key for key, job in todo.items()}
        try:
            pending = set(futures)
            while pending:
                _, pending = wait(pending, timeout=0.3)
                for future in futures:
                    if future.done():
                        future.result()
                yield progress(comparison, out)
        except BrokenProcessPool as error:
            raise StoreError(f"a training process was killed; continue with `cutlayer resume {out}`") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    yield progress(comparison, out)


def progress(comparison: Comparison, out: Path) -> list[Progress]:
    """Where every run is, from the files it writes."""
    found = []
    for m, seed in comparison.runs():
        path = folder(out, m, seed)
        total = int(comparison.config(m, seed).rounds)
        summary = store.read_summary(path)
        journal = path / "journal.jsonl"
        lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
        accuracy = json.loads(lines[-1])["accuracy"] if lines else None
        status = summary["status"] if summary else "running" if path.exists() else "waiting"
        found.append(Progress(m.label, seed, len(lines), total, accuracy, status))
    return found


def _work(config: str, out: str) -> None:
    """One run, in a process of its own; one that diverges has said so in its summary."""
    torch.set_num_threads(1)
    path = Path(out)
    if (path / "config.toml").exists():
        experiment = Experiment.resume(path)
    else:
        experiment = Experiment.start(text.parse(text.loads(config)), path)
    try:
        for _ in experiment:
            pass
    except Diverged:
        pass
