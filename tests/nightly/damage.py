"""One file of a folder goes wrong: a bit, a byte, its end, a run of zeros, all of it."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

SKIPPED = (".lock", "curves.png", "table.json", "table.md", "report.html")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in SKIPPED)


def drawn_file(folder: Path, dice: random.Random) -> Path:
    """Any file; of each kind as often, however many there are."""
    kinds: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for path in files(folder):
        parent = "checkpoint" if path.parent.name.isdecimal() else path.parent.name
        kind = "parcel" if parent in ("owned", "copies", "fronts") else path.name
        kinds[parent, kind].append(path)
    return dice.choice(kinds[dice.choice(sorted(kinds))])


def damage(path: Path, dice: random.Random) -> str:
    """Do it; what was done, in words."""
    content = bytearray(path.read_bytes())
    kind = dice.choice(("bit", "byte", "torn", "zeros", "empty", "gone", "twice"))
    if not content or kind == "gone":
        path.unlink()
        return "removed"
    at = dice.randrange(len(content))
    if kind == "bit":
        content[at] ^= 1 << dice.randrange(8)
    elif kind == "byte":
        content[at] = dice.choice([value for value in range(256) if value != content[at]])
    elif kind == "torn":
        del content[at:]
    elif kind == "zeros":
        end = min(len(content), at + dice.choice((1, 8, 64, 512, 4096)))
        content[at:end] = bytes(end - at)
    elif kind == "empty":
        content.clear()
    else:
        content += content[at:]
    path.write_bytes(content)
    return f"{kind} at {at}"
