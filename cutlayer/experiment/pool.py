"""Train many runs in parallel processes, each with a directory of its own; what is trained already is not trained
again, and what was interrupted is resumed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from multiprocessing.synchronize import Event
from pathlib import Path

import torch

from cutlayer.core import heap, toml
from cutlayer.core.sealed import parsed, unpack
from cutlayer.engine import spill
from cutlayer.engine.run import Run
from cutlayer.errors import CutlayerError, Diverged, Restored, StoreError
from cutlayer.experiment import checkpoint, description, journal, run_directory
from cutlayer.experiment import config as text
from cutlayer.experiment.config import Config
from cutlayer.experiment.experiment import Experiment
from cutlayer.registry import own

Watched = Callable[[Run, Path], object]


@dataclass(frozen=True)
class Job:
    """One run to train."""

    label: str
    config: Config
    folder: Path


@dataclass(frozen=True)
class Progress:
    """How far one run is."""

    label: str
    seed: int
    done: int
    total: int
    accuracy: float | None
    status: str  # waiting, running, complete, diverged


def train(jobs: Sequence[Job], workers: int, again: str, watched: Watched | None = None) -> Iterator[list[Progress]]:
    """Train what is not trained yet, `workers` runs at a time; yield the progress of all runs at least twice a second.
    `again`: the command that goes on if this one is interrupted. `watched`: gives each run a further consumer of its
    rounds, in the process that trains it."""
    todo = [(text.dump(job.config), str(job.folder)) for job in jobs if not done(job.folder)]
    context = _processes()
    stop = context.Event()
    workers = max(1, min(workers, len(todo) or 1))
    with ProcessPoolExecutor(workers, context, _prepare, (stop, own.allowed())) as pool:
        futures = [pool.submit(_work, *work, watched) for work in todo]
        try:
            pending = set(futures)
            while pending:
                over, pending = wait(pending, timeout=0.5)
                for future in over:
                    future.result()
                yield [_progress(job) for job in jobs]
        except BrokenProcessPool as error:
            raise StoreError(f"a training process was killed; continue with `{again}`") from error
        finally:
            if pending:
                stop.set()  # interrupted, or one run failed: the others stop at once, and can be resumed
            pool.shutdown(wait=False, cancel_futures=True)
    yield [_progress(job) for job in jobs]


def _progress(job: Job) -> Progress:
    """Read the progress of a run from the files that it writes."""
    path, before = job.folder, Progress(job.label, job.config.seed, 0, job.config.rounds, None, "waiting")
    if not path.exists():
        return before
    written = path / journal.FILE
    lines = written.read_bytes().split(b"\n")[:-1] if written.exists() else []
    try:
        accuracy = parsed(lines[-1]).get("accuracy") if lines else None
        summary = run_directory.read_summary(path)
    except (ValueError, AttributeError, StoreError):  # damaged: the run itself repairs it
        return replace(before, done=len(lines), status="running")
    return replace(before, done=len(lines), accuracy=accuracy, status=summary["status"] if summary else "running")


def done(path: Path) -> bool:
    """Whether a run has ended and its files are undamaged; if not, the resumed run writes them again."""
    try:
        summary = run_directory.read_summary(path)
        if summary is not None and summary["status"] == "complete":
            for file in (*(path / name for name in run_directory.MODELS), *path.glob("fronts/*.safetensors")):
                _check(file)
            if not journal.whole(path / journal.FILE):
                raise StoreError(f"{path / journal.FILE}: damaged; written again")
            checkpoint.check(path)
    except StoreError as error:
        warnings.warn(str(error), Restored, stacklevel=2)
        return False
    return summary is not None


def _check(file: Path) -> None:
    try:
        unpack(file.read_bytes(), older=True)
    except (OSError, StoreError) as error:
        raise StoreError(f"{file}: {error}; written again") from error


def _processes() -> BaseContext:
    """Return the context that starts workers: a process that has imported everything once and forks them; or, where
    the system has no such process, new ones. It ends when this process and its workers have ended."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cutlayer.experiment.pool"])
    return context


def _prepare(stop: Event, modules: Sequence[str]) -> None:
    """Prepare a worker: it computes with one thread, and ends at once when `stop` is set or its parent has ended.
    `modules`: those that the user named."""
    for name in modules:
        own.load(name)
    parent = multiprocessing.parent_process()
    torch.set_num_threads(1)
    heap.keep()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # the executor sends SIGTERM to the others as soon as one worker has ended
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def watch() -> None:
        while parent is not None and parent.is_alive() and not stop.wait(0.5):
            pass
        spill.sweep()
        os._exit(1)  # at any moment, because a run can always be resumed

    threading.Thread(target=watch, daemon=True).start()


def _work(config: str, out: str, watched: Watched | None = None) -> None:
    """Train one run, in a process of its own."""
    path = Path(out)
    try:
        if (path / description.FILE).exists() or checkpoint.config(path) is not None:
            experiment = Experiment.resume(path)
        else:
            experiment = Experiment.start(text.parse(toml.loads(config)), path)
        if watched is not None:
            watched(experiment.run, path)
        for _ in experiment:
            pass
    except Diverged:
        pass  # its summary says so
    except CutlayerError as error:
        raise type(error)(f"{path}: {error}") from error
