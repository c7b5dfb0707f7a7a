"""Write a run into its directory, round by round, and resume it from there.

A round is in the journal, and (every so many rounds) in a checkpoint, before the run passes it on.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from cutlayer._version import __version__
from cutlayer.core import heap
from cutlayer.core.files import write_aside
from cutlayer.core.lock import Lock
from cutlayer.engine import broadcast
from cutlayer.engine.broadcast import at_root, in_turn
from cutlayer.engine.records import Global, Round
from cutlayer.engine.run import Run, Sink
from cutlayer.errors import Diverged, Restored, StoreError
from cutlayer.experiment import (
    checkpoint,
    description,
    detail_file,
    journal,
    model_files,
    model_profile,
    run_directory,
)
from cutlayer.experiment.checkpoint import About
from cutlayer.experiment.model_files import Saved
from cutlayer.processes.ranks import join, refuse_shared


@dataclass(frozen=True)
class Blueprint:
    """What a run directory is made from.

    `text`: its description, config.toml. `build(warm)`: build the run; `warm`: with its initial weights. `saved`: what
    files of weights say of the model. `every`: rounds between checkpoints.
    """

    text: str
    build: Callable[[bool], Run]
    saved: Saved
    every: int = 1
    ranks: Literal["ordered", "fast"] | None = None


class Recorder(Sink):
    """Writes the rounds of a run. Only the root of several ranks has one.

    It does not hold the run, so that a run that nobody needs any more lets go of its folder at once.
    """

    def __init__(self, out: Path, blueprint: Blueprint, about: About, lock: Lock) -> None:
        self.out, self.about = out, about
        self.saved, self.every = blueprint.saved, blueprint.every
        self._lock: Lock | None = lock

    def write(self, run: Run, record: Round) -> None:
        if self._lock is None:  # an earlier round failed, and the folder was let go
            self._lock = Lock(self.out)
            if len(journal.read(self.out / journal.FILE)) != record.n - 1:
                raise StoreError(f"{self.out}: another process has continued this run")
        if record.detail is not None:
            detail_file.append(self.out / detail_file.FILE, record.n, record.detail)
        journal.append(self.out / journal.FILE, record)
        if record.n % self.every == 0 or run.finished:
            checkpoint.save(self.out, run.state, self.about)
        if run.finished:
            self.finish(run)

    def failed(self, run: Run, error: BaseException) -> None:
        if isinstance(error, Diverged) and self._lock is not None:
            checkpoint.save(self.out, run.state, self.about)  # the last good weights
            self._summarise(run.history, "diverged", message=str(error))
        self.close()

    def finish(self, run: Run) -> None:
        """Write what a complete run holds."""
        self._summarise(run.history, "complete", **model_files.save(self.out, run, self.saved))
        self.close()

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _summarise(self, history: Sequence[Round], status: Literal["complete", "diverged"], **more: Any) -> None:
        scored = [r for r in history if r.accuracy is not None]
        best = max(scored, key=lambda r: r.accuracy or 0.0, default=None)
        summary = {
            "status": status,
            **more,
            "rounds": len(history),
            "best_accuracy": best.accuracy if best else None,
            "best_round": best.n if best else None,
            "final_accuracy": scored[-1].accuracy if scored else None,
            **_other_scores(history),
            "seconds": sum(r.seconds for r in history),
            "sim_seconds": sum(r.sim_seconds or 0.0 for r in history),
            "peak_memory_mib": _peak_memory(),
            "bytes_up": sum(r.bytes_up for r in history),
            "bytes_down": sum(r.bytes_down for r in history),
            "versions": {
                "cutlayer": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "machine": f"{platform.system()} {platform.machine()}",
        }
        run_directory.write_summary(self.out, summary)


def start(out: Path, run: Run, blueprint: Blueprint, overwrite: bool = False) -> None:
    """Create the directory of a new run, and let the run write into it."""

    about = About(blueprint.text, model_profile.digest(run))

    def claim() -> Recorder:
        lock = run_directory.claim(out, description.FILE, blueprint.text, overwrite)
        try:
            write_aside(out / model_profile.FILE, _profile(run, blueprint))
            run.setup.spill_cache.place(out / run_directory.SPILL)
            checkpoint.save(out, run.state, about)
        except BaseException:
            lock.close()
            raise
        return Recorder(out, blueprint, about, lock)

    run.sink = at_root(run.setup.processes, claim)


def resume(out: Path, blueprint: Blueprint, known: About | None, lock: Lock | None) -> Run:
    """Return the run of a directory, interrupted or complete, as its newest undamaged checkpoint has it.

    `known`: what its checkpoints say of it. `lock`: the directory's, at the root; it is closed if this fails.
    """
    try:
        return _resumed(out, blueprint, known, lock)
    except BaseException:
        if lock is not None:
            lock.close()
        raise


def _resumed(out: Path, blueprint: Blueprint, known: About | None, lock: Lock | None) -> Run:
    processes = join(blueprint.ranks)
    rounds_done = len(journal.read(out / journal.FILE))
    run = in_turn(processes, lambda: blueprint.build(False))
    refuse_shared(processes, run.setup.device)
    model_profile.refuse_other_base(out, run)
    about = About(blueprint.text, model_profile.digest(run))
    if known is not None and known.data not in ("", about.data):
        raise StoreError(f"{out}: its data, or which client holds which rows, have changed since the run began")
    found = checkpoint.load(out, run.state, rounds_done) if processes.root else None
    if processes.root and found is None:
        run = blueprint.build(True)
        if not checkpoint.began_with(out, run.state):
            raise StoreError(f"{out}: its first checkpoint is damaged, and its initial weights have changed")
        if rounds_done:
            said = f"{out}: no checkpoint of its rounds; starting again"
            warnings.warn(said, checkpoint.LostJournal, stacklevel=4)
        checkpoint.save(out, run.state, about)
    history = at_root(processes, lambda: _cleared(out, blueprint, run, found, about if known is None else known)) or []
    if found is not None:
        run.resume(found, history)
    if processes.size > 1:
        if processes.root:
            broadcast.send(processes, run.state)
        else:
            run.resume(broadcast.receive(processes, {}, run.state.W.w.device), journal.read(out / journal.FILE))
    if lock is not None:
        run.sink = recorder = Recorder(out, blueprint, about, lock)
        if run.finished:
            recorder.finish(run)  # again, in case its files were damaged or are missing
    return run


def _cleared(out: Path, blueprint: Blueprint, run: Run, found: Global | None, known: About) -> list[Round]:
    """Return the rounds up to `found` and remove all later ones."""
    if found is not None and known.config != blueprint.text:
        checkpoint.save(out, found, About(blueprint.text, known.data))  # changes were accepted: they count from now on
    try:
        model_profile.read(out)
    except StoreError as error:
        if (out / model_profile.FILE).exists():
            warnings.warn(f"{error}; written again", Restored, stacklevel=5)
        write_aside(out / model_profile.FILE, _profile(run, blueprint))
    run.setup.spill_cache.place(out / run_directory.SPILL)
    checkpoint.forget_after(out, 0 if found is None else found.n)
    detail_file.trim(out / detail_file.FILE, 0 if found is None else found.n)
    return journal.trim(out / journal.FILE, 0 if found is None else found.n)


def _other_scores(history: Sequence[Round]) -> dict[str, float]:
    """The last loss and metric, of runs whose tests have no accuracy."""
    tested = [r for r in history if r.loss is not None]
    if not tested or tested[-1].accuracy is not None:
        return {}
    found = {"final_loss": tested[-1].loss, "final_metric": tested[-1].metric}
    return {name: value for name, value in found.items() if value is not None}


def _profile(run: Run, blueprint: Blueprint) -> bytes:
    return model_profile.dump(run, blueprint.saved.shape, blueprint.saved.classes)


def _peak_memory() -> float | None:
    """Return the peak memory of this process in MiB, data included; None where the system does not count it."""
    peak = heap.peak()
    return None if peak is None else peak / 2**20
