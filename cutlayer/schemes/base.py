"""The interface of a scheme: its three calls, and what they return.

A scheme is a frozen dataclass of hyper-parameters. `open` returns the session of one round; `step` turns the smashed
data of a wave into gradients at the cut; `close` returns the server halves and the weights of the fronts.
A scheme does not know where clients are, selects nobody and logs nothing. It computes with the `Server`.

Its `traits` say what the engine must know beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cutlayer.clients.messages import Adopt, CutGrad, Momentum, Smashed
from cutlayer.clients.waves import Wave
from cutlayer.nn.flat import Vectors
from cutlayer.schemes.server import Server
from cutlayer.schemes.traits import Traits

__all__ = ["Closed", "Fuses", "Scheme", "Server", "Session", "Traits"]


class Scheme(Protocol):
    """The server's side of a method."""

    @property
    def traits(self) -> Traits:
        """What the engine, the clock and the checks must know of it."""

    def open(self, server: Server, clients: Sequence[int]) -> Session:
        """Begin a round with these clients, in their order."""


class Session(Protocol):
    """One round of a scheme."""

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        """Take the step of one wave. A client without smashed data is lost for this round; `smashed` may be empty."""

    def close(self) -> Closed:
        """End the round."""


@dataclass(frozen=True)
class Closed:
    """The result of a session: a server half for each client, or one for all; and the weights of the fronts."""

    halves: Mapping[int, Vectors] | Vectors
    weights: Mapping[int, float] | None = None  # of the client halves in their mean; None: |D_j|


@runtime_checkable
class Fuses(Protocol):
    """A session that fuses the clients' own momenta."""

    def fuse(self, momenta: Sequence[Momentum]) -> list[Adopt]:
        """Return the momentum that each client continues with."""
