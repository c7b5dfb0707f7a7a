"""A hundred thousand steps in one process: memory, descriptors and threads are at the end what they were early on."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import random
import shutil
import sys
import threading
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from cutlayer.experiment.experiment import Experiment
from tests.nightly.runs import POINTS, config

STEPS = 100_000
PER_ROUND = 20  # steps: two clients with ten each
LOOKS = 5  # at what is held: the first after a tenth of the runs, which are there to warm up
HEAP, BLOCKS = 64 * 2**10, 1000  # by which bytes and Python's own small blocks may grow from one look to the next
TABLE = 4 * 2**20  # bytes


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


def play(seed: int, folder: Path, steps: int = STEPS) -> int:
    """Short runs one after another, as a search over settings would."""
    dice = random.Random(seed)
    points = dice.sample(POINTS, 2)
    runs = steps // (2 * PER_ROUND)
    warm = max(runs // 10, 3)
    looks = {warm + (runs - 1 - warm) * k // (LOOKS - 1) for k in range(LOOKS)}
    seen = []
    for number in range(runs):
        scheme, protocol = points[number % len(points)]
        given = config(scheme, protocol, rounds=2, local_steps=10, kept_memory=0 if number % 4 > 1 else None)
        for _ in Experiment.start(given, folder / str(number)):
            pass
        shutil.rmtree(folder / str(number))
        if number in looks:
            seen.append(held())
    flat(seen, str(points))
    return steps


def flat(seen: Sequence[Held], what: str) -> None:
    """Nothing grows from look to look, but for one step of the heap: Python's table of interned strings doubles once
    (by 1.9 MB) when enough names of folders have come and gone."""
    pairs = list(itertools.pairwise(seen))
    assert sum(late.heap - early.heap >= HEAP for early, late in pairs) <= 1, f"{what}: {seen}"
    assert seen[-1].heap - seen[0].heap < TABLE + HEAP * len(pairs), f"{what}: {seen}"
    assert all(late.blocks - early.blocks < BLOCKS for early, late in pairs), f"{what}: {seen}"
    assert all(astuple(late)[2:] == astuple(seen[0])[2:] for late in seen), f"{what}: {seen}"
