"""A live view of a run over the network: who is connected, what each client is doing, and the results so far."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import rich.box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cutlayer.cli.output import console
from cutlayer.core import logs
from cutlayer.engine.progress import Plain, score

if TYPE_CHECKING:
    from cutlayer.engine.records import Round
    from cutlayer.experiment.experiment import Experiment
    from cutlayer.network.server.service import Service

SHOWN = 30  # clients, at most
log = logging.getLogger(__name__)


def follow(experiment: Experiment, service: Service, quiet: bool) -> Iterator[Round]:
    """Yield the rounds of a run, and show them as they come."""
    plain, view = Plain(quiet), LiveView(experiment, service)
    if quiet or not console.is_terminal:
        for record in _logged(experiment, service):
            plain.say(view.line())
            yield record
        return
    with (
        logs.shown_by(lambda line: console.print(line, markup=False, highlight=False)),
        Live(console=console, refresh_per_second=2, get_renderable=view, transient=True),
    ):
        yield from _logged(experiment, service)


def _logged(experiment: Experiment, service: Service) -> Iterator[Round]:
    """Yield the rounds of a run, and log what went wrong in them."""
    for record in experiment:
        for fault in record.faults:
            log.warning("round %d: %s", record.n, fault)
        service.check_certificate()
        yield record


class LiveView:
    """The run and its clients as they are now; calling it makes the table."""

    def __init__(self, experiment: Experiment, service: Service) -> None:
        self.experiment, self.service = experiment, service
        self._before: dict[str, tuple[float, int]] = {}

    def __call__(self) -> RenderableType:
        table = Table(box=rich.box.SIMPLE)
        table.add_column("client")
        for name in ("samples", "round", "step", "answers in", "traffic", "drops"):
            table.add_column(name, justify="right")
        roster = self.service.roster
        sessions = dict(roster.sessions)
        for j, entry in list(enumerate(roster.entries))[:SHOWN]:
            session = sessions.get(j)
            step = "done" if entry.step < 0 else str(entry.step + 1)
            rate = (
                "away" if session is None else f"{self._rate(entry.name, session.up + session.down) / 2**20:.1f} MiB/s"
            )
            place = (str(entry.round or ""), step if entry.round else "")
            style = "dim" if session is None else ""
            table.add_row(
                entry.name,
                str(entry.samples),
                *place,
                f"{1000 * entry.seconds:.0f} ms" if entry.seconds else "",
                rate,
                str(entry.drops or ""),
                style=style,
            )
        more = len(roster.entries) - SHOWN
        return Group(Text(self.line()), table, *([Text(f"and {more} more")] if more > 0 else []))

    def line(self) -> str:
        """The state of the run in one line."""
        history, config, roster = self.experiment.history, self.experiment.config, self.service.roster
        done = f"{len(history)} of {config.rounds} rounds"
        shown = f", {score(history[-1])}" if history and score(history[-1]) else ""
        lost = sum(record.lost for record in history)
        drops = f", {lost} dropped" if lost else ""
        return f"{self.service.cohort.status}: {done}{shown}; {len(roster.connected)} clients{drops}"

    def _rate(self, name: str, total: int) -> float:
        """Bytes per second since the last call."""
        now = time.monotonic()
        at, before = self._before.get(name, (now - 1, total))
        self._before[name] = now, total
        return max(total - before, 0) / max(now - at, 1e-3)
