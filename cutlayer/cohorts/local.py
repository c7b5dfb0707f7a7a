"""Clients in this process, one after another, on rows of one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cutlayer.client import Client, Seat
from cutlayer.flat import Half, Rows
from cutlayer.messages import CutGrad, Plan, Report, Smashed
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
        self._rows.fill(plans[0].start, n)
        self._memory.reset()
        for index, plan in enumerate(plans):
            self.clients[plan.address.client].open(plan, Seat(self._rows, self._memory, index))

    def gather(self, wave: Wave) -> list[Smashed]:
        return [self.clients[j].forward() for j in wave.clients]

    def scatter(self, replies: Sequence[CutGrad]) -> None:
        for reply in replies:
            self.clients[reply.address.client].backward(reply)

    def close(self, clients: Sequence[int]) -> list[Report]:
        return [self.clients[j].close() for j in clients]
