"""The simulated clock: how long a round would take on the clients' devices (SMoFi, appendix A.3; docs/algorithms.md).

p_j      s/sample      a forward pass of the whole model on client j's device
p_s      s/sample      the same on the server: the mean p_j / kappa
O        -             the front's share of the model's MACs          B_j   samples of a step of client j
S        kbit/sample   the activations at the cut                     T_j   steps of client j in the round
b_j      kbit/s        client j's throughput                          E_s   server epochs of the CycleSL family
dev_j  = 3*B_j*p_j*O          s a step on the device: forward 1, backward 2
srv_j  = 3*B_j*p_s*(1 - O)    s the server's part of the step
comm_j = 2*B_j*S/b_j          s activations up, gradients down
t_j    = dev_j + srv_j + comm_j
sync_j = 2*|Wc|*32/1000/b_j   s the front down and up, once a round; 0 unless the clock counts it

A composition says who waits for whom. A is the set of clients active at step k, those with T_j > k.
Not counted, as in the paper: latency, labels, momenta, fusion, evaluation; surrogates do not compete for the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cutlayer.errors import expect, is_number, unknown
from cutlayer.nn.macs import TRAINING, Shape
from cutlayer.simulation.devices import Device, kilobits, share

SAMPLED = 1000


@dataclass(frozen=True)
class Clock:
    """`kappa`: how many times faster than the mean device the server is. `sync`: count sending the fronts down and up.

    `sequential`: SFLV2's clients work one at a time ("strict"), or side by side, with only the server's work one after
    another ("paper_like": the published round times of SFLV2 are too short for more).
    """

    kappa: float = 100.0
    sync: bool = False
    sequential: Literal["strict", "paper_like"] = "strict"

    def __post_init__(self) -> None:
        expect(is_number(self.kappa) and self.kappa > 0, "kappa", self.kappa, "a finite number above 0")
        expect(isinstance(self.sync, bool), "sync", self.sync, "true or false")
        expect(self.sequential in ("strict", "paper_like"), "sequential", self.sequential, "'strict' or 'paper_like'")


@dataclass(frozen=True)
class Work:
    """What the clients of a round did: T_j, the mean B_j over these steps, and the last block of the front."""

    steps: Mapping[int, int]
    batch: Mapping[int, float]
    cut: int


class Phases(NamedTuple):
    """One client's round: its steps, the seconds of each phase of a step, and those spent once a round."""

    T: int
    dev: float
    srv: float
    comm: float
    sync: float
    whole: float  # a step of the whole model on the device

    @property
    def t(self) -> float:
        return self.dev + self.srv + self.comm


Clients = Sequence[Phases]


def _waves(J: Clients, wave: Callable[[Clients], float]) -> float:
    """sum_k wave(A). Waves with the same active clients take the same time, so each set A is computed once."""
    total, k = 0.0, 0
    for T in sorted({c.T for c in J}):
        total += (T - k) * wave([c for c in J if c.T >= T])
        k = T
    return total


def step_barrier(J: Clients, clock: Clock, E_s: int) -> float:
    """sum_k max_A t_j + max_j sync_j: everybody waits for the slowest at every step (SMoFi, SFLV1 every step, SGLR)."""
    return _waves(J, lambda A: max(c.t for c in A)) + max(c.sync for c in J)


def round_barrier(J: Clients, clock: Clock, E_s: int) -> float:
    """max_j (T_j*t_j + sync_j): each client at its own pace (PSL, SFLV1 every round; every epoch: the same sum)."""
    return max(c.T * c.t + c.sync for c in J)


def sequential(J: Clients, clock: Clock, E_s: int) -> float:
    """SFLV2: `relay` if the clock is strict, otherwise `merged`."""
    return relay(J, clock, E_s) if clock.sequential == "strict" else merged(J, clock, E_s)


def relay(J: Clients, clock: Clock, E_s: int) -> float:
    """sum_j (T_j*t_j + sync_j): one after another, whatever the clock says, as the front is passed on (SSL)."""
    return math.fsum(c.T * c.t + c.sync for c in J)


