"""The description of a run directory, in one file: `config.toml` of a run, `compare.toml` of a comparison.

A run with remote clients has a table [serve] in its config: the settings of the server, and the run's id. A run that a
program started has a table [python]. The
checkpoints of a run, and `runs/` of a comparison, hold a copy of the text. A file that cannot be read is written again
from the copy. Where file and copy differ, the user has to say which one counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tomli_w

from cutlayer.core import toml
from cutlayer.core.files import write_aside
from cutlayer.errors import ContractError, Restored, StoreError
from cutlayer.experiment import config as text
from cutlayer.experiment.config import Config

FILE, TABLE, PROGRAM = "config.toml", "serve", "python"
HEADER = "# Written by cutlayer: the whole text of this run.\n"
Changes = Literal["refuse", "accept", "undo"]
"""What to do if a file has changed since the run began."""


@dataclass(frozen=True)
class Description:
    """The config of a run and, for remote clients, the table [serve]. `given`: both as the file has them."""

    config: Config
    serve: Mapping[str, Any] | None = None
    given: Mapping[str, Any] = field(default_factory=dict)

    def dump(self) -> str:
        served = "" if self.serve is None else "\n" + tomli_w.dumps({TABLE: dict(self.serve)})
        return f"{HEADER}{text.dump(self.config)}{served}"


def read(out: Path) -> Description:
    """Read the description of a run directory, as it is now."""
    return _described(settle(out / FILE, None, "refuse"))


def begun_with(out: Path, before: str | None) -> dict[str, Any]:
    """Return the values a run was begun with, with defaults for those it leaves out; no part is built or imported.
    `before`: the copy in the checkpoints, if there is one. It counts, with a warning, where the file has changed."""
    defaults = {name: field.default for name, field in Config.model_fields.items()}
    try:
        return {**defaults, **settle(out / FILE, before, "refuse")}
    except ContractError as error:
        changed = str(error).partition(". --accept-changes")[0]
        warnings.warn(f"{changed}; what the run was begun with is used", Restored, stacklevel=3)
    return {**defaults, **settle(out / FILE, before, "undo")}


def serves(out: Path, before: str | None) -> bool:
    """Whether a run has remote clients, by its description or by the copy of it (`before`)."""
    if before is not None and TABLE in toml.loads(before):
        return True
    try:
        return (out / FILE).exists() and TABLE in toml.read(out / FILE)
    except StoreError:
        if before is None:
            raise
        return False  # damaged: the copy counts


def settled(out: Path, before: str | None, changes: Changes) -> Description:
    """Return the description to continue with. `before`: the copy in the checkpoints, if there is one."""
    return _described(settle(out / FILE, before, changes))


def settle(path: Path, before: str | None, changes: Changes) -> dict[str, Any]:
    """Return the values to continue with: those of the file, or of its copy (`before`)."""
    if before is None and not path.exists():
        raise StoreError(f"{path.parent} holds no run: no {path.name} in it")
    if before is None:
        return toml.read(path)
    was = toml.loads(before)
    try:
        now = toml.read(path)
    except StoreError as error:
        warnings.warn(f"{error}; written again, as the run was", Restored, stacklevel=4)
        return was
    different = [f"{name} was {old}, is {new}" for name, old, new in differences(was, now)]
    if different and changes == "refuse":
        raise ContractError(
            f"{path}: it has changed since the run began: {'; '.join(different)}. --accept-changes goes on with it as "
            "it is now, --undo-changes as it was"
        )
    return was if changes == "undo" else now


def restore(path: Path, before: str | None, values: Mapping[str, Any]) -> None:
    """Write the file again from its copy (`before`), unless it holds the settled values."""
    if before is None:
        return
    try:
        same = toml.read(path) == values
    except StoreError:
        same = False
    if not same:
        write_aside(path, before.encode())


def _described(values: Mapping[str, Any]) -> Description:
    given = dict(values)
    if PROGRAM in given:
        raise ContractError(
            f"the run was started by a program, with the model {given[PROGRAM].get('model')}: start that program "
            "again, and it continues the run"
        )
    serve = given.pop(TABLE, None)
    if serve is not None and not isinstance(serve, Mapping):
        raise ContractError(f"{TABLE} = {serve!r}: expected a table")
    try:
        return Description(text.parse(given), serve, values)
    except ContractError as error:
        if "unknown" not in str(error):
            raise
        raise ContractError(f"{error}. A part of your own? --import the module that registers it") from error


def differences(was: Any, now: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield every value that differs: its name, and both values as text."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*was, *now]):
            yield from differences(was.get(key, _NOT), now.get(key, _NOT), f"{name}.{key}" if name else str(key))
    elif was != now or type(was) is not type(now):
        yield name, _shown(was), _shown(now)


def _shown(value: Any) -> str:
    return "not there" if value is _NOT else repr(value)


_NOT = object()
