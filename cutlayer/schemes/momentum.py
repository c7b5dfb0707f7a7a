"""The fused momentum of surrogates in flat rows: SMoFi's arithmetic, made fast and small.

No buffer is kept for the momentum of an active client, since after a step all of them equal m_bar. How a step continues
from m_bar depends on the optimizer:

    InRows   one moment: m_j overwrites g_j in its row. The sum reads it there, and after a client has finished it
             stays there as the client's history
    Linear   several moments (Adam): m_j is formed, applied and discarded. beta*|A|*m_bar plus the fresh parts of the
             g_j is the sum of the m_j; a finished client's m_j is recomputed from its g_j and the m_bar before its step

The sum over clients is taken in parts that fit the cache, and over all processes of the run, which may go on computing
until they need it. It is divided part by part, when it is next read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from cutlayer.clients.state import FUSED
from cutlayer.core.group import Wait
from cutlayer.errors import ContractError
from cutlayer.nn.flat import Rows
from cutlayer.optim.fusion import Staleness, Weight, cosine
from cutlayer.optim.memory import Moments, runs
from cutlayer.optim.optimizer import LinearMoments, OneMoment, OnePass, Optimizer
from cutlayer.schemes.server import Server

ALL = slice(None)
Take = Callable[[Tensor, Tensor], None]
"""Takes a step of rows (w, g)."""


class FusedMomentum:
    """m_bar and the momenta it is made of, for one round. `k` counts the fusions."""

    def __init__(self, server: Server, rows: Rows, rule: Staleness, kappa: float | None = None) -> None:
        """`kappa`: m_bar begins at so many times its value at the end of the last round (None: as the protocol says)"""
        self.server, self.rows, self.rule, self.k = server, rows, rule, 0
        self.kind = _kind(server.optimizer)
        self.memory = server.memory([FUSED], persists=None if kappa is None else True)
        self.m_bar = [m[0].clone() if kappa is None else kappa * m[0] for m in self.memory.moments]
        self.before = [torch.zeros_like(m) for m in self.m_bar]  # m_bar before the last fusion; holds the next sum
        self.t = self.memory.t[0]  # steps before this round
        self.history: dict[int, tuple[int, list[Tensor]]] = {}  # finished client -> its last step, and m_j
        self._under_way: tuple[Wait, Weight] | None = None
        self._owed: Weight = 1.0  # the divisor that m_bar has not been divided by yet

    def record(self, finished: Mapping[int, int], row: Mapping[int, int]) -> None:
        """Keep the last momentum of clients that have finished; `finished` gives their last steps."""
        self._settle()
        for j, k_j in finished.items():
            if j not in self.history:
                self.history[j] = k_j, self.kind.last(self.rows.g[row[j]], self.before)

    def groups(self, which: Iterable[int]) -> dict[int, slice]:
        """Group these rows, by the first of each group: a group that has stepped is still in the cache when it is added
        to the sum."""
        together = self.server.workers.rows(self.rows.w.shape[1])
        return {some.start: some for some, _ in runs(sorted(which), [0] * len(self.rows), together)}

    def advance(self, at: slice) -> Callable[[slice], None]:
        """Return a function that takes the step of some rows from m_bar, on one part of them."""
        w, g, t = self.rows.w, self.rows.g, self.t + self.k + 1
        whole = self.server.regularised  # g is h already
        step = self.kind.step([m[at] for m in self.m_bar], self.server.eta, t, decays=not whole)

        def take(some: slice) -> None:
            if not whole:
                self.server.pull(g[some, at], w[some, at], at)
            step(w[some, at], g[some, at])

        return take

    def add(self, at: slice, row: int, n_j: float) -> None:
        """Add n_j times a fresh momentum to one part of the sum."""
        self.kind.add([m[at] for m in self.before], self.rows.g[row, at], n_j)

    def add_stale(self, at: slice, j: int, s_j: Weight) -> None:
        """Add s_j*m_j of a finished client to one part of the sum."""
        k_j, m_j = self.history[j]
        for i, (total, moment) in enumerate(zip(self.before, m_j, strict=True)):
            rebias = self.rule.rebias(self.kind.corrected[i], self.t + self.k, self.t + k_j)
            if isinstance(s_j, Tensor):
                total[at].add_(moment[at] * (s_j * rebias))
            else:
                total[at].add_(moment[at], alpha=s_j * rebias)

    def add_by_cosine(self, finished: Mapping[int, float]) -> list[Weight]:
        """Add the momenta of finished clients, weighted by what they count and by cosine with the fresh sum; return the
        weights."""
        s = {j: n_j * self.rule.faded(self.k, *self.history[j], self.before) for j, n_j in finished.items()}
        for j, s_j in s.items():
            self.add_stale(ALL, j, s_j)
        return list(s.values())

    def sum(self, part: Callable[[slice], None], n: float) -> None:
        """Add up the active clients of all processes, which count n together; `part` adds this process's share to one
        part of the sum."""

        def visit(at: slice, first: bool) -> None:
            self._divide(at)
            if first:
                self.kind.begin([m[at] for m in self.before], [m[at] for m in self.m_bar], n)
            part(at)

        wait = self.server.processes.add_up(self.before, visit, self.server.workers)
        self._owed, self._under_way = 1.0, (wait, 1.0)

    def divide(self, m: Weight) -> None:
        """m_bar <- sum / m."""
        assert self._under_way is not None, "there is no sum to divide"
        self._under_way = self._under_way[0], m
        self.k += 1

    def cosine(self, row: int) -> Weight:
        """The cosine between the momentum of a row that has just stepped and the fused one."""
        self._settle()
        m_j = self.kind.last(self.rows.g[row].clone(), self.before)[0]
        return cosine(m_j, self.m_bar[0])  # m_bar may still have to be divided, which does not turn it

    def close(self) -> None:
        """Write m_bar into the server's memory, which may live on after the round."""
        self._settle()
        self.server.workers.sweep(len(self.m_bar[0]), self._divide)
        self.memory.put(0, Moments(tuple(self.m_bar), self.t + self.k))

    def _settle(self) -> None:
        """Wait for the sum that is under way, and make it the new m_bar."""
        if self._under_way is not None:
            wait, self._owed = self._under_way
            wait()
            self.before, self.m_bar, self._under_way = self.m_bar, self.before, None

    def _divide(self, at: slice) -> None:
        for moment in self.m_bar if isinstance(self._owed, Tensor) or self._owed != 1 else ():
            moment[at].div_(self._owed)


