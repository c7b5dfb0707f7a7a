"""Ratios of times that are reliable even on a noisy machine: measured side by side, repeatedly, in one process."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Ratio(NamedTuple):
    """The median of the ratios of all repeats, and their quartiles."""

    median: float
    low: float
    high: float


def interleaved(plays: Mapping[str, Callable[[], object]], repeats: int, warm: int = 1) -> dict[str, list[float]]:
    """Time all `plays` one after another in each repeat; return their seconds, without the first `warm` repeats."""
    seconds: dict[str, list[float]] = {name: [] for name in plays}
    names = list(plays)
    gc.collect()
    gc.freeze()  # so that gc.collect skips what is there already
    for turn in range(warm + repeats):
        for name in names if turn % 2 else reversed(names):
            gc.collect()
            began = time.perf_counter()
            plays[name]()
            if turn >= warm:
                seconds[name].append(time.perf_counter() - began)
    gc.unfreeze()
    return seconds


def ratio(theirs: list[float], ours: list[float]) -> Ratio:
    """How many times as fast as `theirs` ours is."""
    found = [a / b for a, b in zip(theirs, ours, strict=True)]
    return spread(found)


def spread(found: list[float]) -> Ratio:
    if len(found) < 2:
        return Ratio(found[0], found[0], found[0])
    low, _, high = statistics.quantiles(found, n=4, method="inclusive")
    return Ratio(statistics.median(found), low, high)
