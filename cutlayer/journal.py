"""The journal of a run: one JSON line a round. A torn last line is dropped, a torn middle is an error."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from cutlayer.errors import StoreError
from cutlayer.files import sync, write_aside
from cutlayer.records import TUPLES, Round


class TornJournal(UserWarning):
    """The last line of a journal was cut off in the middle and has been dropped."""


def append(path: Path, record: Round) -> None:
    """Add a round, on disk when this returns."""
    new = not path.exists()
    with path.open("ab") as file:
        file.write(_line(record).encode())
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync(path.parent)


def read(path: Path) -> list[Round]:
    """Every whole round of a journal, in order."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    torn = lines.pop()  # what follows the last line end: nothing, if the last line is whole
    rounds = [_round(path, number, line) for number, line in enumerate(lines, start=1)]
    if torn:
        warnings.warn(f"{path}: its last line was cut off and is dropped", TornJournal, stacklevel=2)
    if [r.n for r in rounds] != list(range(1, len(rounds) + 1)):
        raise StoreError(f"{path}: its rounds are {[r.n for r in rounds]}, expected 1, 2, 3, ...")
    return rounds


def trim(path: Path, last: int) -> list[Round]:
    """Keep rounds 1..last, by writing the journal anew beside the old one."""
    kept = [r for r in read(path) if r.n <= last]
    if len(kept) < last:
        raise StoreError(f"{path}: it ends at round {len(kept)}, but the checkpoint is of round {last}")
    write_aside(path, "".join(_line(record) for record in kept).encode())
    return kept


def _line(record: Round) -> str:
    return json.dumps(asdict(record), allow_nan=False) + "\n"


def _round(path: Path, number: int, line: bytes) -> Round:
    try:
        values: dict[str, Any] = json.loads(line)
        values = {"faults": [], **values}  # the only one that older journals lack
        known = {field.name for field in fields(Round)}
        if set(values) != known:
            raise StoreError(f"{path}, line {number}: fields {sorted(set(values) ^ known)} missing or unknown")
        return Round(**{**values, **{name: tuple(values[name]) for name in TUPLES}})
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path}, line {number}: damaged: {error}") from error
