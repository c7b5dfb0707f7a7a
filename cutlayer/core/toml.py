"""Read TOML from anybody: what is broken or nested too deeply is an error in one line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from cutlayer.core.files import reached
from cutlayer.errors import StoreError

DEEPEST = 20  # levels of nested tables and lists; all our configs have far fewer


def loads(toml: str) -> dict[str, Any]:
    """Parse TOML into nested values; raise ValueError if it is invalid or nested too deeply."""
    try:
        values = tomllib.loads(toml)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    level: list[Any] = [values]
    for _ in range(DEEPEST):
        held = (one.values() if isinstance(one, dict) else one for one in level)
        level = [inner for inside in held for inner in inside if isinstance(inner, dict | list)]
    if level:
        raise ValueError(f"nested too deeply: expected at most {DEEPEST} tables and lists within each other")
    return values


def read(path: Path) -> dict[str, Any]:
    """Read a TOML file as nested values."""
    try:
        with reached(str(path)):
            return loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StoreError(f"{path}: not readable as TOML: {error}") from error
