"""Run a comparison: several methods and seeds, one run directory each, in parallel processes; it can be resumed."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path

from cutlayer.core import toml
from cutlayer.core.files import write_aside
from cutlayer.core.lock import Lock
from cutlayer.errors import CutlayerError, Restored
from cutlayer.experiment import checkpoint, description, pool, run_directory
from cutlayer.experiment.comparison import Comparison, folder
from cutlayer.experiment.description import HEADER, Changes, restore, settle
from cutlayer.experiment.experiment import assemble
from cutlayer.experiment.pool import Job, Progress, Watched

FILE = "compare.toml"
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
            restore(run / description.FILE, was, toml.loads(was or ""))
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
    with lock:
        copy(comparison, out)
        runs = [Job(m.label, comparison.config(m, seed), folder(out, m, seed)) for m, seed in comparison.runs()]
        yield from pool.train(runs, jobs, f"cutlayer resume {out}", watched)
