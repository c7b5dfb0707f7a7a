"""Tables of parts by name: those that ship, those of installed packages, and a user's own."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from cutlayer.errors import ContractError, expect
from cutlayer.registry import own

V = TypeVar("V")


class Table(Mapping[str, V], Generic[V]):
    """Parts of one kind (`what`: "scheme") by name. `of(maker, line)` makes an entry from a class or function, or from
    "module:name". `needs`: the attributes that an object of this kind has.

    Besides the names that ship there are those of installed packages (entry points of the group "cutlayer.schemes"),
    those of `register`, and import paths; of models, also `hf:NAME_OR_PATH`, for which `hf` makes an entry.
    """

    def __init__(
        self,
        what: str,
        shipped: Mapping[str, V],
        of: Callable[[Callable[..., Any] | str, str], V],
        needs: Sequence[str] = (),
        hf: Callable[[str], V] | None = None,
    ) -> None:
        self.what, self.shipped, self.needs, self._hf = what, dict(shipped), tuple(needs), hf
        self._of = of
        self._own: dict[str, V] = {}

    def register(self, name: str, maker: Callable[..., Any] | str, line: str = "your own") -> None:
        """Add a part under a name."""
        expect(name.isascii() and name.replace("-", "_").isidentifier(), "name", name, "letters, digits, - and _")
        if name in self.shipped:
            raise ContractError(f"{self.what} = {name!r}: cutlayer has one of this name; choose another")
        self._own[name] = self._of(maker, line)

    @cached_property
    def _installed(self) -> dict[str, V]:
        """The parts of installed packages; their modules are not imported yet."""
        return {
            point.name: self._of(point.value, f"from the package {point.dist.name}" if point.dist else "installed")
            for point in importlib.metadata.entry_points(group=f"cutlayer.{self.what}s")
        }

    def __getitem__(self, name: str) -> V:
        for known in (self.shipped, self._own):
            if name in known:
                return known[name]
        if self._hf is not None and own.is_hf(name):
            self._own[name] = self._hf(name.removeprefix(own.HF))
            return self._own[name]
        if own.is_path(name):
            self._own[name] = self._of(own.found(self.what, name), "your own")
            return self._own[name]
        return self._installed[name]

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*self.shipped, *(n for n in self._own if own.COLON not in n), *self._installed])

    def __len__(self) -> int:
        return len(list(iter(self)))
