"""Sequences whose items are made when they are asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar, overload

T = TypeVar("T")


class Lazy(Sequence[T]):
    """A sequence in which `at(j)` makes item j; negative indices and slices are derived from it."""

    @abstractmethod
    def at(self, j: int) -> T:
        """Make item j, 0 <= j < len."""

    @overload
    def __getitem__(self, j: int) -> T: ...
    @overload
    def __getitem__(self, j: slice) -> list[T]: ...
    def __getitem__(self, j: int | slice) -> T | list[T]:
        places = range(len(self))[j]
        return [self.at(i) for i in places] if isinstance(places, range) else self.at(places)
