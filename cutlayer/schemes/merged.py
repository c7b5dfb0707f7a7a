"""One server half, one step on all clients' rows at once (MergeSFL, Liao et al. 2024; docs/algorithms.md).

u_j   seconds that a sample costs client j, computing and sending      d_j   its batch size
d_j   ~ 1/u_j, scaled so that the merged batch has m*B rows: fast clients bring more, and all finish a step together
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cutlayer.clients.messages import Address, CutGrad, Smashed
from cutlayer.clients.state import SERVER
from cutlayer.clients.waves import Wave
from cutlayer.core.randomness import EVERYBODY
from cutlayer.errors import expect
from cutlayer.schemes.base import Closed, Server, Traits
from cutlayer.schemes.traits import Histogram
from cutlayer.simulation.clock import Timing

SMOOTH = 1e-8


@dataclass(frozen=True)
class MergeSFL:
    """Merged batches, with sizes set by each device's speed (`profile`; without one, all devices are alike).

    `select` "random": the clients drawn for the round; "kl_greedy": of twice as many, those whose merged labels are
    nearest to the labels of all clients (so the server learns each client's label counts).
    `front_weights`: fronts are averaged by "batch" size d_j or "uniform"; `scale_lr`: a client's rate is eta*d_j/B.
    """

    select: Literal["random", "kl_greedy"] = "random"
    front_weights: Literal["batch", "uniform"] = "batch"
    scale_lr: bool = False

    def __post_init__(self) -> None:
        expect(self.select in ("random", "kl_greedy"), "select", self.select, "'random' or 'kl_greedy'")
        expect(self.front_weights in ("batch", "uniform"), "front_weights", self.front_weights, "'batch' or 'uniform'")
        expect(isinstance(self.scale_lr, bool), "scale_lr", self.scale_lr, "true or false")

    @property
    def traits(self) -> Traits:
        return Traits(
            order="together",
            carry="sync",
            halves="one",
            meets="batch",
            own_gradient=False,
            timing=Timing("merged"),
            needs_labels="no" if self.select == "random" else "counts",
            regulator=self,
        )

    def open(self, server: Server, clients: Sequence[int]) -> Merged:
        return Merged(server, clients, self.front_weights)

    def batches(self, B: int, sizes: Mapping[int, int], cost: Mapping[int, float]) -> dict[int, int]:
        """d_j = m*B * (1/u_j) / sum_i (1/u_i), kept between max(2, B/8) and min(4B, |D_j|)."""
        speed = {j: 1 / cost[j] for j in sizes}
        budget, total = B * len(sizes), math.fsum(speed.values())
        least = max(2, B // 8)
        return {j: max(1, min(max(round(budget * speed[j] / total), least), 4 * B, size)) for j, size in sizes.items()}

    def choose(
        self, pool: Sequence[int], m: int, d: Mapping[int, int], participations: Mapping[int, int], histogram: Histogram
    ) -> list[int]:
        """Add the client that makes KL(Phi || Phi_0) lowest, until there are m; on a tie, the one with the fewest
        participations."""
        Phi_0 = histogram(EVERYBODY)
        merged: NDArray[np.float64] = 0 * Phi_0
        chosen: list[int] = []
        rest = sorted((j for j in pool if histogram(j).any()), key=lambda j: (participations.get(j, 0), j))
        for _ in range(min(m, len(rest))):
            sums = {j: merged + d[j] * histogram(j) for j in rest}
            best = min(rest, key=lambda j: _divergence(sums[j] / sums[j].sum(), Phi_0))
            merged = sums[best]
            chosen.append(best)
            rest.remove(best)
        return sorted(chosen)

    def rate(self, eta: float, d: int, B: int) -> float:
        return eta * d / B if self.scale_lr else eta


class Merged:
    """One round of MergeSFL."""

    def __init__(self, server: Server, clients: Sequence[int], front_weights: str) -> None:
        self.server, self.k = server, 0
        self.weights = {j: float(server.batch[j]) if front_weights == "batch" else 1.0 for j in clients}
        self.rows = server.surrogates(1)
        self.memory = server.memory([SERVER])

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        if not smashed:
            return []
        server, rows = self.server, self.rows
        where = Address(server.round, EVERYBODY, self.k)
        replies = server.merged(rows, 0, where, smashed)  # mean loss over the merged batch, pre-update weights
        if replies:
            server.step(rows, self.memory, [0])
            self.k += 1
        return replies

    def close(self) -> Closed:
        return Closed(self.rows.row(0), weights=self.weights)


def _divergence(Phi: NDArray[np.float64], Phi_0: NDArray[np.float64]) -> float:
    """KL(Phi || Phi_0), smoothed."""
    return float((Phi * np.log((Phi + SMOOTH) / (Phi_0 + SMOOTH))).sum())
