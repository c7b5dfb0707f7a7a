"""LEAF's JSON files: users, how many rows each has, and their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutlayer.core.sealed import parsed
from cutlayer.data.read.common import content, files
from cutlayer.errors import ContractError, expect


@dataclass(frozen=True)
class User:
    """The rows of one user in a file; `where`: what errors call them."""

    name: str
    where: str
    x: list[Any]
    y: list[Any]


def sides(folder: Path) -> list[list[Path]]:
    """The files in train and, if there are any, in test; or else those in all_data; in the folder or its `data`."""
    for base in (folder, folder / "data"):
        train, test, everything = (files(base / name, [".json"]) for name in ("train", "test", "all_data"))
        if train or everything:
            return [side for side in (train, test) if side] if train else [everything]
    return []


def users(path: Path, gap: int = 0) -> Iterator[User]:
    """Yield the users of a file that have rows. `gap`: by how many rows num_samples may be too high."""
    try:
        held = parsed(content(path))
    except ValueError as error:
        raise ContractError(f"{path}: not readable JSON: {error}") from error
    names, counts, data = (_entry(path, held, key, kind) for key, kind in ENTRIES.items())
    expect(len(names) == len(counts), f"{path}: num_samples", len(counts), f"{len(names)}, one for each user")
    for name, count in zip(names, counts, strict=True):
        where = f"{path}, user {name!r}"
        if not isinstance(name, str) or name not in data:
            raise ContractError(f"{where}: not in user_data")
        x, y = (_entry(where, data[name], key, list) for key in ("x", "y"))
        expect(len(x) == len(y), f"{where}: rows of x and y", (len(x), len(y)), "the same number of both")
        expect(count in (len(x), len(x) + gap), f"{where}: num_samples", count, f"{len(x)}, the rows there")
        if x:
            yield User(name, where, x, y)


ENTRIES: dict[str, type] = {"users": list, "num_samples": list, "user_data": dict}


def _entry(where: object, held: Any, key: str, kind: type) -> Any:
    found = held.get(key) if isinstance(held, dict) else None
    expect(isinstance(found, kind), f"{where}: {key}", type(found).__name__, f"a {kind.__name__}")
    return found
