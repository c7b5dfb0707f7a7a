"""Clients in this process, one after another, on rows of one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cutlayer.client import Client, Seat
from cutlayer.data.source import Source
from cutlayer.flat import Half, Rows
from cutlayer.messages import CutGrad, Momentum, Plan, Report, Smashed, Square
from cutlayer.optim import Memory
from cutlayer.waves import Wave


class LocalCohort:
    """The simulator. `front(cut)` makes the client half; rows are allocated once per cut and cohort size.

    A client exists for the round it takes part in; `sources[j]` is what client j holds.
    """

    def __init__(self, sources: Sequence[Source], front: Callable[[int], Half]) -> None:
        self.sources = sources
        self.clients: dict[int, Client] = {}
        self.front = front
        self._cut: int | None = None
        self._rows: Rows | None = None
        self._memory: Memory | None = None

    def open(self, plans: Sequence[Plan]) -> None:
        cut, n = plans[0].cut, len(plans)
        if self._rows is None or self._memory is None or cut != self._cut or n > len(self._rows):
            self._rows = Rows(self.front(cut), n)
            self._memory = Memory(plans[0].optimizer, self._rows.w)
            self._cut = cut
        for index, plan in enumerate(plans):
            j = plan.address.client
            self.clients[j] = Client(j, self.sources[j])
            self.clients[j].open(plan, Seat(self._rows, self._memory, index))

    def gather(self, wave: Wave) -> list[Smashed]:
        return [self.clients[j].forward() for j in wave.clients]

    def scatter(self, replies: Sequence[CutGrad]) -> list[Square]:
        answers = [self.clients[reply.address.client].backward(reply) for reply in replies]
        return [answer for answer in answers if answer is not None]

    def momenta(self, clients: Sequence[int]) -> list[Momentum]:
        return [self.clients[j].momentum() for j in clients]

    def adopt(self, fused: Sequence[Momentum]) -> None:
        for momentum in fused:
            self.clients[momentum.address.client].adopt(momentum)

    def close(self, clients: Sequence[int]) -> list[Report]:
        reports = [self.clients[j].close() for j in clients]
        self.clients = {}
        return reports
