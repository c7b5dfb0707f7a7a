"""What a run directory is, in one file written whole: `config.toml` of a run, `compare.toml` of a comparison.

A run whose clients are elsewhere has a table [serve] in its config: how they are served, and under which name. The
checkpoints hold the same text. So a file that cannot be read is written again from there, and one that says something
else is not used before somebody has said which of the two counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tomli_w

from cutlayer.core.files import write_aside
from cutlayer.errors import ContractError, Restored, StoreError
from cutlayer.experiment import config as text
from cutlayer.experiment.config import Config

FILE, TABLE = "config.toml", "serve"
HEADER = "# Written by cutlayer: the whole text of this run.\n"
Changes = Literal["refuse", "accept", "undo"]
"""What to do where a file is not what the run began with."""


@dataclass(frozen=True)
class Description:
    """The config of a run, and how its clients are served if they are elsewhere. `given`: as a file says both."""

    config: Config
    serve: Mapping[str, Any] | None = None
    given: Mapping[str, Any] = field(default_factory=dict)

    def dump(self) -> str:
        served = "" if self.serve is None else "\n" + tomli_w.dumps({TABLE: dict(self.serve)})
        return f"{HEADER}{text.dump(self.config)}{served}"


def read(out: Path) -> Description:
    """The description of a run directory, as it stands."""
    return _described(settle(out / FILE, None, "refuse"))


def read_config(out: Path) -> Config:
    """The config of a run directory."""
    return read(out).config


def serves(out: Path, before: str | None) -> bool:
    """Whether the clients of a run are elsewhere, by its description or by the copy of it."""
    if before is not None and TABLE in text.loads(before):
        return True
    try:
        return (out / FILE).exists() and TABLE in text.read(out / FILE)
    except StoreError:
        if before is None:
            raise
        return False  # damaged: the copy counts


def settled(out: Path, before: str | None, changes: Changes) -> Description:
    """The description to go on with. `before`: as the run was, where it has come so far as to write it down."""
    return _described(settle(out / FILE, before, changes))


def settle(path: Path, before: str | None, changes: Changes) -> dict[str, Any]:
    """The values to go on with, of the file or of its copy."""
    if before is None and not path.exists():
        raise StoreError(f"{path.parent} holds no run: no {path.name} in it")
    if before is None:
        return text.read(path)
    was = text.loads(before)
    try:
        now = text.read(path)
    except StoreError as error:
        warnings.warn(f"{error}; written again, as the run was", Restored, stacklevel=4)
        return was
    different = [f"{name} was {old}, is {new}" for name, old, new in _differences(was, now)]
    if different and changes == "refuse":
        raise ContractError(
            f"{path}: it is not what the run began with: {'; '.join(different)}. --accept-changes goes on with it as "
            "it is now, --undo-changes as it was"
        )
    return was if changes == "undo" else now


def restore(path: Path, before: str | None, values: Mapping[str, Any]) -> None:
    """Let the file say what was settled."""
    if before is None:
        return
    try:
        same = text.read(path) == values
    except StoreError:
        same = False
    if not same:
        write_aside(path, before.encode())


def _described(values: Mapping[str, Any]) -> Description:
    given = dict(values)
    serve = given.pop(TABLE, None)
    if serve is not None and not isinstance(serve, Mapping):
        raise ContractError(f"{TABLE} = {serve!r}: expected a table")
    try:
        return Description(text.parse(given), serve, values)
    except ContractError as error:
        if "unknown" not in str(error):
            raise
        raise ContractError(f"{error}. A part of your own? Resume the run in the program that registers it") from error


def _differences(was: Any, now: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Every value that is not the same: its name, and both."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*was, *now]):
            yield from _differences(was.get(key, _NOT), now.get(key, _NOT), f"{name}.{key}" if name else str(key))
    elif was != now or type(was) is not type(now):
        yield name, _shown(was), _shown(now)


def _shown(value: Any) -> str:
    return "not there" if value is _NOT else repr(value)


_NOT = object()
