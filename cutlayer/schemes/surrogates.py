"""Parallel surrogates: one copy of the server half per client (SFLV1, Thapa et al. 2022; docs/algorithms.md).

Ws_j   the surrogate of client j          p_j  |D_j| / sum |D_i| over those averaged
every  how often the surrogates are replaced by their mean, their optimizers starting afresh
       "round": never inside a round, which is FedAvg (McMahan et al. 2017) whatever the cut
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from cutlayer.errors import expect
from cutlayer.flat import mean
from cutlayer.messages import CutGrad, Smashed
from cutlayer.optim import step
from cutlayer.schemes.seam import Carry, Closed, Kept, Server
from cutlayer.waves import Order, Wave


@dataclass(frozen=True)
class SFLV1:
    """SplitFed version 1: surrogates in parallel, averaged every step, epoch or round."""

    every: Literal["step", "epoch", "round"] = "epoch"
    carry: ClassVar[Carry] = "sync"

    def __post_init__(self) -> None:
        expect(self.every in ("step", "epoch", "round"), "every", self.every, "'step', 'epoch' or 'round'")

    @property
    def wave_order(self) -> Order:
        return "by_epoch" if self.every == "epoch" else "together"

    def open(self, server: Server, clients: Sequence[int], kept: Kept) -> Surrogates:
        return Surrogates(server, clients, self.every)


class Surrogates:
    """One round of SFLV1."""

    def __init__(self, server: Server, clients: Sequence[int], every: str) -> None:
        self.server, self.every = server, every
        self.row = {j: r for r, j in enumerate(clients)}
        self.rows = server.surrogates(len(clients))
        self.memory = server.memory(self.rows)
        self.lost: set[int] = set()
        self.epoch = 0

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        server, rows = self.server, self.rows
        arrived = [s.address.client for s in smashed]
        if self.every == "epoch" and wave.epoch > self.epoch:  # the barrier between epochs
            self._average([j for j in self.row if j not in self.lost])
            self.epoch = wave.epoch
        self.lost |= set(wave.clients) - set(arrived)
        replies = []
        for s in smashed:
            r = self.row[s.address.client]
            replies.append(server.backward(rows, r, s))
            step(server.optimizer, self.memory, r, rows.w[r], rows.g[r], server.eta)
        if self.every == "step":
            self._average(arrived)  # over the clients active at this step
        return replies

    def close(self) -> Closed:
        return Closed({j: self.rows.row(r) for j, r in self.row.items()})

    def _average(self, clients: Sequence[int]) -> None:
        """Ws <- sum_j p_j Ws_j, into every surrogate; the server's momentum starts again from zero."""
        if not clients:
            return
        total = sum(self.server.samples[j] for j in clients)
        Ws = mean([self.rows.row(self.row[j]) for j in clients], [self.server.samples[j] / total for j in clients])
        self.rows.fill(Ws, len(self.row))
        self.memory.reset()
