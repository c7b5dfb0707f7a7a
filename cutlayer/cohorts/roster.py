"""Who takes part in a run over the network: a number for every client that has ever come, for good."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from cutlayer.errors import ContractError
from cutlayer.net.hub import Session


@dataclass
class Entry:
    """What is known of a client, for those who watch."""

    name: str
    samples: int
    round: int = 0
    step: int = 0
    seconds: float = 0.0  # from the last question to its answer
    drops: int = 0


@dataclass
class Roster:
    """`names[j]` is client j. Until `fixed`, clients are numbered by name, so that it does not matter who came first;
    afterwards newcomers are put at the end."""

    entries: list[Entry] = field(default_factory=list)
    sessions: dict[int, Session] = field(default_factory=dict)
    fixed: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.RLock()

    @property
    def names(self) -> Sequence[str]:
        return [entry.name for entry in self.entries]

    @property
    def sizes(self) -> Sequence[int]:
        return [entry.samples for entry in self.entries]

    @property
    def connected(self) -> list[int]:
        return sorted(self.sessions)

    def enrol(self, name: str, samples: int) -> None:
        """A client that greets, for the first time or again."""
        with self._lock:
            known = next((entry for entry in self.entries if entry.name == name), None)
            if known is None:
                self.entries.append(Entry(name, samples))
            elif known.samples != samples and self.fixed:
                raise ContractError(
                    f"client {name}: {samples} samples, where it had {known.samples}; expected the same data all through"
                    " a run"
                )
            else:
                known.samples = samples

    def fix(self) -> None:
        """The run begins: numbers are given."""
        with self._lock:
            if not self.fixed:
                named = {self.entries[j].name: session for j, session in self.sessions.items()}
                self.entries.sort(key=lambda entry: entry.name)
                self.sessions = {self._number(name): session for name, session in named.items()}
                self.fixed = True

    def index(self, session: Session) -> int:
        with self._lock:
            return self._number(session.name)

    def came(self, session: Session) -> None:
        with self._lock:
            self.sessions[self._number(session.name)] = session

    def went(self, session: Session) -> None:
        with self._lock:
            j = self._number(session.name)
            if self.sessions.get(j) is session:
                del self.sessions[j]

    def heard(self, j: int, round: int, step: int, seconds: float) -> None:
        entry = self.entries[j]
        entry.round, entry.step, entry.seconds = round, step, seconds

    def _number(self, name: str) -> int:
        return self.names.index(name)
