"""Tables of named parts: a name, where it is made, one line on what it is, where it comes from, what it takes.

A table names the place of a part instead of importing it, so that reading the tables costs nothing: torch is loaded
when the first part is built.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from cutlayer.errors import expect, unknown

FROM_DATA = {"shape", "classes"}  # a model's arguments that come from the data


@dataclass(frozen=True)
class Takes:
    """A parameter of a part: its kind as `--help` writes it (FLOAT, INT, BOOL, {a,b}), its default, what it does."""

    kind: str
    default: Any
    about: str


@dataclass(frozen=True, eq=False)  # a part is itself alone, and can be a key
class Part:
    """A name in a table: `make(**fixed, **given)` builds it. `maker`: a class or function, or "module:name"."""

    maker: Callable[..., Any] | str
    line: str
    paper: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    memory: str = ""  # what it holds on the server, in units of the server half
    sends: str = ""  # what a client and the server send each other, a step
    about: Mapping[str, Takes] | None = None  # what it takes, known without importing it

    @property
    def make(self) -> Callable[..., Any]:
        if not isinstance(self.maker, str):
            return self.maker
        module, _, name = self.maker.partition(":")
        made: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return made

    @property
    def takes(self) -> Mapping[str, Takes]:
        """The parameters that a person may set."""
        if self.about is not None:
            return self.about
        return {name: Takes(kind_of(p.annotation), p.default, "") for name, p in self.signature().items()}

    def signature(self) -> dict[str, inspect.Parameter]:
        """The same, from the part itself."""
        parameters = inspect.signature(self.make, eval_str=True).parameters
        return {name: p for name, p in parameters.items() if name not in self.fixed and name not in FROM_DATA}


def kind_of(annotation: Any) -> str:
    """How `--help` writes a type."""
    if get_origin(annotation) is Literal:
        return "{" + ",".join(str(choice) for choice in get_args(annotation)) + "}"
    if get_origin(annotation) is tuple:
        return " ".join(kind_of(one) for one in get_args(annotation))
    inside = get_args(annotation)
    if any(get_origin(option) is Literal for option in inside):
        return next(kind_of(option) for option in inside if get_origin(option) is Literal)
    plain = next((option for option in inside if option in (bool, int, float, str)), annotation)
    return {bool: "BOOL", int: "INT", float: "FLOAT", str: "TEXT"}.get(plain, "VALUE")


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
