"""Rounds of one batch per client, as CycleSL counts them, once more and as plainly as they can be said.

A client is a person who stays for the whole run: its front, its optimizer memory, which nothing ever resets, and its
place in its samples. The server's memory stays too: one for each slot of the round (the i-th client of any round has
slot i), one for each client in federated averaging, or a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from tests.equal.naive import Batch, Half, State, Task, copied, mean, one_pass
from tests.equal.naive_local import Bent, in_one, in_two
from tests.equal.naive_split import (
    Cycle,
    Rows,
    client_step,
    common_gradient,
    frozen_gradient,
    server_gradients,
    server_phase,
)


@dataclass
class Person:
    """A client of the whole run."""

    front: Bent
    size: int
    batches: list[Batch]
    participations: int = 0

    def next_batch(self) -> Batch:
        """The next batch in order; after the last comes the first."""
        batch = self.batches[self.participations % len(self.batches)]
        self.participations += 1
        return batch


@dataclass
class World:
    """Everything that outlives a round."""

    task: Task
    people: dict[int, Person]
    server: Bent
    slots: dict[int, Bent] = field(default_factory=dict)  # surrogates: their weights are the server's at each start
    latest: State = field(default_factory=dict)  # the front that is handed on

    def slot(self, i: int) -> Bent:
        """The i-th surrogate, with the server's weights and its own memory."""
        if i not in self.slots:
            self.slots[i] = Bent(self.server.module, self.task.server_rule or self.task.rule)
        self.slots[i].module.load_state_dict(self.server.module.state_dict())
        return self.slots[i]


RoundOf = Callable[[World, int, Sequence[int]], None]  # the world, n, and the clients of the round


def surrogates(world: World, n: int, J: Sequence[int], share: float | None) -> None:
    """One split step of each pair, then the mean of the surrogates; their memories stay apart."""
    gx: Rows = {}
    x: Rows = {}
    for i, j in enumerate(J):
        inputs, y = world.people[j].next_batch()
        back = world.slot(i)
        x[j] = world.people[j].front.module(inputs)
        gx[j], of_back = server_gradients(back, x[j], y)
        back.step(of_back, n)
    if share is not None:
        gx = common_gradient(gx, {j: world.people[j].size for j in J}, share, list(J))
    for j in J:
        client_step(world.people[j].front, x[j], gx[j], n)
    world.server.module.load_state_dict(mean((world.slots[i].module, world.people[j].size) for i, j in enumerate(J)))


def synchronise(world: World, J: Sequence[int]) -> None:
    """The mean front of the round goes to everybody, also to those who were not in it."""
    average = mean((world.people[j].front.module, world.people[j].size) for j in J)
    for person in world.people.values():
        person.front.module.load_state_dict(average)


def psl(world: World, n: int, J: Sequence[int]) -> None:
    """PSL: fronts are personal."""
    surrogates(world, n, J, None)


def sglr(share: float = 0.5) -> RoundOf:
    """SGLR: PSL with a common gradient for the first of the round."""
    return lambda world, n, J: surrogates(world, n, J, share)


def sflv1(world: World, n: int, J: Sequence[int]) -> None:
    """SFLV1: PSL, and the fronts are averaged."""
    surrogates(world, n, J, None)
    synchronise(world, J)


def sequential(world: World, n: int, J: Sequence[int], relay: bool) -> None:
    """One server model and one memory; a client's step is done before the next client's begins."""
    for j in J:
        person = world.people[j]
        if relay and world.latest:
            person.front.module.load_state_dict(world.latest)
        inputs, y = person.next_batch()
        x = person.front.module(inputs)
        gx, of_back = server_gradients(world.server, x, y)
        world.server.step(of_back, n)
        client_step(person.front, x, gx, n)
        world.latest = {name: value.clone() for name, value in person.front.module.state_dict().items()}


def sflv2(world: World, n: int, J: Sequence[int]) -> None:
    """SFLV2: in order, and the fronts are averaged."""
    sequential(world, n, J, relay=False)
    synchronise(world, J)


