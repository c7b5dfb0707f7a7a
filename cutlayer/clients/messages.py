"""What travels between server and clients. A client with T steps costs 2T + 2 messages a round.

Plan      down  once    the front, and how to train it
Smashed   up    T times the activations at the cut, and the labels
CutGrad   down  T times the gradient of the loss at the cut
Report    up    once    the trained front

Where labels stay with the client, it holds the last block too, and a step has two more messages (4T + 2 a round):

Features      down  T times what comes out of the server's blocks
FeatureGrad   up    T times the gradient of the loss there

Two more where a method asks for them: a Square up for each CutGrad (FedNAR's joint norm: 3T + 2 messages), and a
Momentum each way and step (SMoFi with `fuse_clients`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from cutlayer.clients.state import NOTHING, ClientState
from cutlayer.data.schedule import BatchSchedule
from cutlayer.nn.flat import Vectors, Views
from cutlayer.optim.local import Local
from cutlayer.optim.memory import Moments
from cutlayer.optim.optimizer import Optimizer

Loss = Callable[[Tensor, Tensor], Tensor]
SCALAR = 8  # bytes of a number


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
    start: Vectors | None  # W_c^{n-1}; None: the half the client kept
    schedule: BatchSchedule
    optimizer: Optimizer
    eta: float
    local: Local | None = None
    noise: float = 0.0  # on the smashed data, relative to its norm
    loss: Loss | None = None  # where labels stay with the client, which holds the last block too; None: they are sent
    memory: Moments | None = None  # what the optimizer starts with; None: nothing, or what the client kept
    shares_memory: bool = False  # report the optimizer's memory too
    keeps_half: bool = False  # its front lives on with the client, from round to round
    keeps_memory: bool = False  # and so do its optimizer's memory and its position in the data
    fuses: bool = False  # after every step it sends its momentum, and goes on with the one it gets
    confirmed: int = 0  # the last round this client took part in that counts: what it kept of later ones does not
    own: ClientState = NOTHING  # what the client kept; it never travels
    row: int = 0  # where it sits among clients that share a process; nor does this

    @property
    def nbytes(self) -> int:
        return (self.start.nbytes if self.start else 0) + (self.memory.nbytes if self.memory else 0)


@dataclass(frozen=True)
class Smashed:
    """A_j and y_j of one step."""

    address: Address
    a: Tensor
    y: Tensor | None  # None: the labels stay with the client

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + (0 if self.y is None else self.y.nbytes)

    @property
    def samples(self) -> int:
        return len(self.a)


@dataclass(frozen=True)
class Features:
    """Z_j of one step: what the server's blocks make of A_j, for the client's last block."""

    address: Address
    z: Tensor

    @property
    def nbytes(self) -> int:
        return self.z.nbytes


@dataclass(frozen=True)
class FeatureGrad:
    """dL_j/dZ_j of one step; the loss stays with the client."""

    address: Address
    grad: Tensor

    @property
    def nbytes(self) -> int:
        return self.grad.nbytes


class Live(NamedTuple):
    """A_j with its graph, y_j, and the front's leaves: of one client, or of several, stacked."""

    a: Tensor
    y: Tensor
    front: Views


class Near(Protocol):
    """Clients in the server's own process."""

    def live(self, clients: Sequence[int]) -> Live:
        """Their step forward: [batch, ...] of one, [n, batch, ...] of several."""


@dataclass
class Attached:
    """In place of a Smashed, where client and server share a process: made when it is wanted, its graph attached, so
    that one backward pass goes through both halves. The bits are those of the two passes."""

    address: Address
    near: Near
    samples: int
    nbytes: int = 0  # what would have travelled; known once it is made


@dataclass(frozen=True)
class CutGrad:
    """dL_j/dA_j of one step; the loss, where the server knows it, stays with its records."""

    address: Address
    grad: Tensor | None  # None: it has flowed on into the client's half already
    loss: Tensor | None
    square: Tensor | None = None  # ||h||^2 of the server's half, for a joint norm
    flowed: int = 0  # the bytes of a gradient that has

    @property
    def nbytes(self) -> int:
        return (self.flowed if self.grad is None else self.grad.nbytes) + (0 if self.square is None else SCALAR)


@dataclass(frozen=True)
class Square:
    """||h||^2 of a client's half at one step."""

    address: Address
    value: Tensor
    nbytes: int = SCALAR


@dataclass(frozen=True)
class Momentum:
    """A client's optimizer memory after one step, on its way to be fused, or back."""

    address: Address
    m: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        return sum(m.nbytes for m in self.m)


@dataclass(frozen=True)
class Report:
    """What a client ends the round with. A half it keeps does not travel, nor does memory nobody asked for."""

    address: Address
    end: Vectors | None  # W_c,j after its last step; None: it stays on another machine
    samples: int  # |D_j|
    memory: Moments | None
    position: int = 0  # batches taken so far, over all rounds
    tried: int = 0  # gradients that the local rule could clip
    clipped: int = 0  # and those that it did
    keeps_half: bool = False
    shares_memory: bool = False

    @property
    def nbytes(self) -> int:
        half = 0 if self.keeps_half or self.end is None else self.end.nbytes
        return half + (self.memory.nbytes if self.shares_memory and self.memory is not None else 0)

    def own(self, half: bool, memory: bool) -> ClientState:
        """What lives on with the client: its half, its optimizer's memory and its position in its data."""
        front = self.end.clone() if half and self.end is not None else None
        if not memory or self.memory is None:
            return ClientState(front)
        return ClientState(front, self.memory.clone(), self.position)
