"""Clients in this process, on rows of one tensor: one at a time, side by side in threads, or stacked in one graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.clients.client import Client, Seat, failed
from cutlayer.clients.cohort import Cohort
from cutlayer.clients.messages import (
    Attached,
    CutGrad,
    FeatureGrad,
    Features,
    Live,
    Momentum,
    Plan,
    Report,
    Smashed,
    Square,
)
from cutlayer.clients.waves import Wave
from cutlayer.core.threads import Workers
from cutlayer.data.source import Source, take_together
from cutlayer.nn.flat import Half, Rows, Views, differentiate
from cutlayer.nn.nested import Inputs, ordered
from cutlayer.nn.stacked import Stacks, stacked, together
from cutlayer.optim.local import clips
from cutlayer.optim.memory import Memory
from cutlayer.optim.step import optimizer_step


@dataclass
class Pending:
    """Clients that stepped forward in one graph, and still wait for their gradients."""

    clients: Sequence[Client]
    a: Tensor
    front: Views


class LocalCohort(Cohort):
    """The simulator. `front(cut)` makes the client half; rows are allocated once per cut and cohort size.

    A client exists for the round it takes part in; `sources[j]` is what client j holds. `attached`: one backward pass
    goes through both halves (for schemes that give every client its own gradient). `size`: at most so many fronts are
    computed in one graph; `stacks`: whether torch.func.vmap can do that for this front.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        front: Callable[[int], Half],
        workers: Workers | None = None,
        attached: bool = False,
        size: int = 1,
        stacks: bool = True,
    ) -> None:
        self.sources, self.front, self.workers = sources, front, workers or Workers()
        self.attached, self.size, self.stacks = attached, size, stacks
        self.clients: dict[int, Client] = {}
        self._cut: int | None = None
        self._rows: Rows | None = None
        self._memory: Memory | None = None

    def open(self, plans: Sequence[Plan]) -> None:
        cut, n = plans[0].cut, len(plans)
        if self._rows is None or self._memory is None or cut != self._cut or n > len(self._rows):
            self._rows = Rows(self.front(cut), n)
            self._memory = Memory(plans[0].optimizer, self._rows.w)
            self._cut, self._stacks = cut, Stacks(self._rows)
        self._pending: list[Pending] = []
        for index, plan in enumerate(sorted(plans, key=lambda plan: plan.row)):
            j = plan.address.client
            self.clients[j] = Client(j, self.sources[j])
            self.clients[j].open(plan, Seat(self._rows, self._memory, index))

    def gather(self, wave: Wave) -> list[Smashed | Attached]:
        clients = [self.clients[j] for j in wave.clients]
        self._pending = []
        if self.attached:
            return [Attached(client.here(), self, len(client.next())) for client in clients]
        seats, samples = [c.seat.index for c in clients], [len(c.next()) for c in clients]
        groups = [[clients[i] for i in group] for group in together(seats, samples, self.size)]
        return list(itertools.chain.from_iterable(self.workers.map(self._forward, groups)))

    def _forward(self, clients: Sequence[Client]) -> list[Smashed]:
        if len(clients) == 1:
            return [clients[0].forward()]
        a, y, _ = self.live([client.id for client in clients])
        parts = zip(clients, a.detach().contiguous().unbind(), y.unbind(), strict=True)  # as they would arrive by mail
        return [client.sent(a_j, y_j) for client, a_j, y_j in parts]

    def live(self, clients: Sequence[int]) -> Live:
        """Clients forward, with the graph attached; several of them in one."""
        some = [self.clients[j] for j in clients]
        if len(some) == 1:
            return some[0].live()
        seats = [client.seat.index for client in some]
        beside = seats == list(range(seats[0], seats[0] + len(seats)))  # unless a scheme lays its rows otherwise
        live = self._stacked(some) if self.stacks and beside else _side_by_side(some)
        self._pending.append(Pending(some, live.a, live.front))
        return live

    def _stacked(self, clients: Sequence[Client]) -> Live:
        try:
            return self._in_one_graph(clients)
        except Exception as error:
            raise failed([client.here() for client in clients], error) from error

    def _in_one_graph(self, clients: Sequence[Client]) -> Live:
        x, y = self._batches(clients)
        stack = self._stacks.of([client.seat.index for client in clients])
        with torch.enable_grad():
            a = stack.forward(x)
            if clients[0].plan.noise:
                a = torch.stack([client.noisy(a_j) for client, a_j in zip(clients, a.unbind(), strict=True)])
        return Live(a, y, stack.rows.half.leaves(stack.views, 0))

    def _batches(self, clients: Sequence[Client]) -> tuple[Inputs, Tensor]:
        """The samples of their next steps, [n, batch, ...] in plain order: in one reading where they lie in one data
        set."""
        device = clients[0].seat.rows.half.device
        found = take_together([client.source for client in clients], [client.next() for client in clients], device)
        if found is not None:
            for client in clients:
                client.begin()
            return found[0].contiguous(), found[1]
        each = [client.batch() for client in clients]
        return ordered(stacked([x for x, _ in each]), False), torch.stack([y for _, y in each])

    def tail_step(self, features: Sequence[Features]) -> list[FeatureGrad]:
        answers = self.workers.map(lambda f: self.clients[f.address.client].tail_step(f), features)
        return [answer for answer in answers if answer is not None]

    def scatter(self, replies: Sequence[CutGrad]) -> list[Square]:
        heard = {reply.address.client: reply for reply in replies}
        pending = self._pending
        self._pending = [group for group in pending if self._backward(group, heard)]
        clients = [self.clients[reply.address.client] for reply in replies]
        if pending and clients and self._alike(clients, replies):
            for client, reply in zip(clients, replies, strict=True):
                client.receive(reply)
            seats = sorted(client.seat.index for client in clients)
            rows, memory = clients[0].seat.rows, clients[0].seat.memory
            optimizer_step(self.workers, clients[0].how, rows, memory, seats)
            for client in clients:
                client.stepped()
            return []
        answers = self.workers.map(lambda reply: self.clients[reply.address.client].backward(reply), replies)
        return [answer for answer in answers if answer is not None]

    def _backward(self, group: Pending, heard: dict[int, CutGrad]) -> bool:
        """Gradients into the rows of those of a group that are answered, unless they have flowed there already; whether
        the others may be answered later."""
        if not any(client.id in heard for client in group.clients):
            return True
        grads = [heard[client.id].grad if client.id in heard else None for client in group.clients]
        if not any(grad is not None for grad in grads):
            return False
        rest = [client.seat for client, grad in zip(group.clients, grads, strict=True) if grad is None]
        before = [seat.rows.g[seat.index].clone() for seat in rest]
        rows = zip(grads, group.a.detach().unbind(), strict=True)
        grad = torch.stack([torch.zeros_like(a) if grad is None else grad for grad, a in rows])
        differentiate(group.a, [group.front], grad, again=bool(rest))
        for seat, g in zip(rest, before, strict=True):
            seat.rows.g[seat.index] = g
        return bool(rest)

    def _alike(self, clients: Sequence[Client], replies: Sequence[CutGrad]) -> bool:
        """Whether these clients all take the same kind of step, so that one expression can take it for them."""
        first = clients[0]
        return all(
            client.asked(reply)
            and client.plan.eta == first.plan.eta
            and not clips(client.plan.local)
            and (client.plan.local is None or client.plan.start is first.plan.start is not None)
            for client, reply in zip(clients, replies, strict=True)
        )

    def momenta(self, clients: Sequence[int]) -> list[Momentum]:
        return [self.clients[j].momentum() for j in clients]

    def adopt(self, fused: Sequence[Momentum]) -> None:
        for momentum in fused:
            self.clients[momentum.address.client].adopt(momentum)

    def close(self, clients: Sequence[int]) -> list[Report]:
        reports = [self.clients[j].close() for j in clients]
        self.clients = {}
        return reports


def _side_by_side(clients: Sequence[Client]) -> Live:
    """Several clients, one after another, their outputs stacked: for a front that vmap cannot do."""
    each = [client.live() for client in clients]
    with torch.enable_grad():
        a = torch.stack([live.a for live in each])
    fronts = zip(*(live.front for live in each), strict=True)
    w, b, i, g = ([tensor for one in kind for tensor in one] for kind in fronts)
    return Live(a, torch.stack([live.y for live in each]), Views(w, b, i, g))
