"""Feed the trackers of a run: while it trains, or afterwards from its journal."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from cutlayer.core.lock import Lock
from cutlayer.engine.records import Round
from cutlayer.engine.run import Run, Sink
from cutlayer.errors import CutlayerError, StoreError, one_line
from cutlayer.experiment import comparison, description, journal
from cutlayer.track.base import FOLDER, Tracker, about, ending, row
from cutlayer.track.names import TRACKERS

log = logging.getLogger(__name__)


class Feed:
    """One tracker of one run, at work. The folder is locked, so that no two processes feed it."""

    def __init__(self, out: Path, name: str, history: Sequence[Round]) -> None:
        told = about(out, name)
        told.folder.mkdir(parents=True, exist_ok=True)
        self._out, self._lock = out, Lock(told.folder)
        try:
            module, _, kind = TRACKERS[name].path.partition(":")
            make = getattr(importlib.import_module(module), kind)
            self._tracker: Tracker = make(told, [row(record) for record in history])
        except BaseException:
            self.release()
            raise

    def take(self, record: Round) -> None:
        self._tracker.log(row(record))

    def close(self) -> None:
        try:
            self._tracker.close(*ending(self._out))
        finally:
            self.release()

    def release(self) -> None:
        self._lock.close()


class Tracked(Sink):
    """Passes rounds on to the sink that writes the journal, and then to trackers. One that fails is left out."""

    def __init__(self, sink: Sink, out: Path, names: Sequence[str]) -> None:
        self.sink, self.out, self._names = sink, out, list(names)
        self._feeds: dict[str, Feed] = {}

    def write(self, run: Run, record: Round) -> None:
        self.sink.write(run, record)
        self.follow(run)

    def failed(self, run: Run, error: BaseException) -> None:
        self.sink.failed(run, error)
        self._end()

    def close(self) -> None:
        self.sink.close()
        self._end()

    def follow(self, run: Run) -> None:
        """Tell every tracker of the newest round, or of all rounds if it has not heard of any."""
        for name in self._names[:]:
            self._try(name, functools.partial(self._tell, name, run.history))
        if run.finished:
            self._end()

    def _tell(self, name: str, history: Sequence[Round]) -> None:
        if name in self._feeds:
            self._feeds[name].take(history[-1])
        else:
            self._feeds[name] = Feed(self.out, name, history)

    def _end(self) -> None:
        for name in list(self._feeds):
            self._try(name, self._feeds[name].close)
            self._feeds.pop(name, None)

    def _try(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            said = one_line(error) or type(error).__name__
            log.warning(
                "%s: tracking of this run stopped: %s; `cutlayer report %s --to %s` does it afterwards",
                name,
                said,
                self.out,
                name,
            )
            self._names.remove(name)
            if (feed := self._feeds.pop(name, None)) is not None:
                feed.release()


def with_trackers(run: Run, out: Path, names: Sequence[str]) -> Run:
    """Let a run that writes into a folder feed trackers too. (Of several ranks, only the root writes.)"""
    if run.sink is not None and names:
        run.sink = tracked = Tracked(run.sink, out, names)
        if run.finished:
            tracked.follow(run)
    return run


def export(out: Path, names: Sequence[str]) -> list[Path]:
    """Feed trackers from the journal of a run, or of every run of a comparison; return where each lies by default."""
    runs = [out]
    if (out / "compare.toml").exists():
        both = comparison.read(out)
        runs = [comparison.folder(out, m, seed) for m, seed in both.runs()]
        runs = [run for run in runs if (run / description.FILE).exists()]
    for run in runs:
        history = journal.read(run / journal.FILE)
        for name in names:
            try:
                Feed(run, name, history).close()
            except CutlayerError:
                raise
            except Exception as error:
                raise StoreError(f"{run}: {name}: {one_line(error) or type(error).__name__}") from error
    return [run / FOLDER / name for run in runs for name in names]
