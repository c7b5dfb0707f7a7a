"""Clients in this process, one after another, on rows of one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cutlayer.client import Client, Seat
from cutlayer.flat import Half, Rows
from cutlayer.messages import CutGrad, Momentum, Plan, Report, Smashed, Square
from cutlayer.optim import Memory
from cutlayer.waves import Wave


class LocalCohort:
    """The simulator. `front(cut)` makes the client half; rows are allocated once per cut and cohort size."""

    def __init__(self, clients: Sequence[Client], front: Callable[[int], Half]) -> None:
        self.clients = clients
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
        self._opened = [plan.address.client for plan in plans]
        for index, plan in enumerate(plans):
            self.clients[plan.address.client].open(plan, Seat(self._rows, self._memory, index))

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
        for j in self._opened:
            self.clients[j].leave()
        self._opened = []
        return reports
