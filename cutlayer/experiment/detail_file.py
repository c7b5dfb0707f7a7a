"""The side file of a run: what its rounds were for each client, one line of JSON columns for every round.

It is there where somebody asked for it. Nothing depends on it, so it has no checksums: a line that cannot be read ends
it, and a resumed run goes on after the last round that both have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cutlayer.core import files
from cutlayer.core.files import write_aside
from cutlayer.core.sealed import parsed
from cutlayer.engine.records import Detail

FILE = "detail.jsonl"


def append(path: Path, n: int, detail: Detail) -> None:
    """Add the columns of round n."""
    files.append(path, f"{json.dumps({'n': n, **detail})}\n".encode())


def read(path: Path) -> dict[str, list[Any]]:
    """Return the columns of all rounds, one below the other; None where a round does not have a column."""
    rounds = [found for _, found in _lines(path)]
    names = dict.fromkeys(["n", *(name for found in rounds for name in found)])
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for found in rounds:
        rows = len(found["client"])
        for name, column in columns.items():
            column += [found["n"]] * rows if name == "n" else found.get(name, [None] * rows)
    return columns


def trim(path: Path, last: int) -> None:
    """Keep only the rounds up to `last`."""
    if path.exists():
        write_aside(path, b"".join(line + b"\n" for line, found in _lines(path) if found["n"] <= last))


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the lines that can be read, and what they say."""
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        try:
            found = parsed(line)
        except ValueError:
            return
        if not isinstance(found, dict) or not {"n", "client"} <= found.keys():
            return
        yield line, found
