"""A run that writes its report when it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cutlayer.engine.records import Round
from cutlayer.engine.run import Run, Sink
from cutlayer.errors import expect
from cutlayer.track.names import asked


class Reported(Sink):
    """Passes rounds on to another sink, and writes the report after the last one."""

    def __init__(self, sink: Sink, out: Path) -> None:
        self.sink, self.out = sink, out

    def write(self, run: Run, record: Round) -> None:
        self.sink.write(run, record)
        if run.finished:
            self.report()

    def failed(self, run: Run, error: BaseException) -> None:
        self.sink.failed(run, error)

    def close(self) -> None:
        self.sink.close()

    def report(self) -> None:
        from cutlayer.report import page  # here: it loads matplotlib

        page.write(self.out)


def with_report(run: Run, out: Path) -> Run:
    """Let a run that writes into a folder write its report there too."""
    if run.sink is not None:
        run.sink = sink = Reported(run.sink, out)
        if run.finished and not (out / "report.html").exists():
            sink.report()
    return run


def tracking(track: str | Sequence[str] | None, out: str | Path | None) -> tuple[str, ...]:
    """Return the trackers of a training; refuse them where there is no folder."""
    names = asked(track)
    expect(not names or out is not None, "track", track, "`out` too: a tracker reads the journal in the run's folder")
    return names
