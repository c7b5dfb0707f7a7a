"""Products of many parts: all of their combinations at night, and otherwise so many that every three parts meet."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable

THOROUGH = os.environ.get("CUTLAYER_THOROUGH") == "1"


def chosen(cases: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """All cases if asked for; otherwise, in order, those with three parts that did not meet in one before.

    >>> len(covering(list(itertools.product("abcd", "xyz", "12", "pq"))))
    42
    """
    every = list(cases)
    return every if THOROUGH else covering(every)


def covering(cases: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    seen: set[tuple[tuple[int, str], ...]] = set()
    found = []
    for case in cases[::2] + cases[1::2]:
        met = set(itertools.combinations(enumerate(case), 3))
        if not met <= seen:
            found.append(case)
            seen |= met
    return sorted(found, key=cases.index)
