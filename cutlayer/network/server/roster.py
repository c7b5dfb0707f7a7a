"""The clients of a run over the network. From the first round on, each keeps its number."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutlayer.core.files import write_aside
from cutlayer.core.sealed import seal, unseal
from cutlayer.errors import ContractError, Restored, StoreError, is_whole
from cutlayer.network.transport.hub import Connection

FILE = "roster.json"


@dataclass
class Entry:
    """What is known of a client, and shown to those who watch the run."""

    name: str
    samples: int
    round: int = 0
    step: int = 0  # -1: it has reported
    seconds: float = 0.0  # from the last message to its answer
    drops: int = 0


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts client-2 before client-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


class Sizes(Sequence[int]):
    """|D_j| of every client, including those that join later."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, j: Any) -> Any:
        return self._entries[j].samples


@dataclass
class Roster:
    """The clients by number: `names[j]` is client j.

    `fix` numbers them by name, so that it does not matter who connected first; later clients are added at the end.
    `path`: a file that keeps the numbers, for a run that is resumed.
    """

    path: Path | None = None
    entries: list[Entry] = field(default_factory=list)
    sessions: dict[int, Connection] = field(default_factory=dict)
    fixed: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self.sizes = Sizes(self.entries)
        if self.path is not None and any(path.exists() for path in _copies(self.path)):
            self.entries += _known(self.path)
            self.fixed = True
        self._numbers = {entry.name: j for j, entry in enumerate(self.entries)}

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self.entries]

    @property
    def connected(self) -> list[int]:
        with self._lock:
            return sorted(self.sessions)

    def enrol(self, session: Connection, samples: Any) -> None:
        """Register a client that is ready, for the first time or again."""
        name = session.name
        if not (is_whole(samples) and 1 <= samples < 2**48):
            raise ContractError(f"client {name}: samples = {samples!r}: expected a whole number, at least 1")
        with self._lock:
            j = self.index(session)
            if j is None:
                self._numbers[name] = len(self.entries)
                self.entries.append(Entry(name, samples))
                self._save()
            elif self.entries[j].samples != samples and self.fixed:
                known = self.entries[j].samples
                raise ContractError(
                    f"client {name}: {samples} samples, where it had {known}; expected the same data all through a run"
                )
            else:
                self.entries[j].samples = samples
            number = self.index(session)
            assert number is not None
            if session.alive:
                self.sessions[number] = session

    def fix(self) -> None:
        """Give the clients their final numbers, when the run begins."""
        with self._lock:
            if self.fixed:
                return
            there = list(self.sessions.values())
            gone = {entry.name for entry in self.entries} - {session.name for session in there}
            self.entries[:] = [entry for entry in self.entries if entry.name not in gone]  # these may still join later
            self.entries.sort(key=lambda entry: natural(entry.name))
            self._numbers = {entry.name: j for j, entry in enumerate(self.entries)}
            self.sessions = {self._numbers[session.name]: session for session in there}
            self.fixed = True
            self._save()

    def index(self, session: Connection) -> int | None:
        with self._lock:
            return self._numbers.get(session.name)

    def went(self, session: Connection) -> None:
        with self._lock:
            j = self.index(session)
            if j is not None and self.sessions.get(j) is session:
                del self.sessions[j]

    def heard(self, j: int, round: int, step: int, seconds: float) -> None:
        entry = self.entries[j]
        entry.round, entry.step, entry.seconds = round, step, seconds

    def _save(self) -> None:
        if self.path is not None and self.fixed:
            words = [{"name": entry.name, "samples": entry.samples} for entry in self.entries]
            for path in _copies(self.path):
                write_aside(path, seal({"clients": words}).encode())


def _copies(path: Path) -> tuple[Path, Path]:
    return path, path.with_name(f".{path.name}")


def _known(path: Path) -> list[Entry]:
    """Read the known clients from the file, or from its copy."""
    wrong: Exception | None = None
    for file in _copies(path):
        try:
            known = unseal(file.read_bytes())["clients"]
            found = [Entry(str(one["name"]), int(one["samples"])) for one in known]
        except (OSError, ValueError, TypeError, KeyError) as error:
            wrong = wrong or error
            continue
        if wrong is not None:
            warnings.warn(f"{path}: damaged: {wrong}; read from its copy", Restored, stacklevel=4)
        return found
    raise StoreError(f"{path}: damaged: {wrong}") from wrong
