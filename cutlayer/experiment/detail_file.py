"""The side file of a run: what its rounds were for each client, one line of JSON columns for every round.

It is there where somebody asked for it. Every line has a checksum. A resumed run keeps the whole lines of the rounds
that it goes on after, and drops a damaged one with a warning: nothing else depends on it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cutlayer.core import files
from cutlayer.core.files import write_aside
from cutlayer.core.sealed import seal, unseal
from cutlayer.engine.records import Detail
from cutlayer.errors import Restored, StoreError
from cutlayer.experiment.run_directory import DETAIL as FILE

__all__ = ["FILE", "append", "read", "trim"]


def append(path: Path, n: int, detail: Detail) -> None:
    """Add the columns of round n."""
    files.append(path, f"{seal({'n': n, **detail}, indent=None)}\n".encode())


def read(path: Path) -> dict[str, list[Any]]:
    """Return the columns of all rounds, one below the other; None where a round does not have a column."""
    rounds = []
    for number, _, found in _lines(path):
        if isinstance(found, ValueError):
            raise StoreError(f"{path}, line {number}: damaged: {found}") from found
        rounds.append(found)
    names = dict.fromkeys(["n", *(name for found in rounds for name in found)])
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for found in rounds:
        rows = len(found["client"])
        for name, column in columns.items():
            column += [found["n"]] * rows if name == "n" else found.get(name, [None] * rows)
    return columns


def trim(path: Path, last: int) -> None:
    """Keep only the rounds up to `last`."""
    kept = []
    for number, line, found in _lines(path):
        if isinstance(found, ValueError):
            warnings.warn(f"{path}, line {number}: damaged: {found}; dropped", Restored, stacklevel=2)
        elif found["n"] <= last:
            kept.append(line + b"\n")
    if path.exists():
        write_aside(path, b"".join(kept))


def _lines(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any] | ValueError]]:
    """Yield the number of every complete line, the line, and what it says or why it cannot be read."""
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1] if path.exists() else (), 1):
        try:
            yield number, line, unseal(line)
        except ValueError as error:
            yield number, line, error
