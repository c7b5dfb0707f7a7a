"""A running sum that goes from rank to rank: each adds its share and hands it on; all get the last rank's sum.

`Wire` sends it through torch.distributed. `Bridge` is for ranks on one machine: it keeps the sum in shared memory, with
a counter for each rank that says how far that rank is.
"""

from __future__ import annotations

import mmap
import os
import platform
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from cutlayer.errors import ContractError, RankLost, expect

SHARED = Path("/dev") / "shm"  # a file system in memory
SEGMENT = 2**20  # numbers handed on at a time, so that ranks can work on different segments at once
SILENCE = 1800.0  # seconds, as in torch
NAP, LOOK = 2e-5, 0.5  # seconds between two checks of a counter, and of whether the other ranks still run
SENDS = ("cpu", "cuda")  # kinds of devices whose tensors torch.distributed sends (gloo and NCCL)


def sendable(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy on the host where torch.distributed does not send from its device."""
    return tensor if tensor.device.type in SENDS else tensor.cpu()


def machine() -> str:
    """Return what tells this machine from others."""
    return f"{socket.gethostname()} {_boot()}"


class Wire:
    """Sends the sum from rank to rank through torch.distributed."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._sent: list[dist.Work | None] = []

    def begin(self, totals: Sequence[Tensor]) -> None:
        """Begin a new sum."""

    def take(self, totals: Sequence[Tensor], at: slice) -> None:
        """Receive one segment from the previous rank."""
        for part in (total[at] for total in totals):
            received = sendable(part)
            dist.recv(received, self.rank - 1)
            part.copy_(received)

    def hand(self, totals: Sequence[Tensor], at: slice) -> None:
        """Send one segment to the next rank, if there is one."""
        if self.rank + 1 < self.size:
            self._sent += [dist.isend(sendable(total[at]), self.rank + 1) for total in totals]

    def settle(self, totals: Sequence[Tensor]) -> None:
        """Give the last rank's sum to all ranks."""
        for sent in self._sent:
            if sent is not None:
                sent.wait()
        self._sent = []
        for total in totals:
            last = sendable(total)
            dist.broadcast(last, self.size - 1)
            total.copy_(last)


class Bridge:
    """Keeps the sum in shared memory. `agree` gives every rank what each of them says; all ranks call it together."""

    def __init__(self, rank: int, size: int, agree: Callable[[object], list[object]]) -> None:
        self.rank, self.size, self.agree = rank, size, agree
        self.pids = [int(str(pid)) for pid in agree(os.getpid())]
        self.room = 0
        self.tick = 0  # segments handed on so far

    @staticmethod
    def possible(agree: Callable[[object], list[object]]) -> bool:
        """Whether all ranks are on one machine whose processor keeps the order of writes, with a file system in memory
        and a way to see whether the other ranks still run."""
        fit = platform.machine() in ("x86_64", "AMD64") and os.access(SHARED, os.W_OK) and _lives(os.getpid())
        return len(set(agree(machine()))) == 1 and all(agree(fit))

    def begin(self, totals: Sequence[Tensor]) -> None:
        need = sum(total.nbytes for total in totals)
        if need > self.room:
            self._grow(need)
        if self.rank == 0:  # wait until no rank reads the last sum any more
            for other in range(1, self.size):
                self._wait(self.settled, other, self.tick)
        self._first = self.tick

    def take(self, totals: Sequence[Tensor], at: slice) -> None:
        self._wait(self.handed, self.rank - 1, self.tick + 1)
        for mine, shared in self._pairs(totals, at):
            mine.copy_(shared)

    def hand(self, totals: Sequence[Tensor], at: slice) -> None:
        for mine, shared in self._pairs(totals, at):
            shared.copy_(mine)
        self.tick += 1
        self.handed[self.rank] = self.tick

    def settle(self, totals: Sequence[Tensor]) -> None:
        last = self.size - 1
        if self.rank < last:
            for k, start in enumerate(range(0, len(totals[0]), SEGMENT)):
                self._wait(self.handed, last, self._first + k + 1)
                for mine, shared in self._pairs(totals, slice(start, start + SEGMENT)):
                    mine.copy_(shared)
        self.settled[self.rank] = self.tick

    def _pairs(self, totals: Sequence[Tensor], at: slice) -> list[tuple[Tensor, Tensor]]:
        start, pairs = 0, []
        for total in totals:
            shared = self.memory[start : start + total.nbytes].view(total.dtype)
            pairs.append((total[at], shared[at]))
            start += total.nbytes
        return pairs

    def _grow(self, need: int) -> None:
        """Map a new file in all ranks; it is unlinked as soon as all have opened it, so none is left behind."""
        counters = 8 * self.size
        path = ""
        if self.rank == 0:
            handle, path = tempfile.mkstemp(dir=SHARED, prefix="cutlayer-")
            os.truncate(handle, need + 2 * counters)
            os.close(handle)
        path = str(self.agree(path)[0])
        with open(path, "r+b") as file:
            raw = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)
        self.agree("open")
        if self.rank == 0:
            Path(path).unlink()
        self.handed, self.settled = (raw[k * counters : (k + 1) * counters].view(torch.int64) for k in (0, 1))
        self.memory, self.room, self.tick = raw[2 * counters :], need, 0

    def _wait(self, counters: Tensor, rank: int, until: int) -> None:
        began = looked = time.monotonic()
        while int(counters[rank]) < until:
            time.sleep(NAP)
            if time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                for other, pid in enumerate(self.pids):
                    if not _lives(pid):
                        raise RankLost(f"rank {other} (process {pid}) has ended")
                if looked - began > silence():
                    said = f"rank {rank} (process {self.pids[rank]}) has been silent for {looked - began:.0f} seconds"
                    raise RankLost(said)


def silence() -> float:
    """Return how many seconds a rank waits for another before it gives up."""
    given = os.environ.get("CUTLAYER_RANKS_TIMEOUT", "")
    try:
        seconds = float(given or SILENCE)
    except ValueError as error:
        raise ContractError(f"CUTLAYER_RANKS_TIMEOUT = {given!r}: expected seconds") from error
    expect(0 < seconds < 1e9, "CUTLAYER_RANKS_TIMEOUT", given, "seconds, above 0")
    return seconds


def _lives(pid: int) -> bool:
    """Whether a process on this machine still runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"
