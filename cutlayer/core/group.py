"""The processes that share a run. One by itself is a group of one; `processes.ranks.Ranks` are several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from cutlayer.core.threads import Workers

T = TypeVar("T")
Visit = Callable[[slice, bool], None]
"""Add this process's share to one part of a running sum; True: the sum begins here."""
Wait = Callable[[], None]


def at_once() -> None:
    """Nothing to wait for."""


class ProcessGroup:
    """One process: every share is the whole, every sum its own."""

    rank = 0
    size = 1

    @property
    def root(self) -> bool:
        """The one that writes and speaks."""
        return self.rank == 0

    def mine(self, items: Sequence[T], unit: int = 1) -> Sequence[T]:
        """This process's share: neighbours, in whole groups of `unit`."""
        return items

    def add_up(self, totals: Sequence[Tensor], visit: Visit, workers: Workers) -> Wait:
        """What every process adds, in the order of their ranks, into `totals`; all have the same once it is waited for,
        and may compute something else until then."""
        workers.sweep(len(totals[0]), lambda at: visit(at, True))
        return at_once

    def everyones(self, words: Any) -> list[Any]:
        """What each process says, as plain data, in the order of their ranks."""
        return [words]

    def all_tensors(self, named: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """What each process holds, in the order of their ranks."""
        return [dict(named)]

    def from_root(self, words: Any, named: Mapping[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        """What the root says and holds."""
        return words, dict(named)


ONE_PROCESS = ProcessGroup()
