"""SMoFi: step-wise momentum fusion (Algorithm 1 of the paper; docs/algorithms.md).

    Ws_j    the surrogate of client j, a row of `Ws.w`     g_j   its gradient, a row of `Ws.g`
    m_bar   the fused momentum (Adam: both moments)        A     the clients in this wave
    H       clients that have finished                     k_j   the last step of client j
    s_j     the weight of a finished client's momentum     m     |A| + |H|: a client that never delivered a step is
    n_j     what a client counts: 1                              not counted

A client is known to have finished when a wave comes without it. `FusedMomentum` works on parts of the vectors that fit
the cache, and on the shares of all processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cutlayer.clients.messages import Adopt, CutGrad, Momentum, Smashed
from cutlayer.clients.waves import Wave
from cutlayer.errors import expect
from cutlayer.optim.fusion import Fusion, Staleness
from cutlayer.schemes.base import Closed, Server, Traits
from cutlayer.schemes.momentum import FusedMomentum
from cutlayer.simulation.clock import Timing


@dataclass(frozen=True)
class SMoFi:
    """Step-wise momentum fusion. The paper's method adds `update=FedAvgM(beta_g)`. Flags: see `Staleness`.

    Two options are ours and not the paper's. `adaptive`: see `Staleness`. `fuse_clients`: the clients' own momenta are
    fused at every step as well, by the same average. Each client then sends its momentum and gets the fused one back:
    in a deployment, twice the front's size at every step.
    """

    alpha: float = -0.1
    stale_offset: int = 1
    hist_norm: Literal["count", "weights"] = "count"
    rebias_history: bool = False
    adaptive: bool = False
    fuse_clients: bool = False

    def __post_init__(self) -> None:
        self.staleness()
        expect(isinstance(self.fuse_clients, bool), "fuse_clients", self.fuse_clients, "true or false")

    @property
    def traits(self) -> Traits:
        return Traits(
            order="together",
            carry="sync",
            halves="central" if self.adaptive or self.fuse_clients else "spread",
            meets="step",
            own_gradient=True,
            timing=Timing("step_barrier"),
            fuses_clients=self.fuse_clients,
            common_steps=self.fuse_clients and self.rebias_history,
            copies=lambda m, o: 2 * m + 3 * o + (o - 1) * m,
        )

    def staleness(self) -> Staleness:
        return Staleness(self.alpha, self.stale_offset, self.hist_norm, self.rebias_history, self.adaptive)

    def open(self, server: Server, clients: Sequence[int]) -> Fused:
        return Fused(server, clients, self.staleness())


class Fused:
    """One round of SMoFi. Numbers in the margin are the lines of Algorithm 1."""

    def __init__(self, server: Server, clients: Sequence[int], rule: Staleness, kappa: float | None = None) -> None:
        self.server, self.rule = server, rule
        self.row = {j: r for r, j in enumerate(clients)}
        self.Ws = server.surrogates(len(clients), history=True)  # 1: Ws_j <- Ws
        self.momentum = FusedMomentum(server, self.Ws, rule, kappa)  # 1: m_bar <- 0, unless the protocol keeps it
        self.last: dict[int, int] = {}  # 1: H <- {}; k_j of every client that has stepped
        self.clients = Fusion(rule, server.client_optimizer)

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        replies = self.server.backward(self.Ws, self.row, smashed)  # 6, 7: g_j into its row
        A = {reply.address.client for reply in self.server.agreed(replies)}
        if A or wave.on_other_ranks:
            self._fuse(A, A.union(wave.on_other_ranks))
        return replies  # 10

    def n(self, j: int) -> float:
        """What client j counts in the average."""
        return 1.0

    def _fuse(self, here: set[int], A: set[int]) -> None:
        """Step the active clients of this process, and fuse the momenta of all."""
        momentum, rule, k, n = self.momentum, self.rule, self.momentum.k, self.n
        momentum.record({j: self.last[j] for j in self.row if j in self.last and j not in A}, self.row)  # 12, 13
        self.last |= dict.fromkeys(A, k)
        H = sorted(self.last.keys() - A)
        s = {} if rule.adaptive else {j: n(j) * rule.weight(k, self.last[j]) for j in H}  # Eq. 6

        groups = momentum.groups(self.row[j] for j in here)

        def part(at: slice) -> None:
            advance = momentum.advance(at)
            for j, row in self.row.items():  # the order of the sum fixes the bits
                if row in groups:
                    advance(groups[row])  # 8, 9: Eq. 4 and Eq. 3
                if j in here:
                    momentum.add(at, row, n(j))
                elif j in s:
                    momentum.add_stale(at, j, s[j])

        active = math.fsum(map(n, A))
        momentum.sum(part, active)
        weights = momentum.add_by_cosine({j: n(j) for j in H}) if rule.adaptive else [*s.values()]
        momentum.divide(rule.total(active, weights, [n(j) for j in H]))  # 15: Eq. 5
        for j in here if self.server.watched else ():
            self.server.note("cosine", j, momentum.cosine(self.row[j]))

    def fuse(self, momenta: Sequence[Momentum]) -> list[Adopt]:
        m_bar = self.clients({momentum.address.client: momentum.m for momentum in momenta})
        return [Adopt(momentum.address, tuple(m_bar)) for momentum in momenta]

    def close(self) -> Closed:
        self.momentum.close()
        return Closed({j: self.Ws.row(r) for j, r in self.row.items()})
