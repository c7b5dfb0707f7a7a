"""The global update after a round: (W, W_bar, state) -> W. Parameters only; buffers are always averaged.

W      the weights before the round        W_bar  the weighted mean of the clients' weights after it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cutlayer.errors import expect, is_number

State = dict[str, Tensor]


class Update(Protocol):
    """What happens to the mean of the halves."""

    def __call__(self, W: Tensor, W_bar: Tensor, state: State) -> Tensor:
        """The new weights; `state` is the update's own, kept between rounds and checkpointed."""


@dataclass(frozen=True)
class FedAvg:
    """Plain weighted averaging: W <- W_bar (McMahan et al. 2017)."""

    def __call__(self, W: Tensor, W_bar: Tensor, state: State) -> Tensor:
        return W_bar


@dataclass(frozen=True)
class FedAvgM:
    """Momentum on the global update (Hsu et al. 2019): m <- beta*m + (W - W_bar); W <- W - m.

    SMoFi's own global step is the same (its Algorithm 2, lines 20 and 21).
    """

    beta: float = 0.3

    def __post_init__(self) -> None:
        ok = is_number(self.beta) and 0 <= self.beta < 1
        expect(ok, "beta", self.beta, "a number in [0, 1)")

    def __call__(self, W: Tensor, W_bar: Tensor, state: State) -> Tensor:
        m = state.get("m", torch.zeros_like(W))
        state["m"] = self.beta * m + (W - W_bar)  # line 20
        return W - state["m"]  # line 21
