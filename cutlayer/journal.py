"""The journal of a run: one JSON line a round. A torn last line is dropped, a torn middle is an error.

Other versions write down less or more. What a line lacks has the default of its field; what this version does not know
is in `Round.more`, and stays in the file as it was written.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
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
    return [record for _, record in _read(path)]


def trim(path: Path, last: int) -> list[Round]:
    """Keep rounds 1..last, by writing the journal anew beside the old one; their lines stay as they are."""
    kept = [(line, record) for line, record in _read(path) if record.n <= last]
    if len(kept) < last:
        raise StoreError(f"{path}: it ends at round {len(kept)}, but the checkpoint is of round {last}")
    write_aside(path, b"".join(line + b"\n" for line, _ in kept))
    return [record for _, record in kept]


def _read(path: Path) -> list[tuple[bytes, Round]]:
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    torn = lines.pop()  # what follows the last line end: nothing, if the last line is whole
    rounds = [(line, _round(path, number, line)) for number, line in enumerate(lines, start=1)]
    if torn:
        warnings.warn(f"{path}: its last line was cut off and is dropped", TornJournal, stacklevel=3)
    if (found := [record.n for _, record in rounds]) != list(range(1, len(rounds) + 1)):
        raise StoreError(f"{path}: its rounds are {found}, expected 1, 2, 3, ...")
    return rounds


def _line(record: Round) -> str:
    values = asdict(record)
    more = values.pop("more")
    return json.dumps({**values, **{name: more[name] for name in more if name not in values}}, allow_nan=False) + "\n"


def _round(path: Path, number: int, line: bytes) -> Round:
    try:
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError(f"expected an object, not {values!r}")
        if "n" not in values:
            raise ValueError(f"n: missing, expected {_FIELDS['n'][1]}")
        for name, (fits, expected) in _FIELDS.items():
            if name in values and not fits(values[name]):
                raise ValueError(f"{name} = {values[name]!r}: expected {expected}")
    except ValueError as error:
        raise StoreError(f"{path}, line {number}: damaged: {error}") from error
    known: dict[str, Any] = {
        name: tuple(values[name]) if name in TUPLES else values[name] for name in _FIELDS if name in values
    }
    return Round(**known, more={name: value for name, value in values.items() if name not in _FIELDS})


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return _whole(value) or isinstance(value, float)


def _series(value: Any) -> bool:
    groups = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(group, dict) and all(map(_maybe(_number), group.values())) for group in groups)


def _maybe(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _each(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {  # by the type of a field: what fits, and its name
    "int": (_whole, "a whole number"),
    "int | None": (_maybe(_whole), "a whole number or nothing"),
    "float": (_number, "a number"),
    "float | None": (_maybe(_number), "a number or nothing"),
    "tuple[int, ...]": (_each(_whole), "a list of whole numbers"),
    "tuple[str, ...]": (_each(lambda value: isinstance(value, str)), "a list of words"),
    "Mapping[str, Series]": (_series, "figures by group and name"),
}
_FIELDS = {field.name: _KINDS[str(field.type)] for field in fields(Round) if field.name != "more"}
