"""The progress of a command's runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from cutlayer.engine.progress import Display, Plain, bars, percent

if TYPE_CHECKING:
    from cutlayer.engine.records import Round
    from cutlayer.experiment.experiment import Experiment
    from cutlayer.experiment.pool import Progress


def follow(experiment: Experiment, quiet: bool) -> Iterator[Round]:
    """Yield the rounds of a run, and show them as they come."""
    config = experiment.config
    label = f"{config.task}, {config.scheme['name']}, seed {config.seed}"
    display = Display(label, config.rounds, len(experiment.history), quiet)
    try:
        for record in experiment:
            display.show(record)
            yield record
    finally:
        display.close()


def follow_all(states: Iterable[list[Progress]], quiet: bool) -> None:
    """Show the progress of a comparison: one bar for all runs, and one for each run under way."""
    plain = Plain(quiet)
    with bars(quiet) as display:
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
                    display.update(rows[key], completed=r.done, accuracy=percent(r.accuracy), visible=not over)
            plain.say(f"{done} of {everything} rounds, {finished} of {len(runs)} runs done")
