"""The campaigns by name. They are loaded when they are played, so that a summary needs no torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

Play = Callable[[int, Path], int | None]
NIGHT = {  # name: the seeds of a night
    "flips": 6000,
    "faults": 3000,
    "disk": 3000,
    "kills": 1800,
    "network": 600,
    "start": 600,
    "races": 600,
    "frames": 1000,
    "soak": 2,
    "threads": 300,
    "sigterm": 400,
    "strangers": 5,
}


LONG = {"soak": 7200.0}  # seconds that a seed may take, where it is more than others have


def play_of(name: str) -> Play:
    """The function of a campaign."""
    found: Play = importlib.import_module(f"tests.nightly.{name}").play
    return found


def chosen(names: Sequence[str]) -> list[str]:
    """These, or all."""
    for name in names:
        if name not in NIGHT:
            raise SystemExit(f"unknown campaign {name!r}: valid: {', '.join(NIGHT)}")
    return list(dict.fromkeys(names)) or list(NIGHT)


def share(seeds: range, shard: tuple[int, int]) -> range:
    """Part I of N of the seeds: every N-th, from the I-th on (I from 1)."""
    number, of = shard
    return seeds[number - 1 :: of]


def todo(plans: dict[str, range], done: set[tuple[str, int]]) -> list[tuple[str, int]]:
    """What is left to play, so that all campaigns are about as far at any moment."""
    jobs = [
        ((place + 0.5) / len(seeds), name, seed)
        for name, seeds in plans.items()
        for place, seed in enumerate(seeds)
        if (name, seed) not in done
    ]
    return [(name, seed) for _, name, seed in sorted(jobs)]
