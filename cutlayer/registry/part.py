"""Parts that users choose by name: where each is defined, a line about it, its paper and its parameters.

A table names a part's module instead of importing it, so that reading the tables is quick: torch is loaded when the
first part is built.
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


@dataclass(frozen=True, eq=False)  # compared by identity, so that a part can be a key
class Part:
    """An entry of a table: `make(**fixed, **given)` builds it. `maker`: a class or function, or "module:name"."""

    maker: Callable[..., Any] | str
    line: str
    paper: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    memory: str = ""  # what it holds on the server, in units of the server half
    sends: str = ""  # what a client and the server send each other in a step
    about: Mapping[str, Takes] | None = None  # its parameters; None: read them from its signature

    @property
    def make(self) -> Callable[..., Any]:
        if not isinstance(self.maker, str):
            return self.maker
        module, _, name = self.maker.partition(":")
        made: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return made

    @property
    def takes(self) -> Mapping[str, Takes]:
        """The parameters that a user can set."""
        if self.about is not None:
            return self.about
        return {name: Takes(kind_of(p.annotation), p.default, "") for name, p in self.signature().items()}

    def signature(self) -> dict[str, inspect.Parameter]:
        """The parameters that a user can set, read from the part's signature."""
        parameters = inspect.signature(self.make, eval_str=True).parameters
        taken = {name: p for name, p in parameters.items() if name not in self.fixed and name not in FROM_DATA}
        return {name: p if p.annotation is not p.empty else p.replace(annotation=Any) for name, p in taken.items()}


def kind_of(annotation: Any) -> str:
    """A type as `--help` writes it."""
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
    """Build the part that a string names; return None, or an object with the attributes `needs`, as it is."""
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
