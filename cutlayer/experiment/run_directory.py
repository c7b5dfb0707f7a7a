"""A run directory: who may write into it, and what it holds at the end.

config.toml          what the run is (description.py)     journal.jsonl     one line per round (journal.py)
model_profile.json   the model's blocks in numbers        checkpoints/      to resume from (checkpoint.py)
fronts/              client-17.safetensors: the front of each client that keeps its own, at the end
model.safetensors, front.*, back.*   at the end           summary.json      the results
adapter/             instead of these, where adapters were trained
report.html, curves.png              the report           roster.json       remote clients, by number
detail.jsonl         each round client by client, where asked for (detail_file.py)
track/               what experiment trackers write
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutlayer.core.files import as_path, reached, write_aside
from cutlayer.core.lock import Lock
from cutlayer.core.sealed import seal, unseal
from cutlayer.errors import StoreError
from cutlayer.experiment.description import HEADER

TRACK = "track"  # what trackers write, and what they call the run
DETAIL = "detail.jsonl"
SPILL = ".spill"  # the spill cache of a run under way
SUMMARY = "summary.json"
MODELS = ("model.safetensors", "front.safetensors", "back.safetensors")
_REPORT = ("curves.png", "table.json", "table.md", "report.html")
OWN = {  # all that --overwrite may remove
    "config.toml": (
        *("checkpoints", "journal.jsonl", SUMMARY, "model_profile.json", "roster.json", ".roster.json"),
        *(*MODELS, "adapter", "fronts", TRACK, DETAIL),
        *_REPORT,
    ),
    "compare.toml": ("runs", *_REPORT),
}


def claim(path: Path, name: str, text: str, overwrite: bool) -> Lock:
    """Create a run directory with its description, and return its lock. An older run there is an error or, with
    `overwrite`, removed. The lock comes first: of two processes that want the same folder, one changes nothing."""
    with reached(f"{path}: cannot be written"):
        return _claimed(as_path("out", path), name, text, overwrite)


def _claimed(path: Path, name: str, text: str, overwrite: bool) -> Lock:
    _ours(path, overwrite)
    path.mkdir(parents=True, exist_ok=True)
    lock = Lock(path)
    try:
        for kind in _ours(path, overwrite):  # again: another process may have been here before we had the lock
            for old in (*OWN[kind], kind):  # the description last, so that a half-removed run is still recognised
                shutil.rmtree(path / old) if (path / old).is_dir() else (path / old).unlink(missing_ok=True)
        write_aside(path / name, text.encode())
    except BaseException:
        lock.close()
        raise
    return lock


def _ours(path: Path, overwrite: bool) -> list[str]:
    """Return the descriptions in a folder; refuse a folder that may not be claimed."""
    ours = [kind for kind in OWN if _is_ours(path / kind)]
    if ours and not overwrite:
        raise StoreError(f"{path} already holds a run: continue it with `cutlayer resume {path}`, or give --overwrite")
    if os.path.lexists(path) and not path.is_dir():
        what = "a link that leads nowhere" if path.is_symlink() else "a file"
        raise StoreError(f"{path} is {what}: choose another --out")
    if not ours and path.exists() and any(not entry.name.startswith(".") for entry in path.iterdir()):
        raise StoreError(f"{path} is not empty and holds no run: choose another --out")
    return ours


def _is_ours(path: Path) -> bool:
    """Whether a config.toml or compare.toml was written by us."""
    return path.is_file() and path.read_bytes().startswith(HEADER.encode())


def write_summary(run: Path, summary: Mapping[str, Any]) -> None:
    write_aside(run / SUMMARY, seal(summary).encode())


def read_summary(run: Path) -> dict[str, Any] | None:
    """Return the summary of a finished run, or None."""
    path = run / SUMMARY
    if not path.exists():
        return None
    try:
        summary = unseal(path.read_bytes(), older=True)
        if "status" not in summary or "rounds" not in summary:
            raise ValueError("no status in it")
    except (ValueError, TypeError) as error:
        raise StoreError(f"{path}: damaged: {error}; `cutlayer resume {run}` writes it again") from error
    return summary
