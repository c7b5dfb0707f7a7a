"""Progress: a live display on a terminal or in a notebook, an occasional plain line anywhere else."""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress

    from cutlayer.engine.records import Round

FIRST, EVERY = 2.0, 10.0  # seconds until the first plain line, and between any two


class _Console(Console):
    """rich's console, but a closed pipe raises BrokenPipeError for the caller to handle."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


console = _Console(highlight=False)
if not console.is_terminal:
    console = _Console(highlight=False, width=120)  # rich takes 80 for a file, which would cut tables off


def live() -> bool:
    """Whether the output can be redrawn in place: on a terminal, or in a notebook that has widgets."""
    widgets = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal or widgets


def bars(quiet: bool = False) -> Progress:
    """Return a display with one line per task: progress, accuracy, time elapsed and time left."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

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
        disable=quiet or not live(),
    )


class Plain:
    """Lines for a log: one after two seconds, then at most one every ten."""

    def __init__(self, quiet: bool) -> None:
        self.silent = quiet or live()
        self.next = time.monotonic() + FIRST

    def say(self, line: str) -> None:
        if not self.silent and time.monotonic() >= self.next:
            self.next = time.monotonic() + EVERY
            print(line, flush=True)


class Display:
    """The progress of one run: call `show` after every round and `close` at the end."""

    def __init__(self, label: str, total: int, done: int = 0, quiet: bool = False) -> None:
        self.label, self.total = label, total
        self._plain, self._bars = Plain(quiet), bars(quiet)
        self._bars.start()
        self._bar = self._bars.add_task(label, total=total, completed=done, accuracy="")

    def show(self, record: Round) -> None:
        shown = score(record)
        self._bars.update(self._bar, completed=record.n, accuracy=shown.removeprefix("accuracy "))
        words = f", {shown}" if shown else ""
        self._plain.say(f"{self.label}: round {record.n} of {self.total}{words}")

    def close(self) -> None:
        self._bars.stop()


def score(record: Round) -> str:
    """The score of a round in words: its accuracy or, where there is none, the caller's metric or the loss."""
    if record.accuracy is not None:
        return f"accuracy {percent(record.accuracy)}"
    if record.metric is not None:
        return f"metric {record.metric:.4g}"
    return "" if record.loss is None else f"loss {record.loss:.4g}"


def percent(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{100 * accuracy:5.2f} %"
