"""What every scheme is written against: the three calls it answers, and what it hands back.

A scheme is a frozen dataclass of hyper-parameters. `open` gives the state of one round; `step` turns the smashed
data of a wave into gradients at the cut; `close` hands back the server halves and what is kept for later rounds.
It does not know where clients live, samples nothing, logs nothing. What it computes with is the `Server`.

What the engine has to know of it beforehand, it says in `traits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cutlayer.clients.messages import CutGrad, Momentum, Smashed
from cutlayer.clients.waves import Wave
from cutlayer.nn.flat import Vectors
from cutlayer.schemes.server import Server
from cutlayer.schemes.traits import Traits

__all__ = ["Closed", "Fuses", "Scheme", "Server", "Session", "Traits"]


class Scheme(Protocol):
    """The server's side of a method."""

    @property
    def traits(self) -> Traits:
        """What the engine, the clock and the checks have to know."""

    def open(self, server: Server, clients: Sequence[int]) -> Session:
        """Begin a round with these clients, in their order."""


class Session(Protocol):
    """One round of a scheme."""

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        """One wave. A client of `wave` without smashed data is lost for this round; all of them may be."""

    def close(self) -> Closed:
        """End the round."""


@dataclass(frozen=True)
class Closed:
    """A server half for each client, or one for all; and what fronts weigh."""

    halves: Mapping[int, Vectors] | Vectors
    weights: Mapping[int, float] | None = None  # of the client halves in their mean; None: |D_j|


@runtime_checkable
class Fuses(Protocol):
    """A session that fuses the clients' own momenta."""

    def fuse(self, momenta: Sequence[Momentum]) -> list[Momentum]:
        """What each of them goes on with."""
