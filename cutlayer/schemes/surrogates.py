"""Parallel surrogates: one copy of the server half per client (docs/algorithms.md).

Ws_j   the surrogate of client j          p_j  |D_j| / sum |D_i| over those averaged
every  how often the surrogates are replaced by their mean, their optimizers starting afresh
       "round": never inside a round, which is FedAvg (McMahan et al. 2017) whatever the cut

SFLV1 (Thapa et al. 2022) averages the fronts too; in PSL (Jeon and Kim 2020) each client keeps its own; SGLR
(Pal et al. 2021) is PSL with one gradient at the cut for a share of the clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from cutlayer.clients.messages import CutGrad, Smashed
from cutlayer.clients.state import surrogate
from cutlayer.clients.waves import Wave
from cutlayer.errors import expect
from cutlayer.optim.averaging import average
from cutlayer.schemes.averaged import Averaged, check_share
from cutlayer.schemes.base import Closed, Server, Traits
from cutlayer.simulation.clock import Timing

Owner = Literal["slot", "client"]


@dataclass(frozen=True)
class SFLV1:
    """SplitFed version 1: surrogates in parallel, averaged every step, epoch or round.

    `memory`: where the server optimizer's memory lives on, it belongs to the "slot" (the i-th client of a round,
    whichever it is; CycleSL's code) or to the "client".
    """

    every: Literal["step", "epoch", "round"] = "epoch"
    memory: Owner = "slot"

    def __post_init__(self) -> None:
        expect(self.every in ("step", "epoch", "round"), "every", self.every, "'step', 'epoch' or 'round'")
        _check_memory(self.memory)

    @property
    def traits(self) -> Traits:
        return Traits(
            order="by_epoch" if self.every == "epoch" else "together",
            carry="sync",
            halves="spread",
            meets=self.every,
            own_gradient=True,
            timing=Timing("step_barrier" if self.every == "step" else "round_barrier"),
        )

    def open(self, server: Server, clients: Sequence[int]) -> Surrogates:
        return Surrogates(server, clients, self.every, self.memory)


@dataclass(frozen=True)
class PSL:
    """Parallel split learning: surrogates averaged once a round; every client keeps its own front."""

    memory: Owner = "slot"
    traits: ClassVar[Traits] = Traits(
        order="together",
        carry="keep",
        halves="spread",
        meets="round",
        own_gradient=True,
        timing=Timing("round_barrier"),
    )

    def __post_init__(self) -> None:
        _check_memory(self.memory)

    def open(self, server: Server, clients: Sequence[int]) -> Surrogates:
        return Surrogates(server, clients, "round", self.memory)


@dataclass(frozen=True)
class SGLR:
    """PSL in which a share of the clients gets one averaged gradient at the cut, the same for every sample.

    The method's other part, a learning rate for each side, is set by `optimizer` and `server_optimizer`.
    """

    share: float = 0.5
    memory: Owner = "slot"
    traits: ClassVar[Traits] = Traits(
        order="together",
        carry="keep",
        halves="central",
        meets="step",  # in the averaged gradient
        own_gradient=False,
        timing=Timing("step_barrier"),
    )

    def __post_init__(self) -> None:
        check_share(self.share)
        _check_memory(self.memory)

    def open(self, server: Server, clients: Sequence[int]) -> Averaged:
        return Averaged(Surrogates(server, clients, "round", self.memory), server, clients, self.share)


class Surrogates:
    """One round with a surrogate for each client."""

    def __init__(self, server: Server, clients: Sequence[int], every: str, memory: Owner) -> None:
        self.server, self.every = server, every
        self.row = {j: r for r, j in enumerate(clients)}
        self.rows = server.surrogates(len(clients))
        owners = server.slots(len(clients)) if memory == "slot" else [surrogate(j) for j in clients]
        self.memory = server.memory(owners)
        self.lost: set[int] = set()
        self.epoch = 0

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        server, rows = self.server, self.rows
        if self.every == "epoch" and wave.epoch > self.epoch:  # the barrier between epochs
            self._average([j for j in self.server.samples if j not in self.lost])
            self.epoch = wave.epoch
        replies = server.backward(rows, self.row, smashed)
        arrived = [reply.address.client for reply in server.agreed(replies)]
        heard = [reply.address.client for reply in replies] if wave.partial else arrived
        self.lost |= set(wave.clients) - set(heard)
        server.step(rows, self.memory, sorted(self.row[j] for j in arrived))
        if self.every == "step":
            self._average([*arrived, *wave.on_other_ranks])  # over the clients active at this step
        return replies

    def close(self) -> Closed:
        return Closed({j: self.rows.row(r) for j, r in self.row.items()})

    def _average(self, clients: Sequence[int]) -> None:
        """Replace every surrogate by sum_j p_j Ws_j; optimizer memory that does not live on is reset."""
        if not clients:
            return
        server = self.server
        total = sum(server.samples[j] for j in clients)
        mine = [j for j in self.row if j in set(clients)]
        p = [server.samples[j] / total for j in mine]
        Ws = average([self.rows.row(self.row[j]) for j in mine], p, server.start, server.workers, server.processes)
        self.rows.fill(Ws, len(self.row))
        if not self.server.persists:
            self.memory.reset()


def _check_memory(memory: str) -> None:
    expect(memory in ("slot", "client"), "memory", memory, "'slot' or 'client'")
