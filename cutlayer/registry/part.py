"""Parts that users choose by name: where each is defined, a line about it, its paper and its parameters.

A table names a part's module instead of importing it, so that reading the tables is quick: torch is loaded when the
first part is built.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from cutlayer.errors import expect, unknown
from cutlayer.registry import own
from cutlayer.registry.table import Table

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

    @classmethod
    def own(cls, maker: Callable[..., Any] | str, line: str) -> Part:
        """Return an entry for a part from outside this package."""
        return cls(maker, line, "-")

    @property
    def make(self) -> Callable[..., Any]:
        return own.imported(self.maker) if isinstance(self.maker, str) else self.maker

    @property
    def takes(self) -> Mapping[str, Takes]:
        """The parameters that a user can set."""
        if self.about is not None:
            return self.about
        return {name: Takes(kind_of(p.annotation), p.default, "") for name, p in self.signature().items()}

    def signature(self) -> dict[str, inspect.Parameter]:
        """The parameters that a user can set, read from the part's signature."""
        skipped = {*self.fixed, *FROM_DATA}
        return {
            name: p if p.annotation is not p.empty else p.replace(annotation=Any)
            for name, p in _parameters(self.make).items()
            if name not in skipped and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }

    def build(self, given: Mapping[str, Any], data: Mapping[str, Any] = {}) -> Any:
        """Make the part. `data`: what the data say (FROM_DATA), passed on where the part takes it."""
        taken = {name: value for name, value in data.items() if name in _parameters(self.make)} if data else {}
        return self.make(**taken, **self.fixed, **given)


def _parameters(maker: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(maker, eval_str=True).parameters
    except NameError:  # an annotation that cannot be looked up, in somebody else's code
        return inspect.signature(maker).parameters


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


def build(table: Table[Part], given: Any, field: str = "") -> Any:
    """Build the part that a string names; return None, or an object with what the table `needs`, as it is."""
    field = field or table.what
    if not isinstance(given, str):
        check(table, given, field)
        return given
    if own.is_path(given):
        own.allow(given)  # the caller's own program names it
    if given not in table:
        raise unknown(field, given, table)
    made = table[given].build({})
    check(table, made, field)
    return made


def check(table: Table[Part], given: Any, field: str) -> None:
    """Refuse an object that lacks what the table `needs`; None passes."""
    fits = given is None or (not isinstance(given, type) and all(hasattr(given, name) for name in table.needs))
    names, example = ", ".join(table), next(iter(table.values())).make.__name__
    expect(fits, field, given, f"one of {names}, or an object such as cl.{example}()")
