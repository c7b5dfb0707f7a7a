"""What has been played: one JSON line per seed, so that a night goes on where it was interrupted."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Entry:
    """A seed that was played; `error`: the last lines of what went wrong; `trials`: how many it was."""

    campaign: str
    seed: int
    ok: bool
    seconds: float
    commit: str
    error: str = ""
    trials: int = 1

    @property
    def replay(self) -> str:
        return f"python -m tests.nightly {self.campaign} --seed {self.seed}"


class Ledger:
    """A file that several processes may add to. A line that was torn is dropped, and does no harm to the next."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Entry]:
        found = []
        for line in self.path.read_bytes().split(b"\n") if self.path.exists() else []:
            try:
                found.append(Entry(**json.loads(line)))
            except (ValueError, TypeError):  # torn
                continue
        return found

    def add(self, entry: Entry) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            torn = file.tell() > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
            file.write(b"\n" * torn + json.dumps(asdict(entry)).encode() + b"\n")

    def done(self, commit: str) -> set[tuple[str, int]]:
        """What need not be played again as long as the code is the same."""
        return {(entry.campaign, entry.seed) for entry in self.read() if entry.commit == commit}


def commit() -> str:
    """The code that is played: its commit, and a digest of what has been changed since."""
    try:
        name = _git("rev-parse", "--short=12", "HEAD").decode().strip()
        changes = _git("diff", "HEAD", "--", "cutlayer", "tests")
        new = _git("ls-files", "--others", "--exclude-standard", "--", "cutlayer", "tests").decode().splitlines()
        changes += b"".join(file.encode() + (ROOT / file).read_bytes() for file in new)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{name}+{hashlib.sha256(changes).hexdigest()[:8]}" if changes else name


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


def summary(entries: Iterable[Entry]) -> str:
    """A table, and how to see each failure again."""
    groups: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry.campaign].append(entry)
    lines = [f"{'campaign':10} {'seeds':>7} {'trials':>9} {'failed':>7} {'hours':>7}  commits"]
    for name, group in sorted(groups.items()):
        failed, hours = sum(not entry.ok for entry in group), sum(entry.seconds for entry in group) / 3600
        commits = ", ".join(dict.fromkeys(entry.commit for entry in group))
        trials = sum(entry.trials for entry in group)
        lines.append(f"{name:10} {len(group):7} {trials:9,} {failed:7} {hours:7.2f}  {commits}")
    for entry in (entry for group in groups.values() for entry in group if not entry.ok):
        why = entry.error.strip().splitlines()
        lines += ["", f"{entry.replay}    # at {entry.commit}", *(f"    {line}" for line in why[-3:])]
    return "\n".join(lines)
