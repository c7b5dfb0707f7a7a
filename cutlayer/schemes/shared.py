"""One server half for all, trained on one client's batch after another (SFLV2, Thapa et al. 2022; docs/algorithms.md).

A client that is lost mid-round leaves the steps it took in the server half; its front is not averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from cutlayer.errors import expect
from cutlayer.messages import CutGrad, Smashed
from cutlayer.optim import step
from cutlayer.schemes.seam import Carry, Closed, Kept, Server
from cutlayer.waves import Order, Wave


@dataclass(frozen=True)
class SFLV2:
    """SplitFed version 2: a single server model, clients in a new random turn every round.

    `order` "client": a client takes all its steps, then the next; "step": at each step, one client after another.
    `reset`: when the server optimizer's memory is emptied; the papers and the reference code do it every step.
    """

    order: Literal["client", "step"] = "client"
    reset: Literal["step", "client", "round", "never"] = "step"
    carry: ClassVar[Carry] = "sync"

    def __post_init__(self) -> None:
        resets = ("step", "client", "round", "never")
        expect(self.order in ("client", "step"), "order", self.order, "'client' or 'step'")
        expect(self.reset in resets, "reset", self.reset, "'step', 'client', 'round' or 'never'")

    @property
    def wave_order(self) -> Order:
        return "one_by_one" if self.order == "client" else "together"

    @property
    def persists(self) -> bool:
        return self.reset == "never"

    def open(self, server: Server, clients: Sequence[int], kept: Kept) -> Shared:
        return Shared(server, clients, self.reset, kept)


class Shared:
    """One round of SFLV2."""

    def __init__(self, server: Server, clients: Sequence[int], reset: str, kept: Kept) -> None:
        self.server, self.reset = server, reset
        self.rows = server.surrogates(1)
        self.memory = server.memory(self.rows)
        if reset == "never" and kept:
            for i, moment in enumerate(self.memory.moments):
                moment[0] = kept[f"moment{i}"]
            self.memory.t[0] = int(kept["t"])
        turn = server.rng("turn").permutation(len(clients)) if server.shuffle else range(len(clients))
        self.turn = {clients[int(place)]: rank for rank, place in enumerate(turn)}
        self.previous: int | None = None

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        server, rows = self.server, self.rows
        replies = []
        for s in sorted(smashed, key=lambda s: self.turn[s.address.client]):
            if self.reset == "step" or (self.reset == "client" and s.address.client != self.previous):
                self.memory.reset(0)
            self.previous = s.address.client
            replies.append(server.backward(rows, 0, s))
            step(server.optimizer, self.memory, 0, rows.w[0], rows.g[0], server.eta)
        return replies

    def close(self) -> Closed:
        if self.reset != "never":
            return Closed(self.rows.row(0))
        kept = {f"moment{i}": moment[0].clone() for i, moment in enumerate(self.memory.moments)}
        return Closed(self.rows.row(0), {**kept, "t": torch.tensor(self.memory.t[0])})
