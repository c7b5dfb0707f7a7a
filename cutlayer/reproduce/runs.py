"""The runs behind an item: which there are, where they lie, what they have written. Items that need the same run share
it, because a run's folder is named by its config.

OUT/runs/cifar10-smofi-1a2b3c4d5e/seed-0/   a run directory like any other
OUT/smofi-table-1/                          the table: report.html, table.md, table.json, figure.png
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cutlayer.data import hub
from cutlayer.data.tasks import SOURCES, data_folder, load_task
from cutlayer.experiment import config as text
from cutlayer.experiment.config import Config
from cutlayer.experiment.description import FILE
from cutlayer.experiment.pool import Job
from cutlayer.report.retime import WhatIf, retimed
from cutlayer.report.summary import Outcome, outcome
from cutlayer.reproduce.item import Cell, Item
from cutlayer.reproduce.results import Found
from cutlayer.reproduce.scales import PUBLISHED, scaled

NOT_TRAINED = "sequential"  # concerns simulated time alone, which can be counted again


def key(values: Mapping[str, Any]) -> str:
    """Return the name of a run's folder: its task, its scheme and a digest of its config."""
    told = {name: value for name, value in values.items() if name != NOT_TRAINED and value is not None}
    if dict(told.get("update", {})).get("name") == "fedavg":
        del told["update"]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:10]
    return f"{values['task']}-{values['scheme']['name']}-{digest}"


class Runs:
    """The runs of an item at a scale. `more`: config values of this machine, such as the data folder."""

    def __init__(self, item: Item, scale: str, seeds: Sequence[int], out: Path, more: Mapping[str, Any]) -> None:
        self.item, self.scale, self.seeds, self.out, self.more = item, scale, tuple(seeds), out, more
        self._missing = {task: missing(task, more.get("data_dir")) for task in item.tasks}

    def values(self, cell: Cell) -> dict[str, Any]:
        return scaled(cell.values, self.scale)

    def folder(self, cell: Cell, seed: int) -> Path:
        return self.out / "runs" / key(self.values(cell)) / f"seed-{seed}"

    def config(self, cell: Cell, seed: int) -> Config:
        return text.parse({**self.values(cell), **self.more, "seed": seed})

    @property
    def without_data(self) -> list[str]:
        """The tasks whose data are not there."""
        return [task for task, lacking in self._missing.items() if lacking]

    def fewer_rows(self) -> list[str]:
        """The tasks of which only a part is there, where the scale takes all training rows."""
        found = []
        for task, lacking in self._missing.items():
            all_of_it = any(
                self.values(c).get("train_rows") is None for c in self.item.cells if c.values["task"] == task
            )
            if lacking or task not in PUBLISHED or not all_of_it:
                continue
            here = len(load_task(task, data_folder(self._folder)).train.y)
            if here < PUBLISHED[task]:
                found.append(f"{task}: {here:,} training rows (published: {PUBLISHED[task]:,})")
        return found

    @property
    def _folder(self) -> Path | None:
        given = self.more.get("data_dir")
        return None if given is None else Path(given)

    def jobs(self) -> list[Job]:
        """Return every run once, seed by seed; none of a task whose data are not there."""
        found: dict[Path, Job] = {}
        for seed in self.seeds:
            for cell in self.item.cells:
                folder = self.folder(cell, seed)
                if not self._missing[str(cell.values["task"])] and folder not in found:
                    found[folder] = Job(f"{cell.panel}: {cell.row}", self.config(cell, seed), folder)
        return list(found.values())

    def found(self) -> Found:
        """Return what each cell's runs have written so far, or why there are none."""
        return {cell.place: self._found(cell) for cell in self.item.cells}

    def _found(self, cell: Cell) -> list[Outcome] | str:
        outcomes = []
        for seed in self.seeds:
            folder = self.folder(cell, seed)
            if not (folder / FILE).exists():
                continue
            known = outcome(folder, seed)
            if cell.values.get(NOT_TRAINED):
                again = retimed(folder, known.rounds, WhatIf(sequential=str(cell.values[NOT_TRAINED])))
                known = Outcome(seed, again, known.status)
            outcomes.append(known)
        if outcomes:
            return outcomes
        return "no data" if self._missing[str(cell.values["task"])] else "not trained"


def missing(task: str, data_dir: str | None) -> bool:
    """Whether a task's rows are not there: neither in the data folder, nor on a hub that can be asked. Reads only
    the names of files."""
    about = SOURCES[task]
    root = data_folder(None if data_dir is None else Path(data_dir))
    there = root is not None and (root / task).is_dir() and any((root / task).iterdir())
    return not (about.shipped or there or (about.hub is not None and hub.installed()))
