"""SMoFi: step-wise momentum fusion (Algorithm 1 of the paper; docs/algorithms.md).

    Ws_j    the surrogate of client j, a row of `rows.w`      g_j   its gradient, a row of `rows.g`
    m_bar   the fused momentum (Adam: both moments)           A     the clients in this wave
    H       clients that stepped before and are absent now    k_j   the last step of client j
    m       |A| + |H|: a client that never delivered a step is not counted

No buffer is kept for the momentum of an active client: after a step all of them equal m_bar. With SGD and NAG,
m_j = beta*m_bar + g_j takes the place of g_j in its row, is applied and added up; with two moments (Adam) it is formed
and forgotten, and beta*|A|*m_bar + sum of the g_j stands for the sum over A of the m_j.
A client is known to have finished when a wave comes without it. Its row then is its history: m_j, or what m_j is
rebuilt from, with the m_bar before the last fusion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from cutlayer.clients.messages import CutGrad, Momentum, Smashed
from cutlayer.clients.waves import Wave
from cutlayer.core.group import Wait
from cutlayer.errors import expect
from cutlayer.optim.fusion import Fusion, Staleness
from cutlayer.optim.local import joint
from cutlayer.optim.optimizers import NAG, SGD, Moments, remember, runs
from cutlayer.schemes.base import Closed, Server, Traits
from cutlayer.simulation.clock import Timing


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
        known = type(server.optimizer) in (SGD, NAG)  # theirs is the only momentum that a gradient row can hold
        self.renews = server.optimizer if known and isinstance(server.optimizer, SGD) else None
        self.history: dict[int, list[Tensor]] = {}  # line 1: H <- {}
        self.last: dict[int, int] = {}  # k_j
        self.k = 0
        self._under_way: tuple[Wait, list[Tensor], float] | None = None
        self.owed = 1.0  # what m_bar has still to be divided by

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        server, rows = self.server, self.rows
        asks = joint(server.local)  # then a step may be called off, and the gradient before it is wanted back
        active = [s.address.client for s in smashed]
        last = {j: rows.g[self.row[j]].clone() for j in active if j in self.last} if asks else {}
        replies = server.backward(rows, self.row, smashed)  # lines 6, 7 and 10
        A = [reply.address.client for reply in server.agreed(replies)]
        for j in last.keys() - set(A):
            rows.g[self.row[j]] = last[j]
        if A or wave.elsewhere:
            self._step(A, wave.elsewhere)
            self.k += 1
        return replies

    def _step(self, A: Sequence[int], elsewhere: Sequence[int]) -> None:
        """The active surrogates step, and the momenta are fused: those of clients in other processes too."""
        self._settle()
        self._record(A)
        everybody = {*A, *elsewhere}
        self.last |= dict.fromkeys(everybody, self.k)
        H = sorted(j for j in self.last if j not in everybody)
        active = sorted(self.row[j] for j in A)
        total, team = self.before, self.server.team  # the next m_bar grows in the buffer of the one before
        fading = {} if self.staleness.adaptive else {j: self.staleness.weight(self.k, self.last[j]) for j in H}
        n = len(everybody)
        wait = team.add_up(total, lambda at, first: self._update(active, fading, n, at, first), self.server.workers)
        self.owed = 1.0
        if self.staleness.adaptive:  # here a weight needs the fresh sum first
            fading = {j: self.staleness.faded(self.k, self.last[j], self.history[j], total) for j in H}
            for j in H:
                self._add_stale(j, fading[j], total, slice(None))
        self._under_way = wait, total, self.staleness.total(n, list(fading.values()))

    def _settle(self) -> None:
        """The last step's m_bar, which other processes may have been adding to all the while (line 15, Eq. 5). It is
        divided by m where it is next used, part by part."""
        if self._under_way is not None:
            wait, total, self.owed = self._under_way
            wait()
            self.before, self.m_bar, self._under_way = self.m_bar, total, None

    def _divide(self, at: slice) -> None:
        for moment in self.m_bar if self.owed != 1 else ():
            moment[at].div_(self.owed)

    def _update(self, active: Sequence[int], fading: Mapping[int, float], n: int, at: slice, first: bool) -> None:
        """One part of the vectors: every active Ws_j steps, and the sum for the next m_bar goes on with what is here,
        row by row: a fresh momentum (or, where it is not stored, the gradient it is made of), or a stale one."""
        self._divide(at)
        rows, optimizer = self.rows, self.server.optimizer
        m_bar, total = [m[at] for m in self.m_bar], [m[at] for m in self.before]
        past = m_bar[0] * optimizer.betas[0] if self.renews else m_bar[0]
        if first:
            for new, old, beta in zip(total, m_bar, optimizer.betas, strict=True):
                new.zero_() if self.renews else torch.mul(old, beta * n, out=new)
        for some, _ in runs(active, [0] * len(rows)):
            w, g = rows.w[some, at], rows.g[some, at]
            self.server.regularise(g, w, at)
            if self.renews:
                self.renews.renew(w, g, past, self.server.eta)  # lines 8 and 9: m_j is now where g_j was
            else:
                m_j = [torch.empty_like(g) for _ in m_bar]
                remember(optimizer, m_j, m_bar, g)  # line 8, Eq. 4
                optimizer.apply(w, g, m_j, self.server.eta, self.t + self.k + 1)  # line 9, Eq. 3
        stepped = set(active)
        for j, r in self.row.items():
            if r in stepped:
                total[0].add_(rows.g[r, at]) if self.renews else optimizer.absorb(total, rows.g[r, at])
            elif j in fading:
                self._add_stale(j, fading[j], total, at)

    def _add_stale(self, j: int, s_j: float, total: Sequence[Tensor], at: slice) -> None:
        """s_j*m_j of a finished client, Eq. 6."""
        optimizer = self.server.optimizer
        for i, beta in enumerate(optimizer.betas):
            now, then = self.t + self.k, self.t + self.last[j]
            rebias = self.staleness.rebias(beta, now, then) if optimizer.corrected else 1.0
            total[i].add_(self.history[j][i][at], alpha=s_j * rebias)

    def fuse(self, momenta: Sequence[Momentum]) -> list[Momentum]:
        m_bar = self.clients({momentum.address.client: momentum.m for momentum in momenta})
        return [replace(momentum, m=tuple(m_bar)) for momentum in momenta]

    def close(self) -> Closed:
        self._settle()
        self.server.workers.sweep(len(self.m_bar[0]), self._divide)
        self.memory.put(0, Moments(tuple(self.m_bar), self.t + self.k))
        return Closed({j: self.rows.row(r) for j, r in self.row.items()})

    def _record(self, active: Sequence[int]) -> None:
        """Lines 12 and 13: whoever stepped last time and is absent now has finished; keep its last momentum."""
        for j in self.last:
            if j in self.row and j not in active and j not in self.history:
                g_j = self.rows.g[self.row[j]]
                if self.renews:
                    self.history[j] = [g_j]  # it is m_j
                else:
                    m_j = [before * beta for before, beta in zip(self.before, self.server.optimizer.betas, strict=True)]
                    self.server.optimizer.absorb(m_j, g_j)
                    self.history[j] = [g_j.copy_(m_j[0]), *m_j[1:]]
