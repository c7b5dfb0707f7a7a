"""The clients of a round, wherever they are: all that the engine knows of a runtime."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

from cutlayer.clients.messages import Down, Up
from cutlayer.errors import RoundAbandoned


class Availability(NamedTuple):
    """Which clients could take part in a round, how many to select, and how many must finish it for it to count."""

    clients: Sequence[int]
    select: int
    quorum: int = 1


class Fault(NamedTuple):
    """Why a client left a round, or an attempt at it (client None) failed. `whose`: the client's name."""

    why: str
    client: int | None = None
    whose: str = ""

    def __str__(self) -> str:
        return f"{self.whose}: {self.why}" if self.whose else self.why


class Cohort(Protocol):
    """Sends messages to the clients of a round, and returns their answers.

    `remote`: the clients are on other machines, and may come and go at any time.
    """

    remote: ClassVar[bool] = False

    def available(self, n: int, everybody: Availability) -> Availability:
        """Return who is available for round n; it may wait for clients. `everybody`: the answer if all are there."""
        return everybody

    def retry(self, error: RoundAbandoned, attempt: int) -> None:
        """Prepare to repeat a round that did not count, or raise the error to give up."""
        raise error

    def faults(self) -> tuple[Fault, ...]:
        """Return what went wrong since the last call, and with which clients."""
        return ()

    @abstractmethod
    def ask(self, messages: Sequence[Down]) -> Sequence[Up]:
        """Send messages of one kind, at most one to each client; return what the clients answer (`messages.answers`).

        Late and missing answers are left out.
        """
