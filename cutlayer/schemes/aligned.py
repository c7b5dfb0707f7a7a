"""Aligned: SMoFi carried further. Ours, not the paper's (docs/algorithms.md, Aligned).

    kappa      m_bar begins a round at kappa times its last value             carried momentum
    fade       a finished client's momentum weighs fade^(k - k_j)             consistent fusion
    weights    n_j is 1, or |D_j|; q_j = n_j / sum_A n_i                      consistent fusion
    lam, gamma c_j <- gamma*c_j + (1 - gamma)*g_j; g_j - lam*(c_j - c_bar)    control variates within the round
    rho, ramp  W_j <- (1 - rho_k)*W_j + rho_k*sum_A q_i*W_i after a step      elastic fusion
    cycle      surrogates step on everybody's features, drawn anew; a         fusion and cycling
               client's gradient comes from its stepped surrogate, frozen

Each is off by default; without them this is SMoFi.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from cutlayer.clients.messages import CutGrad, Smashed
from cutlayer.clients.waves import Wave
from cutlayer.core.devices import onto
from cutlayer.errors import expect, is_number, is_whole
from cutlayer.nn.nested import parted, picked
from cutlayer.optim.fusion import Fusion, Staleness
from cutlayer.schemes.autograd import joined
from cutlayer.schemes.base import Server, Traits
from cutlayer.schemes.smofi import Fused, SMoFi
from cutlayer.simulation.clock import Timing


@dataclass(frozen=True)
class Aligned(SMoFi):
    """SMoFi with carried momentum, consistent weights, control variates, elastic surrogates or cycling.

    `kappa` None: what happens to m_bar between rounds is the protocol's choice. `fade` None: stale momentum fades as
    SMoFi's does. `ramp`: rho_k grows for so many steps, rho*min(1, (k + 1)/ramp); 0: it is rho at every step.
    """

    kappa: float | None = None
    fade: float | None = None
    weights: Literal["uniform", "samples"] = "uniform"
    lam: float = 0.0
    gamma: float = 0.9
    rho: float = 0.0
    ramp: int = 0
    cycle: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kappa", "lam", "gamma", "rho"):
            value = getattr(self, name)
            share = (name == "kappa" and value is None) or (is_number(value) and 0 <= value <= 1)
            expect(share, name, value, "a number from 0 to 1")
        expect(self.weights in ("uniform", "samples"), "weights", self.weights, "'uniform' or 'samples'")
        expect(is_whole(self.ramp) and self.ramp >= 0, "ramp", self.ramp, "a whole number, at least 0")
        expect(isinstance(self.cycle, bool), "cycle", self.cycle, "true or false")

    @property
    def traits(self) -> Traits:
        each = 1 if self.lam else 0  # c_j
        inherited = super().traits
        return replace(
            inherited,
            halves="central" if self.lam or self.rho or self.cycle else inherited.halves,
            own_gradient=not self.cycle,
            timing=Timing("cycled_side_by_side" if self.cycle else "step_barrier"),
            needs_labels="rows" if self.cycle else "no",
            persists=self.kappa is not None,
            copies=lambda m, o: (2 + each) * m + 3 * o + (o - 1) * m,
        )

    def staleness(self) -> Staleness:
        return replace(super().staleness(), fade=self.fade)

    def open(self, server: Server, clients: Sequence[int]) -> AlignedSurrogates:
        return AlignedSurrogates(server, clients, self)


class AlignedSurrogates(Fused):
    """One round. A step: gradients, control variates, the fused step, the elastic step, gradients at the cut."""

    def __init__(self, server: Server, clients: Sequence[int], scheme: Aligned) -> None:
        super().__init__(server, clients, scheme.staleness(), scheme.kappa)
        self.scheme, self.dealt = scheme, 0
        self.clients = Fusion(self.rule, server.client_optimizer, {j: self.n(j) for j in clients})
        self.c = torch.zeros_like(self.Ws.g[: len(clients)]) if scheme.lam else None

    def n(self, j: int) -> float:
        return float(self.server.samples[j]) if self.scheme.weights == "samples" else 1.0

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        if not self.scheme.cycle:
            return super().step(wave, smashed)
        if smashed:
            super().step(wave, self._dealt(smashed))
        at = [(s, self.row[s.address.client]) for s in smashed]
        return [reply for s, row in at for reply in self.server.input_gradients(self.Ws, row, [s])]

    def _dealt(self, smashed: Sequence[Smashed]) -> list[Smashed]:
        """Everybody's features and labels in a random order, dealt like cards: each client gets as many as it sent."""
        f, y = joined(smashed, self.Ws.half), torch.cat([s.y for s in smashed if s.y is not None])
        order = torch.arange(len(y))
        if self.server.shuffle:
            order = torch.from_numpy(self.server.rng(f"deal/{self.dealt}").permutation(len(y)))
            self.dealt += 1
        turns = sorted((turn, c) for c, s in enumerate(smashed) for turn in range(s.samples))
        whose, out = torch.tensor([c for _, c in turns]), []
        for c, s in enumerate(smashed):
            mine = onto(y.device, order[whose == c])
            a, more = parted(picked(f, mine))
            out.append(Smashed(s.address, a, y[mine], more))
        return out

    def _fuse(self, here: set[int], A: set[int]) -> None:
        k = self.momentum.k
        self._correct(sorted(A))
        super()._fuse(here, A)
        self._pull(sorted(A), k)

    def _correct(self, A: Sequence[int]) -> None:
        """c_j <- gamma*c_j + (1 - gamma)*g_j; g_j <- g_j - lam*(c_j - c_bar)."""
        if self.c is None:
            return
        lam, gamma, g, c = self.scheme.lam, self.scheme.gamma, self.Ws.g, self.c
        for row in (self.row[j] for j in A):
            c[row].mul_(gamma).add_(g[row], alpha=1 - gamma)
        c_bar = self._mean(c, A)
        for row in (self.row[j] for j in A):
            g[row].sub_(c[row] - c_bar, alpha=lam)

    def _pull(self, A: Sequence[int], k: int) -> None:
        """W_j <- (1 - rho_k)*W_j + rho_k*sum_A q_i*W_i."""
        rho, ramp = self.scheme.rho, self.scheme.ramp
        if not rho:
            return
        W_bar = self._mean(self.Ws.w, A)
        for row in (self.row[j] for j in A):
            self.Ws.w[row].lerp_(W_bar, rho * min(1.0, (k + 1) / ramp) if ramp else rho)

    def _mean(self, rows: torch.Tensor, A: Sequence[int]) -> torch.Tensor:
        """sum_A q_j*row_j."""
        active, mean = math.fsum(map(self.n, A)), torch.zeros_like(rows[0])
        for j in A:
            mean.add_(rows[self.row[j]], alpha=self.n(j) / active)
        return mean
