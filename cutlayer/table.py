"""Tables of named parts: a name, how to make it, one line on what it is, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cutlayer.errors import expect, unknown


@dataclass(frozen=True)
class Part:
    """A name in a table: `make(**fixed, **given)` builds it."""

    make: Callable[..., Any]
    line: str
    paper: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    memory: str = ""  # what it holds on the server, in units of the server half
    sends: str = ""  # what a client and the server send each other, a step


def build(what: str, table: Mapping[str, Part], given: Any, needs: Sequence[str]) -> Any:
    """`given` if it is an object that has what it `needs`, or None; the part of that name if it is a string."""
    if not isinstance(given, str):
        fits = given is None or (not isinstance(given, type) and all(hasattr(given, name) for name in needs))
        names = ", ".join(table)
        expect(
            fits, what, given, f"one of {names}, or an object such as cl.{next(iter(table.values())).make.__name__}()"
        )
        return given
    if given not in table:
        raise unknown(what, given, table)
    part = table[given]
    return part.make(**part.fixed)
