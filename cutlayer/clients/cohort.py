"""The clients of a round, wherever they live: all that an algorithm knows of a runtime."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

from cutlayer.clients.messages import Attached, CutGrad, FeatureGrad, Features, Momentum, Plan, Report, Smashed, Square
from cutlayer.clients.waves import Wave
from cutlayer.errors import RoundAbandoned


class Availability(NamedTuple):
    """Who could take part in a round, how many are to be selected, and how many must finish it for it to count."""

    clients: Sequence[int]
    select: int
    quorum: int = 1


class Cohort(Protocol):
    """Executes waves. What does not arrive in time is left out; the round goes on without it.

    `remote`: the clients are on machines of their own, and come and go as they like.
    """

    remote: ClassVar[bool] = False

    def available(self, n: int, everybody: Availability) -> Availability:
        """Who is there for round n; it may wait until there are enough."""
        return everybody

    def retry(self, error: RoundAbandoned, attempt: int) -> None:
        """A round did not count. It is tried again, unless this raises."""
        raise error

    def faults(self) -> tuple[str, ...]:
        """What went wrong since this was last asked, and with whom."""
        return ()

    @abstractmethod
    def open(self, plans: Sequence[Plan]) -> None:
        """Begin a round with these clients, or (where the front is relayed) one client's turn in it."""

    @abstractmethod
    def gather(self, wave: Wave) -> Sequence[Smashed | Attached]:
        """One step forward of each client of the wave."""

    @abstractmethod
    def tail_step(self, features: Sequence[Features]) -> Sequence[FeatureGrad]:
        """Through the clients' last blocks and back, where labels stay with them."""

    @abstractmethod
    def scatter(self, replies: Sequence[CutGrad]) -> Sequence[Square]:
        """The gradients at the cut, back to their clients; the answers, where the plan's local rule asks for some."""

    @abstractmethod
    def momenta(self, clients: Sequence[int]) -> Sequence[Momentum]:
        """The optimizer's moments of these clients, after a step."""

    @abstractmethod
    def adopt(self, fused: Sequence[Momentum]) -> None:
        """Moments for clients to go on with."""

    @abstractmethod
    def close(self, clients: Sequence[int]) -> Sequence[Report]:
        """The trained fronts of these clients."""
