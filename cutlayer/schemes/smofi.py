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
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cutlayer.fusion import Staleness
from cutlayer.messages import CutGrad, Smashed
from cutlayer.schemes.seam import Carry, Closed, Kept, Server
from cutlayer.waves import Order, Wave


@dataclass(frozen=True)
class SMoFi:
    """Step-wise momentum fusion. The paper's method adds `update=FedAvgM(beta_g)`. Flags: see `Staleness`."""

    alpha: float = -0.1
    stale_offset: int = 1
    hist_norm: Literal["count", "weights"] = "count"
    rebias_history: bool = False
    wave_order: ClassVar[Order] = "together"
    carry: ClassVar[Carry] = "sync"

    def __post_init__(self) -> None:
        self.staleness()

    def staleness(self) -> Staleness:
        return Staleness(self.alpha, self.stale_offset, self.hist_norm, self.rebias_history)

    def open(self, server: Server, clients: Sequence[int], kept: Kept) -> Fused:
        return Fused(server, clients, self.staleness())


class Fused:
    """One round of SMoFi."""

    def __init__(self, server: Server, clients: Sequence[int], staleness: Staleness) -> None:
        self.server, self.staleness = server, staleness
        self.row = {j: r for r, j in enumerate(clients)}
        self.rows = server.surrogates(len(clients))  # line 1: Ws_j <- Ws
        zero = torch.zeros_like(server.start.w)
        self.m_bar = [zero.clone() for _ in server.optimizer.betas]  # line 1: m_bar <- 0
        self.before = [zero.clone() for _ in server.optimizer.betas]  # m_bar before the last fusion
        self.m_j = [zero.clone() for _ in server.optimizer.betas]  # scratch
        self.history: dict[int, list[Tensor]] = {}  # line 1: H <- {}
        self.last: dict[int, int] = {}  # k_j
        self.k = 0

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        server, rows, optimizer = self.server, self.rows, self.server.optimizer
        A = [s.address.client for s in smashed]
        if not A:
            return []
        self._record(A)
        # The next m_bar grows in the buffer of the one before: first beta*|A|*m_bar, then each fresh gradient.
        total = self.before
        for new, old, beta in zip(total, self.m_bar, optimizer.betas, strict=True):
            torch.mul(old, beta * len(A), out=new)
        replies = []
        for j, s in zip(A, smashed, strict=True):  # line 4
            r = self.row[j]
            w_j, g_j = rows.w[r], rows.g[r]
            replies.append(server.backward(rows, r, s))  # lines 6, 7 and 10
            for m, old, beta in zip(self.m_j, self.m_bar, optimizer.betas, strict=True):
                torch.mul(old, beta, out=m)
            optimizer.absorb(self.m_j, g_j)  # line 8, Eq. 4
            optimizer.apply(w_j, g_j, self.m_j, server.eta, self.k + 1)  # line 9, Eq. 3
            optimizer.absorb(total, g_j)
            self.last[j] = self.k
        self._fuse(total, len(A))  # line 15
        self.k += 1
        return replies

    def close(self) -> Closed:
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
        s = {j: self.staleness.weight(k, self.last[j]) for j in sorted(self.history)}
        m = self.staleness.total(active, list(s.values()))
        for i, beta in enumerate(self.server.optimizer.betas):
            for j, s_j in s.items():
                rebias = self.staleness.rebias(beta, k, self.last[j]) if corrected else 1.0
                total[i].add_(self.history[j][i], alpha=s_j * rebias)
            total[i].div_(m)
        self.before, self.m_bar = self.m_bar, total
