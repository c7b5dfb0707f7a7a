"""What travels between server and clients. A client with T steps costs 2T + 2 messages a round.

Plan      down  once    the front, and how to train it
Smashed   up    T times the activations at the cut, and the labels
CutGrad   down  T times the gradient of the loss at the cut
Report    up    once    the trained front
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cutlayer.feed import Feed
from cutlayer.flat import Vectors
from cutlayer.optim import Optimizer


@dataclass(frozen=True)
class Address:
    """Which message this is: a stale or doubled one is known by it."""

    round: int
    client: int
    step: int  # the client's own count of steps in this round, from 0; -1 for a Plan or Report
    attempt: int = 0


@dataclass(frozen=True)
class Plan:
    """A client's orders for a round."""

    address: Address
    cut: int
    start: Vectors  # W_c^{n-1}
    feed: Feed
    optimizer: Optimizer
    eta: float

    @property
    def nbytes(self) -> int:
        return self.start.nbytes


@dataclass(frozen=True)
class Smashed:
    """A_j and y_j of one step."""

    address: Address
    a: Tensor
    y: Tensor

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.y.nbytes


@dataclass(frozen=True)
class CutGrad:
    """dL_j/dA_j of one step; the loss stays with the server's records."""

    address: Address
    grad: Tensor
    loss: Tensor

    @property
    def nbytes(self) -> int:
        return self.grad.nbytes


@dataclass(frozen=True)
class Report:
    """What a client ends the round with."""

    address: Address
    end: Vectors  # W_c,j after its last step
    samples: int  # |D_j|

    @property
    def nbytes(self) -> int:
        return self.end.nbytes
