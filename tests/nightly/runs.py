"""Tiny runs: what campaigns disturb, and what they must end with all the same."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutlayer.errors import ContractError
from cutlayer.experiment import config as text
from cutlayer.experiment import description
from cutlayer.experiment.config import Config
from cutlayer.experiment.experiment import Experiment
from cutlayer.registry import SCHEMES

PROTOCOLS = ("smofi", "cyclesl")
POINTS = list(itertools.product(SCHEMES, PROTOCOLS))
BASE: dict[str, Any] = {
    "model": {"name": "mlp", "width": 4, "depth": 2},
    "train_rows": 80,
    "clients": 4,
    "participation": 2,
    "rounds": 5,
    "batch_size": 8,
    "local_steps": 1,
    "evaluate_every": 3,
    "threads": 1,
}


@functools.cache
def scratch() -> Path:
    """A folder for as long as this process lasts."""
    folder = Path(tempfile.mkdtemp(prefix="nightly-kept-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def config(scheme: str, protocol: str, **more: Any) -> Config:
    return text.parse({**BASE, "scheme": scheme, "protocol": protocol, **more})


@dataclass(frozen=True)
class Ended:
    """What a run ended with: `rounds` without the clock, every tensor file by name."""

    sha256: str
    rounds: tuple[str, ...]
    tensors: dict[str, bytes]


def ended(out: Path) -> Ended:
    """Read plainly, not by the library."""
    lines = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    rounds = tuple(json.dumps({k: v for k, v in line.items() if k != "seconds"}) for line in lines)
    found = {str(path.relative_to(out)): path for path in (*out.glob("*.safetensors"), *out.glob("fronts/*"))}
    newest = out / "checkpoints" / f"{len(lines):06d}" / "manifest.json"
    for owner, entry in json.loads(newest.read_bytes())["owned"].items():
        found[owner] = out / "checkpoints" / "owned" / entry["file"]
    tensors = {name: path.read_bytes() for name, path in found.items()}
    return Ended(json.loads((out / "summary.json").read_text())["sha256"], rounds, tensors)


def finish(experiment: Experiment) -> Ended:
    for _ in experiment:
        pass
    return ended(experiment.out)


def resumed(out: Path) -> Experiment:
    """A run that goes on as it was: what was changed in its config is undone."""
    try:
        return Experiment.resume(out)
    except ContractError as error:
        if "it has changed since the run began" not in str(error):
            raise
    return Experiment.resume(out, changes="undo")


@dataclass(frozen=True)
class Template:
    """A run as it was at its start, after each of its rounds, and at its end."""

    name: str
    folder: Path
    every: int
    rounds: int
    ended: Ended

    def after(self, n: int) -> Path:
        """As it was when round n had been handed on; the last one: at the end."""
        return self.folder / f"after-{n}"

    def checkpoints(self, n: int) -> list[int]:
        """The rounds whose checkpoints are there after round n."""
        saved = [m for m in range(n + 1) if m % self.every == 0 or m == self.rounds]
        return saved[-2:]


@functools.cache
def template(scheme: str, protocol: str, every: int, kept_memory: float | None, owner: int) -> Template:
    folder = Path(tempfile.mkdtemp(dir=scratch()))
    more = {} if kept_memory is None else {"kept_memory": kept_memory}
    experiment = Experiment.start(config(scheme, protocol, checkpoint_every=every, **more), folder / "run")
    _copy(folder / "run", folder / "after-0")
    for record in experiment:
        _copy(folder / "run", folder / f"after-{record.n}")
    last = len(experiment.history)
    shutil.rmtree(folder / f"after-{last}")
    _copy(folder / "run", folder / f"after-{last}")
    shutil.rmtree(folder / "run")
    name = f"{scheme}, {protocol}, every {every}, kept_memory {kept_memory}"
    return Template(name, folder, every, last, ended(folder / f"after-{last}"))


def _copy(one: Path, other: Path) -> None:
    shutil.copytree(one, other, ignore=shutil.ignore_patterns(".lock", ".spill"))


def drawn_template(dice: random.Random) -> Template:
    """Any scheme and protocol, with more and less kept on disk."""
    scheme, protocol = dice.choice(POINTS)
    every, kept_memory = dice.choice([(1, None), (2, None), (2, 0)])
    return template(scheme, protocol, every, kept_memory, os.getpid())


def same(found: Ended, expected: Ended) -> None:
    """To the bit, apart from the clock."""
    assert found.rounds == expected.rounds, f"another journal: {found.rounds} is not {expected.rounds}"
    assert found.sha256 == expected.sha256, "other weights"
    assert set(found.tensors) == set(expected.tensors), f"other files: {set(found.tensors) ^ set(expected.tensors)}"
    wrong = [name for name, content in found.tensors.items() if content != expected.tensors[name]]
    assert not wrong, f"other bytes in {wrong}"


def described(out: Path) -> Config:
    """The config that a folder says it is."""
    return description.read(out).config
