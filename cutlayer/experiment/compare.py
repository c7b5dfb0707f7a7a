"""Run a comparison: several methods and seeds, one run directory each, in parallel processes; it can be resumed."""

from __future__ import annotations

import hashlib
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

from cutlayer.core import heap
from cutlayer.core.files import write_aside
from cutlayer.core.lock import Lock
from cutlayer.core.sealed import parsed, unpack
from cutlayer.engine import spill
from cutlayer.engine.run import Run
from cutlayer.errors import CutlayerError, Diverged, Restored, StoreError
from cutlayer.experiment import checkpoint, description, journal, run_directory
from cutlayer.experiment import config as text
from cutlayer.experiment.comparison import Comparison, folder, slug
from cutlayer.experiment.description import HEADER, Changes, restore, settle
from cutlayer.experiment.experiment import Experiment, assemble
from cutlayer.registry import own

FILE = "compare.toml"
Watched = Callable[[Run, Path], object]
SEAL = "# sha256 "  # starts the last line of the copy: the checksum of all lines before


def start(comparison: Comparison, out: Path, overwrite: bool) -> Lock:
    """Check every method against the data, then create the directory and return its lock."""
    first = (comparison.methods[0], comparison.seeds[0])
    for m, seed in comparison.runs():
        if m is first[0] or seed == first[1]:  # data depend on the seed alone, the rest on the method alone
            try:
                assemble(comparison.config(m, seed))
            except CutlayerError as error:
                raise type(error)(f"{m.label}, seed {seed}: {error}") from error
    return run_directory.claim(out, FILE, HEADER + comparison.dump(), overwrite)


@dataclass(frozen=True)
class Progress:
    """How far one run of a comparison is."""

    label: str
    seed: int
    done: int
    total: int
    accuracy: float | None
    status: str  # waiting, running, complete, diverged


def resume(out: Path, changes: Changes) -> tuple[Comparison, Lock]:
    """Return a comparison that was interrupted or is complete, and the lock of its directory."""
    lock = Lock(out)
    try:
        before = _copied(out / "runs" / FILE)
        values = settle(out / FILE, before, changes)
        comparison = Comparison.parse(values)
        restore(out / FILE, before, values)
        for m, seed in comparison.runs() if changes == "undo" else ():
            run = folder(out, m, seed)
            was = checkpoint.config(run)
            restore(run / description.FILE, was, text.loads(was or ""))
        return comparison, lock
    except BaseException:
        lock.close()
        raise


def copy(comparison: Comparison, out: Path) -> None:
    """Write a second copy of `compare.toml`, with a checksum."""
    (out / "runs").mkdir(exist_ok=True)
    said = HEADER + comparison.dump()
    write_aside(out / "runs" / FILE, f"{said}{SEAL}{_seal(said)}\n".encode())


def _copied(path: Path) -> str | None:
    """Return the text of the comparison as it began, from its copy; None if the copy is missing or damaged."""
    if not path.exists():
        return None
    said, _, seal = path.read_bytes().decode(errors="replace").rpartition(SEAL)
    if seal == f"{_seal(said)}\n":
        return said
    warnings.warn(f"{path}: damaged: it does not match its checksum; written again", Restored, stacklevel=3)
    return None


def _seal(said: str) -> str:
    return hashlib.sha256(said.encode()).hexdigest()


def train_all(
    comparison: Comparison, out: Path, jobs: int, lock: Lock, watched: Watched | None = None
) -> Iterator[list[Progress]]:
    """Train what is not trained yet, `jobs` runs at a time; yield the progress of all runs at least twice a second.
    `watched`: gives each run a further consumer of its rounds, in the process that trains it."""
    copy(comparison, out)
    runs = [(m, seed, comparison.config(m, seed)) for m, seed in comparison.runs()]
    waiting = [Progress(m.label, seed, 0, config.rounds, None, "waiting") for m, seed, config in runs]
    todo = [(text.dump(c), str(folder(out, m, seed))) for m, seed, c in runs if not _done(folder(out, m, seed))]
    context = _processes()
    stop = context.Event()
    workers = max(1, min(jobs, len(todo) or 1))
    with lock, ProcessPoolExecutor(workers, context, _prepare, (stop, own.allowed())) as pool:
        futures = [pool.submit(_work, *job, watched) for job in todo]
        try:
            pending = set(futures)
            while pending:
                done, pending = wait(pending, timeout=0.5)
                for future in done:
                    future.result()
                yield [_progress(out, before) for before in waiting]
        except BrokenProcessPool as error:
            raise StoreError(f"a training process was killed; continue with `cutlayer resume {out}`") from error
        finally:
            if pending:
                stop.set()  # interrupted, or one run failed: the others stop at once, and can be resumed
            pool.shutdown(wait=False, cancel_futures=True)
    yield [_progress(out, before) for before in waiting]


def _progress(out: Path, before: Progress) -> Progress:
    """Read the progress of a run from the files that it writes."""
    path = out / "runs" / slug(before.label) / f"seed-{before.seed}"
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


def _done(path: Path) -> bool:
    """Whether a run has ended and its files are undamaged; if not, the resumed run writes them again."""
    try:
        summary = run_directory.read_summary(path)
        if summary is not None and summary["status"] == "complete":
            for file in (*(path / name for name in run_directory.MODELS), *path.glob("fronts/*.safetensors")):
                _check(file)
            if not journal.whole(path / journal.FILE):
                raise StoreError(f"{path / journal.FILE}: damaged; written again")
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
    context.set_forkserver_preload(["cutlayer.experiment.compare"])
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
            experiment = Experiment.start(text.parse(text.loads(config)), path)
        if watched is not None:
            watched(experiment.run, path)
        for _ in experiment:
            pass
    except Diverged:
        pass  # its summary says so
    except CutlayerError as error:
        raise type(error)(f"{path}: {error}") from error
