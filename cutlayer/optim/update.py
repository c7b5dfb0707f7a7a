"""The global update after a round: (W, W_bar, state) -> W. Parameters only; buffers are always averaged.

W      the weights before the round        W_bar  the weighted mean of the clients' weights after it
eta    the learning rate of the round, a number or (where the two sides differ) one for each weight

`buffers` says what happens to the clients' optimizer memory. "reset": every client starts the next round with empty
memory; "average": every client starts the next round with the weighted mean. `in_units_of_eta`: the update uses eta, so
there must be one for the whole round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, get_args

import torch
from torch import Tensor

from cutlayer.errors import expect, is_number
from cutlayer.optim.optimizer import Optimizer
from cutlayer.optim.sgd import NAG, SGD

State = dict[str, Tensor]
Eta = float | Tensor
Buffers = Literal["reset", "average"]
Half = Literal["front", "back"]


class Update(Protocol):
    """Turns the averaged weights into the new ones. Attributes `buffers`, `weights`, `optimizer`, `in_units_of_eta`
    and `half` are optional."""

    def __call__(self, W: Tensor, W_bar: Tensor, state: State, eta: Eta) -> Tensor:
        """Return the new weights. `state` belongs to the update; it is kept between rounds and checkpointed."""


@dataclass(frozen=True)
class FedAvg:
    """Plain weighted averaging: W <- W_bar (McMahan et al. 2017)."""

    def __call__(self, W: Tensor, W_bar: Tensor, state: State, eta: Eta) -> Tensor:
        return W_bar


@dataclass(frozen=True)
class FedAvgM:
    """Momentum on the global update (Hsu et al. 2019): m <- beta*m + (W - W_bar); W <- W - m.

    SMoFi's own global step is the same (its Algorithm 2, lines 20 and 21). `half`: on the "front" or
    the "back" alone, while the other is averaged (None: on both).
    """

    beta: float = 0.3
    half: Half | None = None

    def __post_init__(self) -> None:
        _check_beta(self.beta)
        expect(self.half in (None, *get_args(Half)), "half", self.half, "'front', 'back' or None")

    def __call__(self, W: Tensor, W_bar: Tensor, state: State, eta: Eta) -> Tensor:
        m = state.get("m", torch.zeros_like(W))
        state["m"] = self.beta * m + (W - W_bar)  # line 20
        return W - state["m"]  # line 21


@dataclass(frozen=True)
class SlowMo:
    """Slow momentum (Wang et al. 2020): u <- beta*u + (W - W_bar)/eta; W <- W - lr*eta*u.

    `lr` is the slow learning rate. `buffers`: what happens to the local momentum ("reset" or "average").
    `weights` "samples": W_bar weighs clients by |D_j|, as all methods here do; "uniform": by 1/m, as in the paper.
    """

    lr: float = 1.0
    beta: float = 0.6
    in_units_of_eta: ClassVar[bool] = True
    buffers: Buffers = "reset"
    weights: Literal["samples", "uniform"] = "samples"

    def __post_init__(self) -> None:
        expect(is_number(self.lr) and self.lr > 0, "lr", self.lr, "a finite number above 0")
        _check_beta(self.beta)
        expect(self.buffers in ("reset", "average"), "buffers", self.buffers, "'reset' or 'average'")
        expect(self.weights in ("samples", "uniform"), "weights", self.weights, "'samples' or 'uniform'")

    def __call__(self, W: Tensor, W_bar: Tensor, state: State, eta: Eta) -> Tensor:
        u = state.get("u", torch.zeros_like(W))
        rate = torch.as_tensor(eta, dtype=W.dtype, device=W.device)
        moved = torch.where(rate > 0, (W - W_bar) / rate, torch.zeros_like(W))  # at rate 0 nothing has moved
        state["u"] = self.beta * u + moved
        return W - self.lr * eta * state["u"]


@dataclass(frozen=True)
class FedNAG:
    """Federated Nesterov (Yang et al. 2022): weights *and* momentum are averaged and broadcast.

    It uses Nesterov's local step, so SGD becomes NAG. With Adam and AdamW both moments are averaged, and the step
    counter continues.
    """

    buffers: ClassVar[Buffers] = "average"

    def __call__(self, W: Tensor, W_bar: Tensor, state: State, eta: Eta) -> Tensor:
        return W_bar

    def optimizer(self, given: Optimizer) -> Optimizer:
        """Return the local optimizer that this update needs, in place of the given one."""
        if type(given) is SGD:
            return NAG(given.lr, given.momentum, given.weight_decay, given.decay)
        return given


def buffers_of(update: Update) -> Buffers:
    buffers: Buffers = getattr(update, "buffers", "reset")
    return buffers


def half_of(update: Update) -> Half | None:
    """Return the half that an update acts on, or None: both."""
    half: Half | None = getattr(update, "half", None)
    return half


def _check_beta(beta: float) -> None:
    expect(is_number(beta) and 0 <= beta < 1, "beta", beta, "a number in [0, 1)")
