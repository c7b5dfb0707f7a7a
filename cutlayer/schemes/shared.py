"""One server half for all, trained on one client's batch after another (docs/algorithms.md).

SFLV2 (Thapa et al. 2022) averages the fronts at the end of the round. Sequential split learning (SSL, Gupta and
Raskar 2018; Vepakomma et al. 2018) passes one front on from client to client.
A client that is lost mid-round leaves the steps it took in the server half; its front is not averaged or passed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from cutlayer.clients.messages import CutGrad, Smashed
from cutlayer.clients.state import SERVER
from cutlayer.clients.waves import Wave
from cutlayer.errors import expect
from cutlayer.schemes.base import Closed, Server, Traits
from cutlayer.simulation.clock import Timing

Reset = Literal["auto", "step", "client", "round", "never"]


@dataclass(frozen=True)
class SFLV2:
    """SplitFed version 2: a single server model, clients in a new random order every round.

    `order` "client": a client takes all its steps, then the next; "step": at each step, one client after another.
    `reset`: when the server optimizer's memory is emptied; the poster of SMoFi and the reference code say every step,
    CycleSL never does. "auto": as the protocol's paper does.
    """

    order: Literal["client", "step"] = "client"
    reset: Reset = "auto"

    def __post_init__(self) -> None:
        resets = ("auto", "step", "client", "round", "never")
        expect(self.order in ("client", "step"), "order", self.order, "'client' or 'step'")
        expect(self.reset in resets, "reset", self.reset, "'auto', 'step', 'client', 'round' or 'never'")

    @property
    def traits(self) -> Traits:
        return Traits(
            order="one_by_one" if self.order == "client" else "together",
            carry="sync",
            halves="one",
            meets="step",
            own_gradient=True,
            timing=Timing("sequential"),  # in either order, there is one server half and one batch at a time
            persists=self.reset == "never",
        )

    def open(self, server: Server, clients: Sequence[int]) -> Shared:
        auto: Reset = "never" if server.persists else "step"
        return Shared(server, clients, auto if self.reset == "auto" else self.reset)


@dataclass(frozen=True)
class SSL:
    """Sequential split learning: one server model, and one front that is passed on from client to client."""

    traits: ClassVar[Traits] = Traits(
        order="one_by_one",
        carry="relay",
        halves="one",
        meets="step",
        own_gradient=True,
        timing=Timing("relay"),
    )

    def open(self, server: Server, clients: Sequence[int]) -> Shared:
        return Shared(server, clients, "never" if server.persists else "round")


class Shared:
    """One round with one server half."""

    def __init__(self, server: Server, clients: Sequence[int], reset: Reset) -> None:
        self.server, self.reset = server, reset
        self.rows = server.surrogates(1)
        self.memory = server.memory([SERVER], persists=reset == "never")
        self.rank = {clients[place]: rank for rank, place in enumerate(server.permutation(len(clients)))}
        self.previous: int | None = None

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        server, rows = self.server, self.rows
        replies: list[CutGrad] = []
        for s in sorted(smashed, key=lambda s: self.rank[s.address.client]):
            if self.reset == "step" or (self.reset == "client" and s.address.client != self.previous):
                self.memory.reset(0)
            self.previous = s.address.client
            reply = server.backward(rows, {s.address.client: 0}, [s])
            replies += reply
            if reply and server.agreed(reply):
                server.step(rows, self.memory, [0])
        return replies

    def close(self) -> Closed:
        return Closed(self.rows.row(0))