def ssl(world: World, n: int, J: Sequence[int]) -> None:
    """SSL: in order, and the front is handed on; memories are not."""
    sequential(world, n, J, relay=True)


def cycle(settings: Cycle, *, sync: bool = False, share: float | None = None) -> RoundOf:
    """CyclePSL; CycleSFL with `sync`; CycleSGLR with a share."""

    def play(world: World, n: int, J: Sequence[int]) -> None:
        people = {j: world.people[j] for j in J}
        batches = {j: person.next_batch() for j, person in people.items()}
        x = {j: people[j].front.module(inputs) for j, (inputs, _) in batches.items()}
        sent = [(x[j], batches[j][1], people[j].size) for j in J]
        server_phase(world.server, settings, sent, world.task.batch_size, n)
        gx = {j: frozen_gradient(world.server, settings, x[j], batches[j][1]) for j in J}
        if share is not None:
            gx = common_gradient(gx, {j: people[j].size for j in J}, share, list(J))
        for j in J:
            client_step(people[j].front, x[j], gx[j], n)
        if sync:
            synchronise(world, J)

    return play


def cyclessl(settings: Cycle) -> RoundOf:
    """SSL, where the server learns from a batch before it judges it."""

    def play(world: World, n: int, J: Sequence[int]) -> None:
        for j in J:
            person = world.people[j]
            if world.latest:
                person.front.module.load_state_dict(world.latest)
            inputs, y = person.next_batch()
            x = person.front.module(inputs)
            server_phase(world.server, settings, [(x, y, person.size)], len(x), n)
            client_step(person.front, x, frozen_gradient(world.server, settings, x, y), n)
            world.latest = {name: value.clone() for name, value in person.front.module.state_dict().items()}

    return play


@dataclass(frozen=True)
class Outcome:
    """The joint model, and every client's own."""

    model: nn.Sequential
    clients: list[nn.Sequential]


def train(
    task: Task, scheme: RoundOf, cohorts: Sequence[Sequence[int]] | None = None, *, relay: bool = False
) -> Outcome:
    """Rounds of one batch; `cohorts` names the clients of each round, in order. Clients below a batch never train.

    The joint model has the mean front of those who ever took part, or with `relay` the one handed on last.
    """
    first, back = in_two(copied(task.model), task.cut)
    passes = {j: one_pass(task, data) for j, data in enumerate(task.clients)}
    people = {
        j: Person(Bent(first, task.rule), len(task.clients[j][0]), batches) for j, batches in passes.items() if batches
    }
    world = World(task, people, Bent(back, task.server_rule or task.rule))
    for n in range(1, task.rounds + 1):
        scheme(world, n, [j for j in (cohorts[n - 1] if cohorts else people) if j in people])
    front = copied(first)
    met = {j: person for j, person in people.items() if person.participations}
    front.load_state_dict(
        world.latest if relay else mean((person.front.module, person.size) for person in met.values())
    )
    fronts = [people[j].front.module if j in people else first for j in range(len(task.clients))]
    server = world.server.module
    return Outcome(in_one(front, server), [in_one(mine, server) for mine in fronts])


def fedavg(task: Task, cohorts: Sequence[Sequence[int]] | None = None) -> nn.Sequential:
    """The uncut model, one step per client and round, averaged into everybody; memory is each client's for good."""
    passes = {j: one_pass(task, data) for j, data in enumerate(task.clients)}
    models = {j: Half(task.model, task.rule) for j, batches in passes.items() if batches}
    turns = dict.fromkeys(models, 0)
    average: State = {}
    for n in range(1, task.rounds + 1):
        J = [j for j in (cohorts[n - 1] if cohorts else models) if j in models]
        for j in J:
            x, y = passes[j][turns[j] % len(passes[j])]
            turns[j] += 1
            loss = functional.cross_entropy(models[j].module(x), y)
            models[j].step(torch.autograd.grad(loss, list(models[j].weights.values())), n)
        average = mean((models[j].module, len(task.clients[j][0])) for j in J)
        for half in models.values():
            half.module.load_state_dict(average)
    model = copied(task.model)
    model.load_state_dict(average)
    return model
