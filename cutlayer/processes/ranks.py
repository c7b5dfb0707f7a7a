"""Several processes under torch.distributed, as `torchrun` starts them: each has a share of a round's clients.

"ordered"   sums run through the ranks in the order of the clients: the bits of a single process
"fast"      every rank adds up its own share, and one all-reduce adds the shares: the same up to rounding
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from cutlayer.core.devices import identity
from cutlayer.core.group import ONE_PROCESS, ProcessGroup, Visit, Wait, at_once
from cutlayer.core.pack import pack, unpack
from cutlayer.core.threads import Workers
from cutlayer.errors import ContractError, RankLost, expect, unknown
from cutlayer.processes.ordered_sum import SEGMENT, Bridge, Wire, machine, sendable, silence

T = TypeVar("T")
SUMS = ("ordered", "fast")


class Ranks(ProcessGroup):
    """The process group of torch.distributed, as this process sees it."""

    def __init__(self, sums: str) -> None:
        if sums not in SUMS:
            raise unknown("ranks", sums, SUMS)
        self.exact = sums == "ordered"
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._line: Wire | Bridge = Wire(self.rank, self.size)
        if self.exact and not torch.cuda.is_available() and Bridge.possible(self.everyones):
            self._line = Bridge(self.rank, self.size, self.everyones)

    def mine(self, items: Sequence[T], unit: int = 1) -> Sequence[T]:
        return self.share(self.rank, items, unit)

    def share(self, rank: int, items: Sequence[T], unit: int = 1) -> Sequence[T]:
        """The share of a rank, as `mine` returns it there."""
        groups = -(-len(items) // unit)
        lo, hi = (groups * r // self.size * unit for r in (rank, rank + 1))
        return items[lo:hi]

    def add_up(self, totals: Sequence[Tensor], visit: Visit, workers: Workers) -> Wait:
        length, first = len(totals[0]), self.rank == 0
        with self._heard():
            if not self.exact:
                for total in totals if not first else ():
                    total.zero_()
                workers.sweep(length, lambda at: visit(at, first))
                return self._reduced(totals)
            self._line.begin(totals)
            for start in range(0, length, SEGMENT):
                at = slice(start, min(start + SEGMENT, length))
                if not first:
                    self._line.take(totals, at)
                workers.sweep(at.stop, lambda part: visit(part, first), start)
                self._line.hand(totals, at)
            self._line.settle(totals)
        return at_once

    def _reduced(self, totals: Sequence[Tensor]) -> Wait:
        """Add the totals of all ranks by an all-reduce that is under way until the returned function is called."""
        sums = [sendable(total) for total in totals]
        under_way = [dist.all_reduce(total, async_op=True) for total in sums]

        def wait() -> None:
            with self._heard():
                for work in under_way:
                    if work is not None:
                        work.wait()
            for total, found in zip(totals, sums, strict=True):
                total.copy_(found)

        return wait

    def everyones(self, words: Any) -> list[Any]:
        return [unpack(blob)[0] for blob in self._everyones(pack(words))]

    def all_tensors(self, named: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        found = [unpack(blob) for blob in self._everyones(pack(list(named), list(named.values())))]
        return [dict(zip(names, tensors, strict=True)) for names, tensors in found]

    def from_root(self, words: Any, named: Mapping[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        (said, names), tensors = unpack(self.broadcast(pack([words, list(named)], list(named.values()))))
        return said, dict(zip(names, tensors, strict=True))

    def broadcast(self, blob: Tensor) -> Tensor:
        """Send the root's bytes to all ranks, and return them."""
        with self._heard():
            size = torch.tensor([len(blob)])
            dist.broadcast(size, 0)
            mine = blob if self.root else torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(mine, 0)
        return mine

    def gather(self, blob: Tensor) -> list[Tensor]:
        with self._heard():
            if not self.root:
                dist.send(torch.tensor([len(blob)]), 0)
                dist.send(blob, 0)
                return []
            return [blob, *(self._receive(other) for other in range(1, self.size))]

    def deal(self, blobs: Sequence[Tensor]) -> Tensor:
        with self._heard():
            if not self.root:
                return self._receive(0)
            for other in range(1, self.size):
                dist.send(torch.tensor([len(blobs[other])]), other)
                dist.send(blobs[other], other)
            return blobs[0]

    def _receive(self, other: int) -> Tensor:
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, other)
        blob = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(blob, other)
        return blob

    def _everyones(self, blob: Tensor) -> list[Tensor]:
        with self._heard():
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(blob)]))
            longest = max(int(size) for size in sizes)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(blob)] = blob
            blobs = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(blobs, padded)
        return [found[: int(size)] for found, size in zip(blobs, sizes, strict=True)]

    @contextmanager
    def _heard(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, dist.DistError) as error:
            words = str(error).splitlines()[0]
            raise RankLost(f"rank {self.rank} of {self.size} lost contact with another rank: {words}") from error


def join(sums: str | None) -> ProcessGroup:
    """Return the process group that `torchrun` started; a group of one if there is none, or `sums` is None."""
    if sums is None or not dist.is_available():
        return ONE_PROCESS
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            return ONE_PROCESS
        if "MASTER_ADDR" not in os.environ:
            raise ContractError("ranks: WORLD_SIZE is set, but not MASTER_ADDR; expected a start by torchrun")
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=silence()))
    if dist.get_world_size() < 2:
        return ONE_PROCESS
    if sums not in _joined:  # all ranks wait for each other here, so do it once per program and not in every run
        _joined[sums] = Ranks(sums)
    return _joined[sums]


_joined: dict[str, Ranks] = {}


def refuse_shared(processes: ProcessGroup, device: torch.device) -> None:
    """Refuse a device that two ranks would share. All ranks call this together, and all of them raise."""
    if processes.size == 1:
        return
    users: dict[str, int] = {}
    for rank, place in enumerate(processes.everyones(f"{identity(device)} of {machine()}")):
        first = users.setdefault(place, rank)
        expect(
            first == rank or place.startswith("cpu "),
            "device",
            str(device),
            "one device for each rank of a machine, and this is one for the ranks "
            f"{first} and {rank}: give its kind without a number, and start with torchrun or set LOCAL_RANK",
        )


def leave() -> None:
    """Leave the process group, at the end of the program."""
    _joined.clear()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
