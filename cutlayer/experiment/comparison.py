"""What is compared: methods and seeds over one common config, as text. Trains nothing, and does not load torch.

OUT/compare.toml         what is compared: seeds, the common config, each method's differences
OUT/runs/LABEL/seed-0/   a run directory like any other
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from cutlayer.core import toml
from cutlayer.errors import expect, unknown
from cutlayer.experiment import config as text
from cutlayer.experiment.config import Config
from cutlayer.experiment.methods import Method


@dataclass(frozen=True)
class Comparison:
    """Methods x seeds over one common config."""

    base: Mapping[str, Any]
    methods: Sequence[Method]
    seeds: Sequence[int]

    def __post_init__(self) -> None:
        expect(len(self.methods) > 0, "schemes", [], "at least one method")
        expect(len(self.seeds) > 0, "seeds", [], "at least one seed")
        whole = all(isinstance(seed, int) and not isinstance(seed, bool) for seed in self.seeds)
        expect(whole, "seeds", list(self.seeds), "whole numbers")
        expect(len(set(self.seeds)) == len(self.seeds), "seeds", list(self.seeds), "each seed once")
        labels = [m.label for m in self.methods]
        expect(
            all(re.search("[a-z0-9]", slug(label)) for label in labels), "label", labels, "letters or digits in each"
        )
        expect(len({slug(label) for label in labels}) == len(labels), "schemes", labels, "each method once")

    def config(self, m: Method, seed: int) -> Config:
        changes = dict(m.changes)
        if isinstance(self.base.get("update"), Mapping) and "name" not in self.base["update"]:
            changes.setdefault("update", "fedavg")  # parameters alone do not choose an update
        base = dict(self.base)
        if "name" not in dict(base.get("local") or {}) and "local" not in changes:
            base.pop("local", None)  # and do not choose a local rule
        return text.parse({**text.merge(base, changes), "seed": seed})

    def runs(self) -> list[tuple[Method, int]]:
        """Return all runs, seed by seed, so that an interrupted comparison has complete seeds."""
        return [(m, seed) for seed in self.seeds for m in self.methods]

    def dump(self) -> str:
        methods = [{**_about(m), **m.changes} for m in self.methods]
        return tomli_w.dumps({"seeds": list(self.seeds), "base": dict(self.base), "methods": methods})

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Comparison:
        for key in values:
            if key not in ("seeds", "base", "methods"):
                raise unknown("comparison key", key, ("seeds", "base", "methods"))
        base, entries, seeds = values.get("base", {}), values.get("methods", []), values.get("seeds", [0])
        expect(isinstance(base, Mapping), "base", base, "a table of config values")
        expect(isinstance(entries, list), "methods", entries, "a list of tables")
        expect(isinstance(seeds, list), "seeds", seeds, "a list of whole numbers")
        methods = []
        for entry in entries:
            expect(isinstance(entry, Mapping) and "label" in entry, "methods", entry, "a table with a label")
            about = {key: str(entry.get(key, "")) for key in ("label", "name", "baseline")}
            changes = {key: value for key, value in entry.items() if key not in (*about, "at")}
            at = entry.get("at", {})
            numbers = isinstance(at, Mapping) and all(isinstance(value, int | float) for value in at.values())
            expect(numbers, "at", at, "a table of numbers")
            methods.append(Method(changes=changes, at=dict(at), **about))
        return cls(dict(base), methods, seeds)


def _about(m: Method) -> dict[str, Any]:
    """Return what is not part of a method's config."""
    about = {"label": m.label, "name": m.name, "baseline": m.baseline, "at": dict(m.at)}
    return {key: value for key, value in about.items() if value}


def read(out: Path) -> Comparison:
    return Comparison.parse(toml.read(out / "compare.toml"))


def slug(label: str) -> str:
    """Return a label as the name of a folder.

    >>> slug("SMoFi + FedAvgM"), slug("alpha -0.1")
    ('smofi-fedavgm', 'alpha-minus-0.1')
    """
    signed = re.sub(r"(?<![a-z0-9])-(?=[0-9.])", "minus-", label.lower())
    return re.sub(r"[^a-z0-9.]+", "-", signed).strip("-")


def folder(out: Path, m: Method, seed: int) -> Path:
    return out / "runs" / slug(m.label) / f"seed-{seed}"
