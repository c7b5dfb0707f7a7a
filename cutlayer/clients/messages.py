"""The messages between server and clients. A client with T steps costs 2T + 2 messages a round.

Plan      down  once    the front, and how to train it
Smashed   up    T times the activations at the cut, and the labels
CutGrad   down  T times the gradient of the loss at the cut
Report    up    once    the trained front

Where labels stay with the client, it holds the last block too, and a step has two more messages (4T + 2 a round):

Features      down  T times the output of the server's blocks
FeatureGrad   up    T times the gradient of the loss there

A method may need more after each CutGrad: a Square up (FedNAR's joint norm: 3T + 2 messages), or a Momentum up and an
Adopt down (SMoFi with `fuse_clients`: 4T + 2).

A step may consist of several micro-batches. Each is a pair of Smashed and CutGrad, and the optimizers step after the
last one; Square, Momentum and Adopt belong to that one alone.

NextStep and Finish ask a simulated client for its Smashed and its Report. They are never sent over the network: a
client on another machine knows from its plan what comes next, and sends it without being asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from torch import Tensor

from cutlayer.clients.state import NOTHING, ClientState
from cutlayer.data.schedule import OPTIONAL, BatchSchedule
from cutlayer.nn.flat import Vectors, Views
from cutlayer.optim.local import Local, joint
from cutlayer.optim.memory import Moments
from cutlayer.optim.optimizer import Optimizer

Loss = Callable[[Tensor, Tensor], Tensor]
SCALAR = 8  # bytes of a number
WITHIN, NEVER = "between the processes of a run", "never"


def travels(how: str) -> dict[str, str]:
    """Return the metadata of a field that is not sent to other machines."""
    return {"travels": how}


@dataclass(frozen=True)
class Address:
    """Identifies a message, so that stale and repeated ones are recognised."""

    round: int
    client: int
    step: int  # the client's own count of batches in this round, from 0; -1 for a Plan or Report
    attempt: int = 0

    @property
    def at(self) -> tuple[int, int, int]:
        """Round, client and step: where random numbers are drawn."""
        return self.round, self.client, self.step


@dataclass(frozen=True)
class Plan:
    """What a client is told to do in a round."""

    address: Address
    cut: int
    start: Vectors | None  # W_c^{n-1}; None: the half the client kept
    schedule: BatchSchedule
    optimizer: Optimizer
    eta: float  # of the first step
    local: Local | None = None
    noise: float = 0.0  # on the smashed data, relative to its norm
    loss: Loss | None = None  # for a client that keeps its labels, and holds the last block too; None: labels are sent
    memory: Moments | None = None  # what the optimizer starts with; None: what the client kept, or nothing
    shares_memory: bool = False  # report the optimizer's memory too
    keeps_half: bool = False  # the client keeps its front from round to round
    keeps_memory: bool = False  # the client keeps its optimizer's memory and its position in the data
    fuses: bool = False  # after every step the client sends its momentum, and continues with the fused one
    etas: Tensor | None = field(default=None, metadata=OPTIONAL)  # of every step, where they differ
    confirmed: int = 0  # the client's last round that counts; it must not use state of later rounds
    own: ClientState = field(default=NOTHING, metadata=travels(WITHIN))  # what the client kept
    row: int = field(default=0, metadata=travels(WITHIN))  # its place among all clients of the round

    @property
    def nbytes(self) -> int:
        rates = 0 if self.etas is None else self.etas.nbytes
        return (self.start.nbytes if self.start else 0) + (self.memory.nbytes if self.memory else 0) + rates


@dataclass(frozen=True)
class NextStep:
    """Take the next step forward. Never sent over the network."""

    address: Address


@dataclass(frozen=True)
class Finish:
    """End the round. Never sent over the network."""

    address: Address


@dataclass(frozen=True)
class Smashed:
    """A_j and y_j of one step."""

    address: Address
    a: Tensor
    y: Tensor | None  # None: the labels stay with the client
    more: tuple[Tensor, ...] = field(default=(), metadata=OPTIONAL)  # what crosses the cut beside a, without a gradient

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + (0 if self.y is None else self.y.nbytes) + sum(t.nbytes for t in self.more)

    @property
    def samples(self) -> int:
        return len(self.a)


@dataclass(frozen=True)
class Features:
    """Z_j of one step: the output of the server's blocks for A_j, and the input of the client's last block."""

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
    """A_j with its graph, y_j, the front's leaves, what travels beside A_j; of one client or stacked for several."""

    a: Tensor
    y: Tensor
    front: Views
    more: tuple[Tensor, ...] = ()


