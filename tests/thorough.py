"""Products of many parts: all of their combinations at night, and otherwise so many that every three parts meet."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable

THOROUGH = os.environ.get("CUTLAYER_THOROUGH") == "1"


def chosen(cases: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """All cases if asked for; otherwise so few of them that every three parts meet in one.

    >>> len(covering(list(itertools.product("abcd", "xyz", "12", "pq"))))
    24
    """
    every = list(cases)
    return every if THOROUGH else covering(every)


def covering(cases: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """First the cases in which most threes meet for the first time, then those with fewer."""
    meets = {case: set(itertools.combinations(enumerate(case), 3)) for case in cases}
    seen: set[tuple[tuple[int, str], ...]] = set()
    found = set()
    for least in range(max(map(len, meets.values()), default=0), 0, -1):
        for case, threes in meets.items():
            if len(threes - seen) >= least:
                found.add(case)
                seen |= threes
    return [case for case in cases if case in found]
