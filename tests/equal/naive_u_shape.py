"""The U-shape once more, as plainly as it can be said: labels stay with the client, and with them the last block.

A client holds its ends, the blocks up to the cut and the last one, with one optimizer; the server holds the middle.

A_j = front_j(x_j)   up      Z_j = middle(A_j)   down      dL_j/dZ_j   up      dL_j/dA_j   down

Every gradient of a step is taken with the weights before it. What a scheme does between clients it does to the middle;
ends are averaged at the end of the round (sync), kept, or passed on (relay).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.equal.naive import Batch, Part, State, Task, copied, mean, one_pass, part
from tests.equal.naive_cyclesl import Person, World, synchronise
from tests.equal.naive_local import Bent, Local, bent_step
from tests.equal.naive_split import active_at, common_gradient, longest
from tests.equal.test_options import Fusing, cosine, power


@dataclass(frozen=True)
class Turned(Task):
    """A task in the U-shape.

    `cohorts` names the clients of each round (None: all). (n, j) in `unanswered`: of the first step of client j that
    does not arrive, A_j does arrive; what is missing is its answer to Z_j.
    """

    local: Local = None
    cohorts: Sequence[Sequence[int]] | None = None
    unanswered: frozenset[tuple[int, int]] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Heard(Part):
    """A client's part of a round, with the batch whose Z_j it does not answer, if there is one."""

    last: tuple[Batch, ...] = ()

    @property
    def asked(self) -> list[Batch]:
        """The batches whose A_j arrive."""
        return [*self.steps, *self.last]


Ends = dict[int, Bent]  # by client
Parts = dict[int, Heard]
Play = Callable[[Turned, int, Ends, nn.Sequential, Parts], State]  # a round; the middle it ends with


@dataclass(frozen=True)
class Scheme:
    """What it does to the middle, and what becomes of the ends.

    `merges`: a client without a full batch has one of all its samples, and ends count by the rows of a batch.
    """

    play: Play
    carry: Literal["sync", "keep", "relay"] = "sync"
    merges: bool = False


def in_turn(model: nn.Sequential, cut: int) -> tuple[nn.Sequential, nn.Sequential]:
    """The ends and the middle, under their own names; nothing is copied."""
    blocks = list(model.named_children())
    ends, middle = [*blocks[: cut + 1], blocks[-1]], blocks[cut + 1 : -1]
    return nn.Sequential(OrderedDict(ends)), nn.Sequential(OrderedDict(middle))


def in_order(ends: nn.Sequential, middle: nn.Sequential) -> nn.Sequential:
    """The whole model of ends and middle; nothing is copied."""
    *front, last = ends.named_children()
    return nn.Sequential(OrderedDict([*front, *middle.named_children(), last]))


# ---- One step ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """What a step has brought: A_j with its graph, the gradient that comes down for it, and those of the weights."""

    a: Tensor
    ga: Tensor
    of_last: list[Tensor]
    of_middle: list[Tensor]


