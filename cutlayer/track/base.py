"""What a tracker is, and what it is told of a run: its name, its config, and the figures of each round."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from cutlayer.core.files import write_aside
from cutlayer.engine.records import Round
from cutlayer.experiment import checkpoint, description, run_directory

FOLDER = run_directory.TRACK
PROJECT = "cutlayer"  # what a tracker calls all runs together, unless its own settings say otherwise
Plain = str | int | float | bool


@dataclass(frozen=True)
class Row:
    """The figures of one round."""

    step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class About:
    """A run, as trackers know it.

    `folder`: where the tracker writes, unless its own settings say otherwise. `group`: the comparison of the run.
    """

    folder: Path
    label: str
    group: str | None
    config: Mapping[str, Plain]

    @property
    def _notes(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")

    def note(self) -> str | None:
        """Return what the tracker calls this run, if it has noted it."""
        try:
            return str(json.loads(self._notes.read_bytes())["run"])
        except (OSError, ValueError, TypeError, KeyError):  # none yet, or damaged: the tracker begins again
            return None

    def keep(self, run: str) -> str:
        """Note what the tracker calls this run, for when the run is resumed."""
        write_aside(self._notes, json.dumps({"run": run}).encode())
        return run


class Tracker(Protocol):
    """Takes the rounds of one run.

    It is made from an `About` and the rows of the rounds so far. Then its store holds these rows, each once, whatever
    an earlier life of the run has left there. Whatever it raises ends the tracking, never the training.
    """

    def log(self, row: Row) -> None:
        """Take the next round."""

    def close(self, status: str, summary: Mapping[str, float]) -> None:
        """Write everything out. `status`: "complete", "diverged" or "unfinished", which has no summary."""


def about(out: Path, name: str) -> About:
    """Return what a tracker is told of the run in a folder; nothing is imported or built that the folder names."""
    whole = out.resolve()
    compared = whole.parent.parent.name == "runs" and (whole.parents[2] / "compare.toml").exists()
    config = description.settle(out / description.FILE, checkpoint.config(out), "undo")
    return About(
        folder=whole / FOLDER / name,
        label=f"{whole.parent.name}/{whole.name}" if compared else whole.name,
        group=whole.parents[2].name if compared else None,
        config=dict(flat(config)),
    )


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Plain]]:
    """Yield the values of nested tables, each with its path.

    >>> dict(flat({"cut": [0, 2], "optimizer": {"name": "sgd", "lr": 0.05}}))
    {'cut': '[0, 2]', 'optimizer.name': 'sgd', 'optimizer.lr': 0.05}
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value if isinstance(value, Plain) else json.dumps(value, default=str)


def row(record: Round) -> Row:
    """Return every figure of a round: the columns that are numbers, and the series as `sampled/accuracy`."""
    columns = asdict(record)
    step, more = columns.pop("n"), columns.pop("more")
    series = {f"{group}/{name}": value for group, found in columns["series"].items() for name, value in found.items()}
    return Row(step, figures({**more, **columns, **series}))


def figures(values: Mapping[str, Any]) -> dict[str, float]:
    """Return those values that are numbers.

    >>> figures({"loss": 0.5, "f1": None, "steps": 12, "faults": ("a",), "augment": True})
    {'loss': 0.5, 'steps': 12}
    """
    return {name: v for name, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def ending(out: Path) -> tuple[str, dict[str, float]]:
    """Return the status of a run, and the figures of its summary as `summary/best_accuracy`."""
    summary = run_directory.read_summary(out) or {"status": "unfinished"}
    found = figures({name: value for name, value in summary.items() if name != "peak_memory_mib"})  # of this process
    return str(summary["status"]), {f"summary/{name}": value for name, value in found.items()}


def last(rows: Sequence[Row]) -> int:
    """Return the number of the last round."""
    return rows[-1].step if rows else 0
