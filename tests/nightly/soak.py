"""A hundred thousand steps in one process: memory, descriptors and threads are at the end what they were early on."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import shutil
import sys
import threading
from dataclasses import astuple, dataclass
from pathlib import Path

from cutlayer.experiment.experiment import Experiment
from tests.nightly.runs import POINTS, config

STEPS = 100_000
PER_ROUND = 20  # steps: two clients with ten each
HEAP, BLOCKS = 256 * 2**10, 4000  # bytes, and Python's own small blocks: the journal of a run grows by a record a round


@dataclass(frozen=True)
class Held:
    """What this process holds after a collection."""

    heap: int
    blocks: int
    files: int
    threads: int


class _Heap(ctypes.Structure):
    names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in names]


def held() -> Held:
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Heap
    now = mallinfo()
    files = len(os.listdir("/proc/self/fd"))
    return Held(now.uordblks + now.hblkhd, sys.getallocatedblocks(), files, threading.active_count())


def fill_table() -> None:
    """Let Python's table of interned strings reach its last size.

    Names of files come and go in it, and it doubles once (by 1.9 MB) when some 14,000 of them have.
    """
    for number in range(200_000):
        sys.intern(f"a name that nobody keeps: {number}")


def play(seed: int, folder: Path, steps: int = STEPS) -> int:
    """Short runs one after another, as a search over settings would; the first tenth is there to warm up."""
    dice = random.Random(seed)
    points = dice.sample(POINTS, 2)
    runs = steps // (2 * PER_ROUND)
    early = None
    fill_table()
    for number in range(runs):
        scheme, protocol = points[number % len(points)]
        given = config(scheme, protocol, rounds=2, local_steps=10, kept_memory=0 if number % 4 > 1 else None)
        for _ in Experiment.start(given, folder / str(number)):
            pass
        shutil.rmtree(folder / str(number))
        if number == max(runs // 10, 3):
            early = held()
    assert early is not None
    late = held()
    what = f"{points}: {early} became {late}"
    assert late.heap - early.heap < HEAP and late.blocks - early.blocks < BLOCKS, what
    assert astuple(late)[2:] == astuple(early)[2:], what
    return steps
