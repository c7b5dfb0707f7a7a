"""Progress: a live display on a terminal, a plain line now and then anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cutlayer.cli.output import console

if TYPE_CHECKING:
    from cutlayer import compare
    from cutlayer.experiment import Experiment
    from cutlayer.records import Round

FIRST, EVERY = 2.0, 10.0  # seconds until the first plain line, and between them


def bars() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=4,
        disable=not console.is_terminal,
    )


def follow(experiment: Experiment, quiet: bool) -> Iterator[Round]:
    """The rounds of a run, shown as they come."""
    config = experiment.config
    label = f"{config.task}, {config.scheme['name']}, seed {config.seed}"
    plain = Plain(quiet)
    with bars() as display:
        display.disable = display.disable or quiet
        bar = display.add_task(label, total=config.rounds, completed=len(experiment.history), accuracy="")
        for record in experiment:
            display.update(bar, completed=record.n, accuracy=_percent(record.accuracy))
            plain.say(f"{label}: round {record.n} of {config.rounds}, accuracy {_percent(record.accuracy)}")
            yield record


def follow_all(states: Iterable[list[compare.Progress]], quiet: bool) -> None:
    """A comparison: one bar for all, and one for each run under way."""
    plain = Plain(quiet)
    with bars() as display:
        display.disable = display.disable or quiet
        total = display.add_task("all runs", total=None, accuracy="")
        rows = {}
        for runs in states:
            done, everything = sum(r.done for r in runs), sum(r.total for r in runs)
            finished = sum(r.status in ("complete", "diverged") for r in runs)
            display.update(
                total, completed=done, total=everything, description=f"all runs, {finished} of {len(runs)} done"
            )
            for r in runs:
                key = (r.label, r.seed)
                if r.status == "running" and key not in rows:
                    rows[key] = display.add_task(f"{r.label}, seed {r.seed}", total=r.total, accuracy="")
                if key in rows:
                    over = r.status != "running"
                    display.update(rows[key], completed=r.done, accuracy=_percent(r.accuracy), visible=not over)
            plain.say(f"{done} of {everything} rounds, {finished} of {len(runs)} runs done")


class Plain:
    """Lines for a log: one after two seconds, then at most one every ten."""

    def __init__(self, quiet: bool) -> None:
        self.silent = quiet or console.is_terminal
        self.next = time.monotonic() + FIRST

    def say(self, line: str) -> None:
        if not self.silent and time.monotonic() >= self.next:
            self.next = time.monotonic() + EVERY
            print(line, flush=True)


def _percent(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{100 * accuracy:5.2f} %"
