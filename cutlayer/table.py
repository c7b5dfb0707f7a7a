"""Tables of named parts: a name, how to make it, one line on what it is, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cutlayer.errors import unknown


@dataclass(frozen=True)
class Part:
    """A name in a table: `make(**fixed, **given)` builds it."""

    make: Callable[..., Any]
    line: str
    paper: str
    fixed: Mapping[str, Any] = field(default_factory=dict)


def build(what: str, table: Mapping[str, Part], given: Any) -> Any:
    """`given` if it is an object already; the part of that name, with its defaults, if it is a string."""
    if not isinstance(given, str):
        return given
    if given not in table:
        raise unknown(what, given, table)
    part = table[given]
    return part.make(**part.fixed)