def merged(J: Clients, clock: Clock, E_s: int) -> float:
    """sum_k [max_A (dev_j + comm_j) + sum_A srv_j] + max_j sync_j: clients side by side, one server (MergeSFL)."""
    return _waves(J, lambda A: max(c.dev + c.comm for c in A) + sum(c.srv for c in A)) + max(c.sync for c in J)


def cycled(J: Clients, clock: Clock, E_s: int) -> float:
    """The CycleSL family; four phases, each waiting for the one before, + max_j sync_j:

    sum_k [max_A (dev_j/3 + comm_j/2) + E_s*sum_A srv_j + 2/3*max_A srv_j + max_A (2/3*dev_j + comm_j/2)]
    Features forward and up; the server trains; the frozen pass, side by side and without weight gradients; back.
    """

    def wave(A: Clients) -> float:
        up, back = max(c.dev / 3 + c.comm / 2 for c in A), max(2 / 3 * c.dev + c.comm / 2 for c in A)
        return up + E_s * sum(c.srv for c in A) + 2 / 3 * max(c.srv for c in A) + back

    return _waves(J, wave) + max(c.sync for c in J)


def cycled_side_by_side(J: Clients, clock: Clock, E_s: int) -> float:
    """The four phases of `cycled` with a surrogate for each client, which train side by side (Aligned with cycling):

    sum_k [max_A (dev_j/3 + comm_j/2) + 5/3*max_A srv_j + max_A (2/3*dev_j + comm_j/2)] + max_j sync_j
    """

    def wave(A: Clients) -> float:
        up, back = max(c.dev / 3 + c.comm / 2 for c in A), max(2 / 3 * c.dev + c.comm / 2 for c in A)
        return up + 5 / 3 * max(c.srv for c in A) + back

    return _waves(J, wave) + max(c.sync for c in J)


def cycled_sequential(J: Clients, clock: Clock, E_s: int) -> float:
    """The four phases of each client in turn: sum_j [T_j*(dev_j + comm_j + (E_s + 2/3)*srv_j) + sync_j] (CycleSSL)."""
    return math.fsum(cycled([c], clock, E_s) for c in J)


def plain(J: Clients, clock: Clock, E_s: int) -> float:
    """max_j (3*B_j*p_j*T_j + 2*|W|*32/1000/b_j): federated averaging of the uncut model, nothing on the server."""
    return max(c.T * c.whole + c.sync for c in J)


COMPOSITIONS: dict[str, Callable[[Clients, Clock, int], float]] = {
    composition.__name__: composition
    for composition in (
        *(step_barrier, round_barrier, merged, cycled, cycled_side_by_side, plain),
        *(sequential, relay, cycled_sequential),
    )
}


@dataclass(frozen=True)
class Timing:
    """How the seconds of a scheme's steps add up: one of the compositions above, and the server's epochs E_s."""

    composition: str
    server_epochs: int = 1

    def __post_init__(self) -> None:
        if self.composition not in COMPOSITIONS:
            raise unknown("composition", self.composition, COMPOSITIONS)


def server_seconds(devices: Sequence[Device], kappa: float) -> float:
    """p_s, from the mean p_j of all clients, or of the first 1,000 in a large fleet."""
    first = devices[:SAMPLED]
    return math.fsum(device.seconds for device in first) / len(first) / kappa


def seconds(
    clock: Clock,
    timing: Timing,
    work: Work,
    devices: Sequence[Device],
    shape: Shape,
    p_s: float,
    weights: int = 0,
) -> float:
    """The simulated seconds of one round; a client without steps takes no part in it.

    `weights`: the numbers a client fetches and sends back once a round: |Wc|, or 0 where fronts stay with their
    clients; |W| for "plain", which has nothing else to send and counts them whatever the clock says.
    """
    O, S = share(shape, work.cut), kilobits(shape.elements[work.cut])  # noqa: E741
    counted = weights if clock.sync or timing.composition == "plain" else 0
    J = []
    for j, T in work.steps.items():
        if T > 0:
            (p, b), B = devices[j], work.batch[j]
            whole, srv = TRAINING * B * p, TRAINING * B * p_s * (1 - O)
            J.append(Phases(T, whole * O, srv, 2 * B * S / b, 2 * kilobits(counted) / b, whole))
    return COMPOSITIONS[timing.composition](J, clock, timing.server_epochs) if J else 0.0
