"""Progress: a live display on a terminal or in a notebook, a plain line now and then anywhere else."""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress

    from cutlayer.engine.records import Round

FIRST, EVERY = 2.0, 10.0  # seconds until the first plain line, and between them


class _Console(Console):
    """rich's, but whoever calls it hears that nobody reads any more."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


console = _Console(highlight=False)
if not console.is_terminal:
    console = _Console(highlight=False, width=120)  # a file has no edge; 80 would cut tables off


def live() -> bool:
    """Whether something can be drawn over and over: on a terminal, and in a notebook that has widgets."""
    widgets = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal or widgets


def bars(quiet: bool = False) -> Progress:
    """A line for each thing under way: how far it is, how accurate, how long it took and will take."""
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
    """One run: `show` every round, `close` at its end."""

    def __init__(self, label: str, total: int, done: int = 0, quiet: bool = False) -> None:
        self.label, self.total = label, total
        self._plain, self._bars = Plain(quiet), bars(quiet)
        self._bars.start()
        self._bar = self._bars.add_task(label, total=total, completed=done, accuracy="")

    def show(self, record: Round) -> None:
        accuracy = percent(record.accuracy)
        self._bars.update(self._bar, completed=record.n, accuracy=accuracy)
        words = f", accuracy {accuracy}" if accuracy else ""
        self._plain.say(f"{self.label}: round {record.n} of {self.total}{words}")

    def close(self) -> None:
        self._bars.stop()


def percent(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{100 * accuracy:5.2f} %"