class Near(Protocol):
    """Clients in the server's own process."""

    def live(self, clients: Sequence[int]) -> Live:
        """Take a step forward with these clients: [batch, ...] for one, [n, batch, ...] for several."""


@dataclass
class Attached:
    """Takes the place of a Smashed where client and server share a process.

    The smashed data are computed when they are needed, with their graph, so that one backward pass goes through both
    halves. The bits are the same as with two passes.
    """

    address: Address
    near: Near
    samples: int
    nbytes: int = 0  # what a Smashed would have; known once the data are computed


@dataclass(frozen=True)
class CutGrad:
    """dL_j/dA_j of one step. The loss, where the server knows it, is for the server's records and is not sent."""

    address: Address
    grad: Tensor | None  # None: the backward pass has gone on into the client's half
    loss: Tensor | None = field(default=None, metadata=travels(NEVER))
    square: Tensor | None = None  # ||h||^2 of the server's half, for a joint norm
    flowed: int = field(default=0, metadata=travels(NEVER))  # the bytes of the gradient, where `grad` is None
    partial: bool = field(default=False, metadata=travels(NEVER))  # the optimizer step waits for more micro-batches

    @property
    def nbytes(self) -> int:
        return (self.flowed if self.grad is None else self.grad.nbytes) + (0 if self.square is None else SCALAR)


@dataclass(frozen=True)
class Square:
    """||h||^2 of a client's half at one step."""

    address: Address
    value: Tensor

    @property
    def nbytes(self) -> int:
        return SCALAR


@dataclass(frozen=True)
class _OfMoments:
    """A message that holds an optimizer's moments."""

    address: Address
    m: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        return sum(m.nbytes for m in self.m)


class Momentum(_OfMoments):
    """A client's moments after one step, to be fused."""


class Adopt(_OfMoments):
    """The fused moments with which a client continues."""


@dataclass(frozen=True)
class Report:
    """What a client hands in after a round. A half that it keeps is not sent, nor is memory that nobody asked for."""

    address: Address
    end: Vectors | None  # W_c,j after its last step; None: it stays on the client's machine
    samples: int  # |D_j|
    memory: Moments | None
    position: int = 0  # batches taken so far, over all rounds
    tried: int = 0  # gradients that the local rule could clip
    clipped: int = 0  # gradients that it clipped; from a GPU of this process, a tensor that is not waited for yet
    keeps_half: bool = False
    shares_memory: bool = False

    @property
    def nbytes(self) -> int:
        half = 0 if self.keeps_half or self.end is None else self.end.nbytes
        return half + (self.memory.nbytes if self.shares_memory and self.memory is not None else 0)

    @property
    def sent(self) -> Report:
        """The part of it that leaves the client's machine."""
        end = None if self.keeps_half else self.end
        return replace(self, end=end, memory=self.memory if self.shares_memory else None)

    def own(self, half: bool, memory: bool) -> ClientState:
        """Return what the client keeps: its half, its optimizer's memory and its position in its data."""
        front = self.end.clone() if half and self.end is not None else None
        if not memory or self.memory is None:
            return ClientState(front)
        return ClientState(front, self.memory.clone(), self.position)


Down = Plan | NextStep | Features | CutGrad | Adopt | Finish
Up = Smashed | Attached | FeatureGrad | Square | Momentum | Report


def answers(message: Down, plan: Plan) -> dict[type[Up], Address]:
    """Return which messages a client with this plan sends back, with their addresses."""
    at = message.address
    match message:
        case NextStep():
            return {Smashed: at}
        case Features():
            return {FeatureGrad: at}
        case CutGrad() if message.partial:
            return {}
        case CutGrad():
            square: dict[type[Up], Address] = {Square: at} if joint(plan.local) else {}
            return {**square, Momentum: replace(at, step=at.step + 1)} if plan.fuses else square
        case Finish():
            return {Report: at}
        case Plan() | Adopt():
            return {}
