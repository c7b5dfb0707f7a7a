"""Thousands of silent and a hundred slow connections at a server that may open 1,024 files: the same bits.

`python -m tests.nightly.strangers` says what that costs in time.
"""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path

from tests.network.transport.test_connections import flooded

LIMIT, SILENT, SLOW = 1024, 5000, 100


def play(seed: int, folder: Path) -> None:
    room_for(SILENT)
    flooded(folder, SILENT, SLOW, LIMIT, last=3)


def room_for(connections: int) -> None:
    """Let this process open so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < connections + 500:
        resource.setrlimit(resource.RLIMIT_NOFILE, (connections + 500, hard))


def compared() -> None:
    """With and without them, one after the other, five times."""
    room_for(SILENT)
    for _ in range(5):
        found = []
        for silent, slow in ((0, 0), (SILENT, SLOW)):
            with tempfile.TemporaryDirectory() as folder:
                found.append(flooded(Path(folder), silent, slow, LIMIT, last=200))
        print(f"200 rounds: {found[0]:.2f} s alone, {found[1]:.2f} s with {SILENT} silent and {SLOW} slow connections")


if __name__ == "__main__":
    compared()
