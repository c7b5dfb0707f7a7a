"""Clients in this process, on rows of one tensor: one at a time, side by side in threads, or stacked in one graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from cutlayer.clients.client import Client, Seat, failed
from cutlayer.clients.cohort import Cohort
from cutlayer.clients.messages import Attached, CutGrad, Down, Finish, Live, NextStep, Plan, Smashed, Up
from cutlayer.core.randomness import stacked_randomness
from cutlayer.core.threads import Workers
from cutlayer.data.source import Source
from cutlayer.data.views import take_together
from cutlayer.nn.flat import Half, Rows, Views
from cutlayer.nn.gradients import differentiate
from cutlayer.nn.nested import Inputs, ordered, parted, stacked
from cutlayer.nn.stacked import Stacks, together
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
    """The cohort of the simulator. `front(cut)` makes the client half; its rows are reused from round to round.

    A `Client` exists for one round; `sources[j]` is the data of client j. `attached`: one backward pass goes through
    both halves (for schemes that give every client its own gradient). `size`: how many fronts at most are computed in
    one graph; `stacks`: whether torch.func.vmap supports this front.
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

    def ask(self, messages: Sequence[Down]) -> list[Up]:
        match messages[0]:
            case Plan():
                self._open(cast(Sequence[Plan], messages))
                return []
            case NextStep():
                return self._next([self.clients[message.address.client] for message in messages])
            case CutGrad():
                return self._scatter(cast(Sequence[CutGrad], messages))
        answers = self._each(messages)
        if isinstance(messages[0], Finish):
            self.clients = {}
        return answers

    def _open(self, plans: Sequence[Plan]) -> None:
        cut, n = plans[0].cut, len(plans)
        if self._rows is None or self._memory is None or cut != self._cut or n > len(self._rows):
            self._rows = Rows(self.front(cut), n)
            self._memory = Memory(plans[0].optimizer, self._rows.w)
            self._cut, self._stacks = cut, Stacks(self._rows)
        self._pending: list[Pending] = []
        for index, plan in enumerate(sorted(plans, key=lambda plan: plan.row)):
            j = plan.address.client
            self.clients[j] = Client(j, self.sources[j], Seat(self._rows, self._memory, index))
            self.clients[j].handle(plan)

    def _next(self, clients: Sequence[Client]) -> list[Up]:
        """Take a step forward with each client; if `attached`, return placeholders that compute it when needed."""
        self._pending = []
        if self.attached:
            return [Attached(client.here(), self, len(client.next())) for client in clients]
        seats, samples = [c.seat.index for c in clients], [len(c.next()) for c in clients]
        groups = [[clients[i] for i in group] for group in together(seats, samples, self.size)]
        return list(itertools.chain.from_iterable(self.workers.map(self._forward, groups)))

    def _forward(self, clients: Sequence[Client]) -> list[Smashed]:
        if len(clients) == 1:
            return [clients[0].forward()]
        a, y, _, more = self.live([client.id for client in clients])
        apart = [t.detach().contiguous().unbind() for t in (a, *more)]  # contiguous, as if received
        parts = zip(clients, y.unbind(), zip(*apart, strict=True), strict=True)
        return [client.sent(a_j, y_j, tuple(more_j)) for client, y_j, (a_j, *more_j) in parts]

    def live(self, clients: Sequence[int]) -> Live:
        """Take a step forward with these clients, in one graph that stays attached."""
        some = [self.clients[j] for j in clients]
        if len(some) == 1:
            return some[0].live()
        seats = [client.seat.index for client in some]
        beside = seats == list(range(seats[0], seats[0] + len(seats)))  # a stack needs neighbouring rows
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
            with self._randomness(clients):
                a, more = parted(stack.forward(x))
            if clients[0].plan.noise:
                a = torch.stack([client.noisy(a_j) for client, a_j in zip(clients, a.unbind(), strict=True)])
        return Live(a, y, stack.rows.half.leaves(stack.views, 0), more)

    def _randomness(self, clients: Sequence[Client]) -> AbstractContextManager[object]:
        kind, seed = clients[0].seat.rows.half.style.randomness, clients[0].plan.schedule.seed
        return stacked_randomness(kind, seed, (client.here().at for client in clients), "client")

    def _batches(self, clients: Sequence[Client]) -> tuple[Inputs, Tensor]:
        """The samples of the clients' next steps, contiguous [n, batch, ...]; one read if all share one data set."""
        device = clients[0].seat.rows.half.device
        found = take_together([client.source for client in clients], [client.next() for client in clients], device)
        if found is not None:
            for client in clients:
                client.begin()
            return found[0].contiguous(), found[1]
        each = [client.batch() for client in clients]
        return ordered(stacked([x for x, _ in each]), False), torch.stack([y for _, y in each])

    def _each(self, messages: Sequence[Down]) -> list[Up]:
        """Let the clients handle their messages side by side, in threads."""
        each = self.workers.map(lambda message: self.clients[message.address.client].handle(message), messages)
        return [answer for answers in each for answer in answers]

    def _scatter(self, replies: Sequence[CutGrad]) -> list[Up]:
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
            return [momentum for client in clients for momentum in client.momenta()]
        return self._each(replies)

    def _backward(self, group: Pending, heard: dict[int, CutGrad]) -> bool:
        """Compute the gradients of a group's clients that have a reply, unless the server's pass has done so already.

        Return whether other clients of the group may still get a reply, so that the graph must be kept.
        """
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
        """Whether these clients all take the same kind of step, so that one expression can take it for all."""
        first = clients[0]
        return all(
            client.asked(reply)
            and client.plan.schedule.accumulate == 1
            and client.eta == first.eta
            and not clips(client.plan.local)
            and (client.plan.local is None or client.start.w is first.start.w)
            for client, reply in zip(clients, replies, strict=True)
        )


def _side_by_side(clients: Sequence[Client]) -> Live:
    """Take a step forward with one client after another and stack the outputs, where vmap cannot be used."""
    each = [client.live() for client in clients]
    with torch.enable_grad():
        a = torch.stack([live.a for live in each])
    fronts = zip(*(live.front for live in each), strict=True)
    views = Views(*([tensor for one in kind for tensor in one] for kind in fronts))
    more = tuple(torch.stack(beside) for beside in zip(*(live.more for live in each), strict=True))
    return Live(a, torch.stack([live.y for live in each]), views, more)