def at_the_end(ends: Bent, z: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Of the client's own mean loss: with respect to Z_j, and to its last block."""
    leaf, last = z.detach().clone().requires_grad_(), ends.module[-1]
    loss = functional.cross_entropy(last(leaf), y)
    gz, *of_last = torch.autograd.grad(loss, [leaf, *last.parameters()])
    return gz, of_last


def turned(ends: Bent, middle: Bent, batch: Batch) -> Turn:
    """The four messages of a step; no weight moves."""
    x, y = batch
    a = ends.module[:-1](x)
    sent = a.detach().clone().requires_grad_()
    z = middle.module(sent)
    gz, of_last = at_the_end(ends, z, y)
    ga, *of_middle = torch.autograd.grad(z, [sent, *middle.weights.values()], grad_outputs=gz)
    return Turn(a, ga, of_last, of_middle)


def of_ends(ends: Bent, a: Tensor, ga: Tensor, of_last: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of front and last block, in the order of the ends' weights."""
    return [*torch.autograd.grad(a, list(ends.module[:-1].parameters()), grad_outputs=ga), *of_last]


def both_step(ends: Bent, middle: Bent, turn: Turn, n: int, local: Local, ga: Tensor | None = None) -> None:
    """Ends and middle move, each with its own optimizer; `ga`: what the client gets instead of its own gradient."""
    of_client = of_ends(ends, turn.a, turn.ga if ga is None else ga, turn.of_last)
    bent_step([ends, middle], [of_client, turn.of_middle], n, local)


# ---- A surrogate of the middle for each client -------------------------------------------------------------------


def _surrogates(task: Turned, middle: nn.Sequential, parts: Parts) -> Ends:
    return {j: Bent(middle, task.server_rule or task.rule, task.local) for j in parts}


def _reported(middles: Mapping[int, Bent], parts: Parts) -> State:
    return mean((middles[j].module, p.size) for j, p in parts.items() if p.reported)


def sflv1(every: Literal["step", "epoch", "round"], carry: Literal["sync", "keep"] = "sync") -> Scheme:
    """Surrogates averaged, copied back and their memory emptied so often; FedAvg and PSL: once a round."""

    def share(middles: Ends, parts: Parts, among: Sequence[int]) -> State:
        average = mean((middles[j].module, parts[j].size) for j in among)
        for j in among:
            middles[j].module.load_state_dict(average)
            middles[j].forget()
        return average

    def by_step(task: Turned, n: int, ends: Ends, middle: nn.Sequential, parts: Parts) -> State:
        middles, average = _surrogates(task, middle, parts), middle.state_dict()
        for k in range(longest(parts)):
            active = active_at(k, parts)
            for j in active:
                both_step(ends[j], middles[j], turned(ends[j], middles[j], parts[j].steps[k]), n, task.local)
            average = share(middles, parts, active)
        return average

    def by_epoch(task: Turned, n: int, ends: Ends, middle: nn.Sequential, parts: Parts) -> State:
        middles = _surrogates(task, middle, parts)
        epochs = max(len(p.epochs) for p in parts.values())
        for e in range(epochs):
            for j, p in parts.items():
                for batch in p.epochs[e] if e < len(p.epochs) else []:
                    both_step(ends[j], middles[j], turned(ends[j], middles[j], batch), n, task.local)
            if every == "epoch" and e < epochs - 1:
                share(middles, parts, [j for j, p in parts.items() if e < p.silent])
        return _reported(middles, parts)

    return Scheme(by_step if every == "step" else by_epoch, carry)


def fedavg() -> Scheme:
    """FedAvg: surrogates averaged with the round."""
    return sflv1("round")


def psl() -> Scheme:
    """PSL: the same, but clients keep their ends."""
    return sflv1("round", "keep")


def smofi(alpha: float = -0.1, fuse_clients: bool = False, adaptive: bool = False) -> Scheme:
    """The surrogates' momenta are fused after every step; with `fuse_clients` those of the ends as well."""
    weigh = cosine([]) if adaptive else power(alpha)

    def play(task: Turned, n: int, ends: Ends, middle: nn.Sequential, parts: Parts) -> State:
        middles = _surrogates(task, middle, parts)
        sides = [Fusing(side, parts, weigh) for side in ([middles, ends] if fuse_clients else [middles])]
        for k in range(longest(parts)):
            active = active_at(k, parts)
            for j in active:
                both_step(ends[j], middles[j], turned(ends[j], middles[j], parts[j].steps[k]), n, task.local)
            for side in sides:
                side.after_step(k, active)
        return _reported(middles, parts)

    return Scheme(play)


def sglr(share: float = 0.5) -> Scheme:
    """PSL, where the first clients of the round get one gradient for every row of their A_j.

    Those that were lost count among the first; their rows are not in the mean.
    """

    def play(task: Turned, n: int, ends: Ends, middle: nn.Sequential, parts: Parts) -> State:
        middles, sizes = _surrogates(task, middle, parts), {j: p.size for j, p in parts.items()}
        for k in range(longest(parts)):
            turns = {j: turned(ends[j], middles[j], parts[j].steps[k]) for j in active_at(k, parts)}
            ga = common_gradient({j: turn.ga for j, turn in turns.items()}, sizes, share, list(parts))
            for j, turn in turns.items():
                both_step(ends[j], middles[j], turn, n, task.local, ga[j])
        return _reported(middles, parts)

    return Scheme(play, "keep")


# ---- One middle for all ------------------------------------------------------------------------------------------


def sflv2(
    order: Literal["client", "step"] = "client",
    reset: Literal["step", "round"] = "step",
    carry: Literal["sync", "relay"] = "sync",
) -> Scheme:
    """The middle takes the clients' batches one after another. An A_j whose Z_j stays without answer has gone through
    it, and so through its running statistics. With "relay" a client starts with the ends of the last that reported."""

    def play(task: Turned, n: int, ends: Ends, middle: nn.Sequential, parts: Parts) -> State:
        server, latest = Bent(middle, task.server_rule or task.rule, task.local), None
        turns = [(k, j) for j, p in parts.items() for k in range(len(p.asked))]
        for k, j in turns if order == "client" else sorted(turns):
            p = parts[j]
            if latest is not None and k == 0:
                ends[j] = Bent(latest, task.rule, task.local)
            if reset == "step":
                server.forget()
            turn = turned(ends[j], server, p.asked[k])
            if k < len(p.steps):
                both_step(ends[j], server, turn, n, task.local)
            if carry == "relay" and p.reported:
                latest = ends[j].module
        return server.module.state_dict()

    return Scheme(play, carry)


def ssl() -> Scheme:
    """SSL: client by client, ends and all."""
    return sflv2("client", "round", "relay")


def mergesfl() -> Scheme:
    """The rows of all clients go through the middle as one batch; its loss is sum_j (d_j / D) L_j, D = sum_j d_j over
    the clients that answer, and client j gets its rows of the gradient times D / d_j."""

    def play(task: Turned, n: int, ends: Ends, middle: nn.Sequential, parts: Parts) -> State:
        server = Bent(middle, task.server_rule or task.rule, task.local)
        for k in range(max(len(p.asked) for p in parts.values())):
            batches = {j: p.asked[k] for j, p in parts.items() if k < len(p.asked)}
            a = {j: ends[j].module[:-1](x) for j, (x, _) in batches.items()}
            d = {j: len(rows) for j, rows in a.items()}
            sent = torch.cat([rows.detach() for rows in a.values()]).requires_grad_()
            z = dict(zip(a, torch.split(server.module(sent), list(d.values())), strict=True))
            answers = {j: at_the_end(ends[j], z[j], batches[j][1]) for j in active_at(k, parts)}
            if not answers:
                continue
            D = sum(d[j] for j in answers)
            ga, *of_middle = torch.autograd.grad(
                [z[j] for j in answers],
                [sent, *server.weights.values()],
                grad_outputs=[d[j] / D * gz for j, (gz, _) in answers.items()],
            )
            bent_step([server], [of_middle], n, task.local)
            rows = dict(zip(a, torch.split(ga, list(d.values())), strict=True))
            for j, (_, of_last) in answers.items():
                bent_step([ends[j]], [of_ends(ends[j], a[j], D / d[j] * rows[j], of_last)], n, task.local)
        return server.module.state_dict()

    return Scheme(play, merges=True)


# ---- Rounds ------------------------------------------------------------------------------------------------------

Outcome = tuple[nn.Sequential, list[nn.Sequential]]  # the model of all, and where ends are kept each client's own


def _parts(task: Turned, scheme: Scheme, n: int) -> Parts:
    """Who begins round n, in order: a client that is lost at its first step too."""
    parts: Parts = {}
    for j in range(len(task.clients)) if task.cohorts is None else task.cohorts[n - 1]:
        size = len(task.clients[j][0])
        mine = replace(task, batch_size=min(task.batch_size, size)) if scheme.merges else task
        wanted, p = part(mine, j, None).steps, part(mine, j, task.lost.get((n, j)))
        if wanted:
            last = tuple(wanted[len(p.steps) :][:1]) if (n, j) in task.unanswered else ()
            parts[j] = Heard(p.size, p.epochs, p.silent, p.reported, last)
    return parts


def train(task: Turned, scheme: Scheme) -> Outcome:
    """Rounds of `scheme`, then FedAvgM where `global_beta` is given: on parameters only, and not on what is kept."""
    shared, middle = in_turn(copied(task.model), task.cut)
    kept, met = [shared for _ in task.clients], dict[int, int]()
    m_g = {name: torch.zeros_like(w) for half in (shared, middle) for name, w in half.named_parameters()}
    for n in range(1, task.rounds + 1):
        parts = _parts(task, scheme, n)
        start = {name: value.clone() for half in (shared, middle) for name, value in half.state_dict().items()}
        ends = {j: Bent(kept[j] if scheme.carry == "keep" else shared, task.rule, task.local) for j in parts}
        W = dict(scheme.play(task, n, ends, middle, parts))
        reported = [j for j, p in parts.items() if p.reported]
        met |= {j: min(task.batch_size, parts[j].size) if scheme.merges else parts[j].size for j in reported}
        if scheme.carry == "sync":
            W |= mean((ends[j].module, met[j]) for j in reported)
        elif scheme.carry == "relay":
            W |= ends[reported[-1]].module.state_dict()
        for j in reported:
            kept[j] = ends[j].module
        if task.global_beta is not None:
            for name in m_g.keys() & W.keys():
                m_g[name] = task.global_beta * m_g[name] + (start[name] - W[name])
                W[name] = start[name] - m_g[name]
        for half in (shared, middle):
            half.load_state_dict({name: W.get(name, value) for name, value in half.state_dict().items()})
    if scheme.carry != "keep":
        return in_order(shared, middle), []
    average = copied(shared)  # which those have who never took part
    average.load_state_dict(mean((kept[j], size) for j, size in sorted(met.items())))
    return in_order(average, middle), [in_order(mine, middle) for mine in kept]


# ---- Rounds of one batch per client: memory and place in the data stay -------------------------------------------

RoundOf = Callable[[World, int, Sequence[int]], None]


def onward_surrogates(share: float | None = None) -> RoundOf:
    """PSL, and with a share SGLR; the i-th client of a round has the i-th surrogate and its memory."""

    def play(world: World, n: int, J: Sequence[int]) -> None:
        people, middles = {j: world.people[j] for j in J}, {j: world.slot(i) for i, j in enumerate(J)}
        turns = {j: turned(people[j].front, middles[j], people[j].next_batch()) for j in J}
        ga = {j: turn.ga for j, turn in turns.items()}
        if share is not None:
            ga = common_gradient(ga, {j: person.size for j, person in people.items()}, share, list(J))
        for j, turn in turns.items():
            both_step(people[j].front, middles[j], turn, n, None, ga[j])
        world.server.module.load_state_dict(mean((middles[j].module, people[j].size) for j in J))

    return play


def onward_sequence(relay: bool) -> RoundOf:
    """SFLV2, and with `relay` SSL; one memory for the middle, each client's own for its ends."""

    def play(world: World, n: int, J: Sequence[int]) -> None:
        for j in J:
            ends = world.people[j].front
            if relay and world.latest:
                ends.module.load_state_dict(world.latest)
            turn = turned(ends, world.server, world.people[j].next_batch())
            both_step(ends, world.server, turn, n, None)
            world.latest = {name: value.clone() for name, value in ends.module.state_dict().items()}
        if not relay:
            synchronise(world, J)

    return play


def train_onward(task: Turned, scheme: RoundOf, relay: bool = False) -> Outcome:
    """The joint model has the mean ends of those who ever took part, or with `relay` those handed on last."""
    first, middle = in_turn(copied(task.model), task.cut)
    passes = {j: one_pass(task, data) for j, data in enumerate(task.clients)}
    people = {
        j: Person(Bent(first, task.rule), len(task.clients[j][0]), batches) for j, batches in passes.items() if batches
    }
    world = World(task, people, Bent(middle, task.server_rule or task.rule))
    for n in range(1, task.rounds + 1):
        scheme(world, n, [j for j in (task.cohorts[n - 1] if task.cohorts else people) if j in people])
    own = [people[j].front.module if j in people else first for j in range(len(task.clients))]
    met = [(person.front.module, person.size) for person in people.values() if person.participations]
    joint = copied(first)
    joint.load_state_dict(world.latest if relay else mean(met))
    middle = world.server.module
    return in_order(joint, middle), [in_order(mine, middle) for mine in own]
