"""The seam every scheme is written against: what it may use, and the three calls it answers.

A scheme is a frozen dataclass of hyper-parameters. `open` gives the state of one round; `step` turns the smashed
data of a wave into gradients at the cut; `close` hands back the server halves and what is kept for later rounds.
It does not know where clients live, samples nothing, logs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from cutlayer.flat import Half, Rows, Vectors
from cutlayer.messages import CutGrad, Smashed
from cutlayer.optim import Memory, Optimizer
from cutlayer.rng import EVERYBODY, rng, seed_forward
from cutlayer.waves import Order, Wave

Loss = Callable[[Tensor, Tensor], Tensor]
Kept = dict[str, Tensor]
Carry = Literal["sync", "keep", "relay"]


class Scheme(Protocol):
    """The server's side of a method."""

    @property
    def wave_order(self) -> Order:
        """In which waves clients step."""

    @property
    def carry(self) -> Carry:
        """What becomes of the client halves: averaged for all, kept by each, or passed on."""

    def open(self, server: Server, clients: Sequence[int], kept: Kept) -> Session:
        """Begin a round with these clients, in their turn, and with what the last round kept."""


class Session(Protocol):
    """One round of a scheme."""

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        """One wave. A client of `wave` without smashed data is lost for this round; all of them may be."""

    def close(self) -> Closed:
        """End the round."""


@dataclass(frozen=True)
class Closed:
    """A server half for each client, or one for all; and what the next round is opened with."""

    halves: Mapping[int, Vectors] | Vectors
    kept: Kept = field(default_factory=dict)


class Server:
    """What a scheme computes with. Its buffers are allocated once and used again every round."""

    def __init__(self, half: Half, optimizer: Optimizer, loss: Loss, seed: int, shuffle: bool) -> None:
        self.half, self.optimizer, self.loss, self.seed, self.shuffle = half, optimizer, loss, seed, shuffle
        self._rows: Rows | None = None
        self._memory: Memory | None = None

    def begin(self, round: int, start: Vectors, eta: float, samples: Mapping[int, int]) -> None:
        """A new round: W_s, the learning rate, and |D_j| of each client."""
        self.round, self.start, self.eta, self.samples = round, start, eta, samples

    def surrogates(self, n: int) -> Rows:
        """n copies of W_s (there may be more rows behind them, unused)."""
        if self._rows is None or len(self._rows) < n:
            self._rows = Rows(self.half, n)
        self._rows.fill(self.start, n)
        return self._rows

    def memory(self, rows: Rows) -> Memory:
        """Empty optimizer memory for those rows."""
        if self._memory is None or len(self._memory.t) < len(rows):
            self._memory = Memory(self.optimizer, rows.w)
        self._memory.reset()
        return self._memory

    def backward(self, rows: Rows, row: int, s: Smashed) -> CutGrad:
        """Server forward and backward on one client's batch: g_j into rows.g, dL/dA_j out, with the current W_s,j."""
        seed_forward(self.seed, s.address.round, s.address.client, s.address.step, "server")
        with torch.enable_grad():
            a = s.a.detach().to(self.half.device).requires_grad_()
            loss = self.loss(rows.forward(row, a.clone()), s.y)  # a clone: the first block may work in place
        rows.backward(row, loss)
        self.optimizer.regularise(rows.g[row], rows.w[row])
        return CutGrad(s.address, torch.zeros_like(a) if a.grad is None else a.grad, loss.detach())

    def rng(self, use: str) -> np.random.Generator:
        """Randomness of this round for a scheme that needs some."""
        return rng(self.seed, self.round, EVERYBODY, use)
