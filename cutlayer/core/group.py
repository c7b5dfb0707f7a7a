"""The processes that share a run. Here: a group of one process; `processes.ranks.Ranks` is a group of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from cutlayer.core.threads import Workers

T = TypeVar("T")
Visit = Callable[[slice, bool], None]
"""Adds this process's share to one part of a running sum; True: this process starts the sum."""
Wait = Callable[[], None]


def at_once() -> None:
    """Return at once: there is nothing to wait for."""


class ProcessGroup:
    """A group of one process: its share is everything, and its own sums are complete."""

    rank = 0
    size = 1

    @property
    def root(self) -> bool:
        """Whether this is rank 0, the process that writes files and reports."""
        return self.rank == 0

    def mine(self, items: Sequence[T], unit: int = 1) -> Sequence[T]:
        """Return this process's share: consecutive items, in whole groups of `unit`."""
        return items

    def add_up(self, totals: Sequence[Tensor], visit: Visit, workers: Workers) -> Wait:
        """Sum what every process adds, in rank order, into `totals`. All processes have the same sums after calling the
        returned function, and may compute something else before."""
        workers.sweep(len(totals[0]), lambda at: visit(at, True))
        return at_once

    def everyones(self, words: Any) -> list[Any]:
        """Return the plain data that each process passes, in rank order."""
        return [words]

    def all_tensors(self, named: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Return the tensors that each process passes, in rank order."""
        return [dict(named)]

    def deal(self, blobs: Sequence[Tensor]) -> Tensor:
        """Send each process its bytes from the root (other ranks pass nothing); return those of this process."""
        return blobs[0]

    def gather(self, blob: Tensor) -> list[Tensor]:
        """Collect the bytes of all processes at the root, in rank order; the others get an empty list."""
        return [blob]

    def from_root(self, words: Any, named: Mapping[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        """Return the plain data and the tensors that the root passes."""
        return words, dict(named)


ONE_PROCESS = ProcessGroup()
