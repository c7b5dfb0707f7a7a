"""SMoFi: step-wise momentum fusion (Algorithm 1 of the paper; docs/algorithms.md).

    Ws_j    the surrogate of client j, a row of `rows.w`      g_j   its gradient, a row of `rows.g`
    m_bar   the fused momentum (Adam: both moments)           A     the clients in this wave
    H       clients that stepped before and are absent now    k_j   the last step of client j
    m       |A| + |H|: a client that never delivered a step is not counted

No momentum is stored per active client. Every buffer equals m_bar after a step, so m_j = beta*m_bar + g_j is
formed, applied and forgotten, and the sum over A of the m_j is beta*|A|*m_bar + sum of the g_j.
A client is known to have finished when a wave comes without it; its last m_j is then rebuilt from the m_bar
before the last fusion and its gradient row, which becomes its history row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cutlayer.errors import expect
from cutlayer.fusion import Fusion, Staleness
from cutlayer.local import joint
from cutlayer.messages import CutGrad, Momentum, Smashed
from cutlayer.optim import Moments, remember, runs
from cutlayer.schemes.seam import Carry, Closed, Kept, Server
from cutlayer.waves import Order, Wave


@dataclass(frozen=True)
class SMoFi:
    """Step-wise momentum fusion. The paper's method adds `update=FedAvgM(beta_g)`. Flags: see `Staleness`.

    Two options are ours and not the paper's. `adaptive`: see `Staleness`. `fuse_clients`: the clients' own momenta are
    fused at every step as well, by the same average; each then sends its momentum and gets the fused one back, which
    a simulator does not feel and a deployment pays for with twice the front's size a step.
    """

    alpha: float = -0.1
    stale_offset: int = 1
    hist_norm: Literal["count", "weights"] = "count"
    rebias_history: bool = False
    adaptive: bool = False
    fuse_clients: bool = False
    wave_order: ClassVar[Order] = "together"
    carry: ClassVar[Carry] = "sync"
    pairs: ClassVar[bool] = True
    flows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.staleness()
        expect(isinstance(self.fuse_clients, bool), "fuse_clients", self.fuse_clients, "true or false")

    def staleness(self) -> Staleness:
        return Staleness(self.alpha, self.stale_offset, self.hist_norm, self.rebias_history, self.adaptive)

    def open(self, server: Server, clients: Sequence[int], kept: Kept) -> Fused:
        return Fused(server, clients, self.staleness())


class Fused:
    """One round of SMoFi."""

    def __init__(self, server: Server, clients: Sequence[int], staleness: Staleness) -> None:
        self.server, self.staleness = server, staleness
        self.row = {j: r for r, j in enumerate(clients)}
        self.rows = server.surrogates(len(clients))  # line 1: Ws_j <- Ws
        self.memory = server.memory(["fused"])  # line 1: m_bar <- 0, unless the protocol carries it on
        self.m_bar = [m[0].clone() for m in self.memory.moments]
        self.before = [torch.zeros_like(m) for m in self.m_bar]  # m_bar before the last fusion
        self.t = self.memory.t[0]  # steps before this round
        self.clients = Fusion(staleness, server.client_optimizer)
        self.history: dict[int, list[Tensor]] = {}  # line 1: H <- {}
        self.last: dict[int, int] = {}  # k_j
        self.k = 0

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        server, rows = self.server, self.rows
        if not smashed:
            return []
        active = [s.address.client for s in smashed]
        asks = joint(server.local)  # then a step may be called off, and the gradient before it is wanted back
        last = {j: rows.g[self.row[j]].clone() for j in active if j in self.last} if asks else {}
        replies = server.backward(rows, self.row, smashed)  # lines 6, 7 and 10
        A = [reply.address.client for reply in server.agreed(replies)]
        for j in last.keys() - set(A):
            rows.g[self.row[j]] = last[j]
        if not A:
            return replies
        self._record(A)
        self.last |= dict.fromkeys(A, self.k)
        active = sorted(self.row[j] for j in A)
        server.workers.sweep(len(self.m_bar[0]), lambda at: self._update(active, at), len(active))
        self._fuse(self.before, len(A))  # line 15
        self.k += 1
        return replies

    def _update(self, active: Sequence[int], at: slice) -> None:
        """One part of the vectors: every active Ws_j steps (line 4), and its fresh gradient goes into the next m_bar,
        which grows in the buffer of the one before: beta*|A|*m_bar, then the gradients in their order."""
        rows, optimizer = self.rows, self.server.optimizer
        m_bar, total = [m[at] for m in self.m_bar], [m[at] for m in self.before]
        for new, old, beta in zip(total, m_bar, optimizer.betas, strict=True):
            torch.mul(old, beta * len(active), out=new)
        for some, _ in runs(active, [0] * len(rows)):
            w, g = rows.w[some, at], rows.g[some, at]
            self.server.regularise(g, w, at)
            m_j = [torch.empty_like(g) for _ in m_bar]
            remember(optimizer, m_j, m_bar, g)  # line 8, Eq. 4
            optimizer.apply(w, g, m_j, self.server.eta, self.t + self.k + 1)  # line 9, Eq. 3
            for g_j in g.unbind():
                optimizer.absorb(total, g_j)

    def fuse(self, momenta: Sequence[Momentum]) -> list[Momentum]:
        m_bar = self.clients({momentum.address.client: momentum.m for momentum in momenta})
        return [replace(momentum, m=tuple(m_bar)) for momentum in momenta]

    def close(self) -> Closed:
        self.memory.put(0, Moments(tuple(self.m_bar), self.t + self.k))
        return Closed({j: self.rows.row(r) for j, r in self.row.items()})

    def _record(self, active: Sequence[int]) -> None:
        """Lines 12 and 13: whoever stepped last time and is absent now has finished; keep its last momentum."""
        for j in self.last:
            if j not in active and j not in self.history:
                g_j = self.rows.g[self.row[j]]
                m_j = [before * beta for before, beta in zip(self.before, self.server.optimizer.betas, strict=True)]
                self.server.optimizer.absorb(m_j, g_j)
                self.history[j] = [g_j.copy_(m_j[0]), *m_j[1:]]

    def _fuse(self, total: list[Tensor], active: int) -> None:
        """m_bar <- ( sum_A m_j + sum_H s_j m_j ) / m, Eq. 5 and 6."""
        k, corrected = self.k, self.server.optimizer.corrected
        s = {j: self.staleness.faded(k, self.last[j], self.history[j], total) for j in sorted(self.history)}
        m = self.staleness.total(active, list(s.values()))
        for i, beta in enumerate(self.server.optimizer.betas):
            for j, s_j in s.items():
                rebias = self.staleness.rebias(beta, self.t + k, self.t + self.last[j]) if corrected else 1.0
                total[i].add_(self.history[j][i], alpha=s_j * rebias)
            total[i].div_(m)
        self.before, self.m_bar = self.m_bar, total
