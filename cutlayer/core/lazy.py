"""Sequences of many things, each made when it is asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar, overload

T = TypeVar("T")


class Lazy(Sequence[T]):
    """`at(j)` makes the j-th of `len`; indices from the end and slices follow."""

    @abstractmethod
    def at(self, j: int) -> T:
        """The j-th, 0 <= j < len."""

    @overload
    def __getitem__(self, j: int) -> T: ...
    @overload
    def __getitem__(self, j: slice) -> list[T]: ...
    def __getitem__(self, j: int | slice) -> T | list[T]:
        places = range(len(self))[j]
        return [self.at(i) for i in places] if isinstance(places, range) else self.at(places)
