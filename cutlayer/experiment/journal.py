"""The journal of a run: one line of JSON for every round. A torn last line is dropped.

    journal.jsonl              as people and programs read it
    checkpoints/journal.jsonl  a copy, up to the last checkpoint
    checkpoints/journal.seals  a checksum of each line

So a damaged line is detected, and read from its copy. A damaged line that is newer than the last checkpoint is dropped
with all lines after it: their rounds are trained again anyway.

Other versions may write fewer or more fields. A missing field has its default; unknown fields are in `Round.more`, and
stay in the file as they were written.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from cutlayer.core import files
from cutlayer.core.files import write_aside
from cutlayer.core.sealed import parsed
from cutlayer.engine.records import TUPLES, Round
from cutlayer.errors import StoreError

FILE, COPIES, SEALS = "journal.jsonl", "checkpoints", "journal.seals"


class TornJournal(UserWarning):
    """The last line of a journal was cut off in the middle and has been dropped."""


class DamagedJournal(UserWarning):
    """Lines of a journal were damaged: read from its copy, or dropped."""


def append(path: Path, record: Round) -> None:
    """Add a round; it is on disk when this returns."""
    values = asdict(record)
    more = values.pop("more")
    values.pop("detail")  # it has a file of its own
    line = json.dumps({**values, **{name: more[name] for name in more if name not in values}}, allow_nan=False)
    files.append(path, f"{line}\n".encode())
    _, seals = _beside(path)
    if seals.parent.is_dir():
        files.append(seals, _seals(f"{line}\n".encode()), lasting=False)


def seal(path: Path) -> None:
    """Copy the lines added since the last call, and write their checksums unless `append` already has."""
    copy, seals = _beside(path)
    new = _from(path, _size(copy))
    marks = _seals(new)
    files.append(copy, new)
    files.append(seals, b"" if _from(seals, max(0, _size(seals) - len(marks))) == marks else marks)


def read(path: Path) -> list[Round]:
    """Return every whole round of a journal, in order."""
    return [record for _, record in _read(path)]


def whole(path: Path) -> bool:
    """Whether the journal of a complete run equals its copy, if there is one."""
    copy, _ = _beside(path)
    return not copy.exists() or _from(path, 0) == _from(copy, 0)


def trim(path: Path, last: int) -> list[Round]:
    """Keep only rounds 1..last in the journal and its copy, and return them; their lines stay as they are."""
    kept = [(line, record) for line, record in _read(path) if record.n <= last]
    if len(kept) < last:
        raise StoreError(f"{path}: it ends at round {len(kept)}, but the checkpoint is of round {last}")
    content = b"".join(line + b"\n" for line, _ in kept)
    copy, seals = _beside(path)
    write_aside(path, content)
    if copy.parent.is_dir():
        write_aside(copy, content)
        write_aside(seals, _seals(content))
    return [record for _, record in kept]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _from(path: Path, start: int) -> bytes:
    """Return what a file holds from byte `start` on."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(start)
        return file.read()


def _beside(path: Path) -> tuple[Path, Path]:
    return path.parent / COPIES / path.name, path.parent / COPIES / SEALS


def _seals(lines: bytes) -> bytes:
    return b"".join(_checksum(line) + b"\n" for line in lines.split(b"\n")[:-1])


def _checksum(line: bytes) -> bytes:
    return hashlib.sha256(line).hexdigest()[:16].encode()


def _read(path: Path) -> list[tuple[bytes, Round]]:
    """Return the line and the record of every whole round, from the journal or its copy."""
    mine, copy, seals = (_Lines(file) for file in (path, *_beside(path)))
    found: list[tuple[bytes, Round]] = []
    for number in range(1, max(len(mine), min(len(copy), len(seals))) + 1):
        first, second, seal = (lines[number] for lines in (mine, copy, seals))
        whole = [line for line in (first, second) if line is not None and seal in (None, _checksum(line))]
        if first is not None and first == second:
            whole = [first]  # both agree, so the checksum is damaged
        try:
            if not whole:
                raise ValueError("missing" if first is None else "it does not match its checksum")
            record = _round(parsed(whole[0]), number)
        except ValueError as error:
            said = f"{path}, line {number}: damaged: {error}"
            if number <= len(copy) or not copy.exists:
                raise StoreError(said) from error
            warnings.warn(f"{said}; newer than the last checkpoint: dropped", DamagedJournal, stacklevel=3)
            break
        if whole[0] != first:
            warnings.warn(f"{path}, line {number}: damaged; read from its copy", DamagedJournal, stacklevel=3)
        found.append((whole[0], record))
    if mine.torn and len(found) == len(mine):
        warnings.warn(f"{path}: its last line was cut off and is dropped", TornJournal, stacklevel=3)
    return found


class _Lines:
    """The complete lines of a file, numbered from 1."""

    def __init__(self, path: Path) -> None:
        self.exists = path.exists()
        *self._lines, rest = path.read_bytes().split(b"\n") if self.exists else [b""]
        self.torn = rest != b""  # bytes after the last line end

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, number: int) -> bytes | None:
        return self._lines[number - 1] if number <= len(self._lines) else None


def _round(values: Any, number: int) -> Round:
    """Return the values of a line as a record; raise ValueError if they are not one."""
    if not isinstance(values, dict):
        raise ValueError(f"expected an object, not {values!r}")
    if "n" not in values:
        raise ValueError(f"n: missing, expected {_FIELDS['n'][1]}")
    for name, (fits, expected) in _FIELDS.items():
        if name in values and not fits(values[name]):
            raise ValueError(f"{name} = {values[name]!r}: expected {expected}")
    if values["n"] != number:
        raise ValueError(f"n = {values['n']}: expected {number}, round after round")
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


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {  # type of a field -> a check, and what it expects
    "int": (_whole, "a whole number"),
    "int | None": (_maybe(_whole), "a whole number or nothing"),
    "float": (_number, "a number"),
    "float | None": (_maybe(_number), "a number or nothing"),
    "tuple[int, ...]": (_each(_whole), "a list of whole numbers"),
    "tuple[str, ...]": (_each(lambda value: isinstance(value, str)), "a list of words"),
    "Mapping[str, Series]": (_series, "figures by group and name"),
}
_FIELDS = {field.name: _KINDS[str(field.type)] for field in fields(Round) if field.name not in ("more", "detail")}
