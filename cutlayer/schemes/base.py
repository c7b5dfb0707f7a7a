"""The seam every scheme is written against: the three calls it answers, and what it hands back.

A scheme is a frozen dataclass of hyper-parameters. `open` gives the state of one round; `step` turns the smashed
data of a wave into gradients at the cut; `close` hands back the server halves and what is kept for later rounds.
It does not know where clients live, samples nothing, logs nothing. What it computes with is the `Server`.

A scheme may say more of itself, and is asked for it only where it does:

    flows            True: clients get their own gradients as `Server.backward` gives them, so that in one process they
                     may flow straight on into the clients' halves (the step's messages are then made when wanted)
    spreads          True: its server halves belong to clients and live where they do, in any of the run's processes;
                     what it sums over clients, it sums through `server.team`
    separate         True: nothing passes between clients inside a round, so that it may be played in groups of them
    halves           (m, o) -> how many server halves it holds for m clients with o moments; not said: m(2 + o)
    pairs            True: every server gradient belongs to one client (FedNAR's joint norm needs that)
    shares_memory    True: each client has a server optimizer to the end of the round, so its memory can be averaged
    persists         True: the server's optimizer memory lives on, whatever the protocol
    trains_apart     True: the server trains by itself, on the features and labels of all clients
    merges           True: the rows of all clients of a wave go through the server half in one pass
    fuse_clients     True: `Session.fuse` gets the clients' own momenta after every step
    Regulates        a scheme that sets the clients' batch sizes, and may choose who takes part
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.clients.messages import CutGrad, Momentum, Smashed
from cutlayer.clients.waves import Order, Wave
from cutlayer.nn.flat import Vectors
from cutlayer.schemes.server import Server

Kept = Mapping[str, Tensor]
Carry = Literal["sync", "keep", "relay"]
Histogram = Callable[[int], NDArray[np.float64]]

__all__ = ["Carry", "Closed", "Fuses", "Histogram", "Kept", "Regulates", "Scheme", "Server", "Session"]


class Scheme(Protocol):
    """The server's side of a method."""

    @property
    def wave_order(self) -> Order:
        """In which waves clients step."""

    @property
    def carry(self) -> Carry:
        """What becomes of the client halves: averaged for all, kept by each, or passed on."""

    def open(self, server: Server, clients: Sequence[int], kept: Kept) -> Session:
        """Begin a round with these clients, in their turn, and with what the last round kept."""


class Session(Protocol):
    """One round of a scheme."""

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        """One wave. A client of `wave` without smashed data is lost for this round; all of them may be."""

    def close(self) -> Closed:
        """End the round."""


@dataclass(frozen=True)
class Closed:
    """A server half for each client, or one for all; what the next round is opened with; what fronts weigh."""

    halves: Mapping[int, Vectors] | Vectors
    kept: Kept = field(default_factory=dict)
    weights: Mapping[int, float] | None = None  # of the client halves in their mean; None: |D_j|


@runtime_checkable
class Fuses(Protocol):
    """A session that fuses the clients' own momenta."""

    def fuse(self, momenta: Sequence[Momentum]) -> list[Momentum]:
        """What each of them goes on with."""


@runtime_checkable
class Regulates(Protocol):
    """A scheme that sets batch sizes and chooses clients."""

    def batches(self, B: int, sizes: Mapping[int, int], cost: Mapping[int, float]) -> dict[int, int]:
        """d_j of each client, from |D_j| and u_j, its seconds per sample."""

    def choose(
        self, pool: Sequence[int], m: int, d: Mapping[int, int], turns: Mapping[int, int], histogram: Histogram
    ) -> list[int] | None:
        """m of the pool, or None: whoever was drawn. `turns`: the rounds each has taken part in."""

    def rate(self, eta: float, d: int, B: int) -> float:
        """The learning rate of a client with batch size d."""
