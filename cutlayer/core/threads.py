"""Threads that each compute with one torch thread: several clients at a time, or several parts of a long vector.

The bits do not depend on the number of threads: the same operations run on the same data, and sums over clients run in
client order.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")
PART, TOGETHER = 2**17, 8
"""How many numbers to process in one call, and how many rows of short vectors: they fit the cache and are worth it."""
ALL = 2**62


class Workers:
    """A pool of `n` threads; with n = 1, the caller's thread does the work. `part`, `together`: how many numbers,
    and how many rows of short vectors, are processed in one call."""

    def __init__(self, n: int = 1, part: int | None = None, together: int | None = None) -> None:
        self.n, self.part, self.together = n, part or PART, together or TOGETHER
        self._pool: ThreadPoolExecutor | None = None

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call `work` on every item; return the results in item order. Gradients are off, as in the caller."""
        items = list(items)
        n = min(self.n, len(items))
        if n < 2:
            return [work(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.n, "cutlayer", torch.set_num_threads, (1,))
        done: dict[int, R] = {}
        failed: dict[int, BaseException] = {}
        places = itertools.count()

        def drain() -> None:
            with torch.no_grad():
                while (at := next(places)) < len(items) and not failed:
                    try:
                        done[at] = work(items[at])
                    except BaseException as error:  # it is raised again in the caller's thread
                        failed[at] = error

        for waiting in [self._pool.submit(drain) for _ in range(n)]:
            waiting.result()
        if failed:
            raise failed[min(failed)]
        return [done[at] for at in range(len(items))]

    @classmethod
    def on(cls, device: torch.device, n: int = 1) -> Workers:
        """Return the workers for a device. A GPU computes with whole vectors and all rows at once, in one thread: each
        call costs the same, however much it does."""
        return cls(n) if device.type == "cpu" else cls(1, ALL, ALL)

    def resized(self, n: int) -> Workers:
        """Return n workers that process as much in one call."""
        return Workers(n, self.part, self.together)

    def sweep(self, end: int, visit: Callable[[slice], None], start: int = 0) -> None:
        """Call `visit` on every part of a vector from start to end."""
        self.map(visit, self.parts(end, start))

    def rows(self, length: int) -> int:
        """How many rows of a vector of this length to process in one call: long ones leave no room in the cache."""
        return max(1, min(self.together, 2 * self.part // max(1, min(length, self.part))))

    def parts(self, end: int, start: int = 0) -> Iterator[slice]:
        """Yield the slices that divide a vector into parts."""
        yield from (slice(at, min(at + self.part, end)) for at in range(start, end, self.part))


class _Computing:
    """The threads of this process that are inside `torch_threads`."""

    lock = threading.Lock()
    count = 0
    threads = 1  # torch's number of threads before the first of them entered


_inside = threading.local()


@contextmanager
def torch_threads(n: int = 1) -> Iterator[None]:
    """Compute with n torch threads in this context: the same bits on any number of cores.

    torch keeps its number of threads per Python thread, and a new thread inherits it. A thread that was started while
    another one was in this context has inherited 1; when it leaves, it gets the number that the first one had before.
    """
    if getattr(_inside, "it", False):
        yield
        return
    mine, _inside.it = torch.get_num_threads(), True
    with _Computing.lock:
        if _Computing.count == 0:
            _Computing.threads = mine
        _Computing.count += 1
    torch.set_num_threads(n)
    try:
        yield
    finally:
        _inside.it = False
        with _Computing.lock:
            _Computing.count -= 1
            torch.set_num_threads(mine if mine > 1 else _Computing.threads)


def blocks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Split items into consecutive groups of `size`."""
    return [items[start : start + size] for start in range(0, len(items), size)]