class Kind(Protocol):
    """How the momenta of an optimizer are formed, added up and kept."""

    @property
    def corrected(self) -> Sequence[float]:
        """For each moment the beta of its bias correction; 0: it has none."""

    def step(self, m_bar: Sequence[Tensor], eta: float, t: int, decays: bool) -> Take:
        """Return a function that takes step t of rows (w, g), from m_bar. `decays`: with weight decay."""

    def begin(self, total: Sequence[Tensor], m_bar: Sequence[Tensor], n: float) -> None:
        """Begin the sum of momenta that count n together."""

    def add(self, total: Sequence[Tensor], g: Tensor, n_j: float) -> None:
        """Add n_j times one momentum, given its gradient row."""

    def last(self, g: Tensor, before: Sequence[Tensor]) -> list[Tensor]:
        """m_j of a finished client, given its gradient row and the m_bar before its last step."""


class InRows:
    """For optimizers with one moment."""

    corrected = (0.0,)

    def __init__(self, optimizer: OneMoment) -> None:
        self.optimizer = optimizer
        self.with_decay = self._with_decay
        if isinstance(optimizer, OnePass) and "fused_with_decay" in vars(type(optimizer)):
            self.with_decay = optimizer.fused_with_decay

    def step(self, m_bar: Sequence[Tensor], eta: float, t: int, decays: bool) -> Take:
        past, step = self.optimizer.past(m_bar[0]), self.with_decay if decays else self.optimizer.fused
        return lambda w, g: step(w, g, past, eta, t)

    def _with_decay(self, w: Tensor, g: Tensor, past: Tensor, eta: float, t: int) -> None:
        self.optimizer.regularise(g, w)
        self.optimizer.fused(w, g, past, eta, t)

    def begin(self, total: Sequence[Tensor], m_bar: Sequence[Tensor], n: float) -> None:
        total[0].zero_()

    def add(self, total: Sequence[Tensor], g: Tensor, n_j: float) -> None:
        total[0].add_(g, alpha=n_j)

    def last(self, g: Tensor, before: Sequence[Tensor]) -> list[Tensor]:
        return [g]


class Linear:
    """For optimizers with several moments, each beta*m + fresh(g)."""

    def __init__(self, optimizer: LinearMoments) -> None:
        self.optimizer, self.corrected = optimizer, optimizer.betas

    def step(self, m_bar: Sequence[Tensor], eta: float, t: int, decays: bool) -> Take:
        def take(w: Tensor, g: Tensor) -> None:
            if decays:
                self.optimizer.regularise(g, w)
            m_j = [m.expand_as(g).clone(memory_format=torch.contiguous_format) for m in m_bar]
            self.optimizer.update(w, g, m_j, eta, t)

        return take

    def begin(self, total: Sequence[Tensor], m_bar: Sequence[Tensor], n: float) -> None:
        for new, old, beta in zip(total, m_bar, self.optimizer.betas, strict=True):
            torch.mul(old, beta * n, out=new)

    def add(self, total: Sequence[Tensor], g: Tensor, n_j: float) -> None:
        if n_j == 1:
            return self.optimizer.accumulate(total, g)
        fresh = [torch.zeros_like(m) for m in total]
        self.optimizer.accumulate(fresh, g)
        for m, f in zip(total, fresh, strict=True):
            m.add_(f, alpha=n_j)

    def last(self, g: Tensor, before: Sequence[Tensor]) -> list[Tensor]:
        m_j = [m * beta for m, beta in zip(before, self.optimizer.betas, strict=True)]
        self.optimizer.accumulate(m_j, g)
        return [g.copy_(m_j[0]), *m_j[1:]]


def _kind(optimizer: Optimizer) -> Kind:
    if isinstance(optimizer, OneMoment):
        return InRows(optimizer)
    if isinstance(optimizer, LinearMoments):
        return Linear(optimizer)
    raise ContractError(
        f"optimizer = {optimizer}: its momentum cannot be fused; expected the methods `past` and `fused`, "
        "or `betas` and `accumulate`"
    )
