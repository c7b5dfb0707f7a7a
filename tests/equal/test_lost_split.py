"""A client lost in the middle of a round, where fronts are kept, merged, cycled or handed on, and where clients answer
more than their steps: the squared norm of FedNAR, the momentum of SMoFi with `fuse_clients`.

Who is silent has finished for the round. A front it keeps stays what it was; one that is handed on goes on from the
last client that reported.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.nn import functional

import cutlayer as cl
from tests.clients.faulty import REPORT, Fault, FaultyCohort
from tests.equal import naive
from tests.equal.compare import curved_model
from tests.equal.naive import Half, Parts, State, Task, copied, difference, part
from tests.equal.naive_local import Bent, in_one, in_two
from tests.equal.naive_split import Cycle, client_step, common_gradient, frozen_gradient, server_phase
from tests.equal.test_lost import LOSSES, REPORTS, Lost, gone, losing
from tests.equal.test_options import Fusing, power
from tests.equal.test_schemes import EXACT, OPTIMIZERS, arguments, task_of

NAR: dict[str, Any] = {"local": cl.FedNAR(max_norm=0.5)}
ALONE: dict[str, Any] = {**NAR, "backend": "loop"}  # in a stack the others' bits depend on who is in it


def disturbed(task: Task, scheme: Any, faults: Sequence[Fault], reorder: int | None = None, **more: Any) -> cl.Run:
    """The library's run of a task to its end; it is checked that every fault happened."""
    ours = next(ours for ours, rule in OPTIMIZERS.values() if rule == task.rule)
    plain = cl.rounds(task.model, task.clients, **arguments(task, scheme, ours) | more)
    cohort = FaultyCohort(plain.setup.cohort, faults, reorder)
    run = cl.Run(copied(task.model), dataclasses.replace(plain.setup, cohort=cohort), plain.state, None)
    records = list(run)
    assert len(records) == task.rounds and cohort.unfired == []
    lost = {fault.client for fault in faults if fault.kind in ("drop", "delay")}
    assert all(record.lost == len(lost) and not lost & set(record.clients) for record in records[1:2])
    return run


def whole(scheme: str, optimizer: str = "sgdm", **changes: Any) -> Task:
    """A task in which nobody is lost; for SGLR with a model whose mean gradient at the cut is not zero."""
    model = {"model": curved_model()} if scheme == "sglr" else {}
    return task_of(OPTIMIZERS[optimizer][1], **model | changes)


# ---- Restatements ------------------------------------------------------------------------------------------------

Outcome = tuple[nn.Sequential, list[nn.Sequential]]  # the model of all, and each client's own


def opened(task: Task, n: int, batch_size: Callable[[int], int] | None = None) -> Parts:
    """Who takes at least one step in round n. `batch_size`: of each client, where it is not one for all."""
    parts = {}
    for j, (x, _) in enumerate(task.clients):
        mine = task if batch_size is None else dataclasses.replace(task, batch_size=batch_size(len(x)))
        parts[j] = part(mine, j, task.lost.get((n, j)))
    return {j: p for j, p in parts.items() if p.steps}


def reported(halves: dict[int, Half], parts: Parts) -> State:
    return naive.mean((halves[j].module, p.size) for j, p in parts.items() if p.reported)


def keeping(share: float | None) -> Callable[[Task], Outcome]:
    """PSL, and with a share SGLR: the first clients of the round, lost or not, are those with one common gradient."""

    def train(task: Task) -> Outcome:
        first, back = in_two(copied(task.model), task.cut)
        kept = [copied(first) for _ in task.clients]
        met: dict[int, int] = {}
        begin = [j for j in range(len(task.clients)) if part(task, j, None).steps]
        for n in range(1, task.rounds + 1):
            parts = opened(task, n)
            fronts, backs = ({j: Bent(one(j), task.rule) for j in parts} for one in (kept.__getitem__, lambda _: back))
            for k in range(max(len(p.steps) for p in parts.values())):
                active = [j for j, p in parts.items() if k < len(p.steps)]
                x = {j: fronts[j].module(parts[j].steps[k][0]) for j in active}
                gx = {}
                for j in active:
                    leaf = x[j].detach().clone().requires_grad_()
                    loss = functional.cross_entropy(backs[j].module(leaf), parts[j].steps[k][1])
                    gx[j], *of_back = torch.autograd.grad(loss, [leaf, *backs[j].weights.values()])
                    backs[j].step(of_back, n)
                if share is not None:
                    gx = common_gradient(gx, {j: p.size for j, p in parts.items()}, share, begin)
                for j in active:
                    client_step(fronts[j], x[j], gx[j], n)
            back.load_state_dict(reported({**backs}, parts))
            for j in (j for j, p in parts.items() if p.reported):
                kept[j], met[j] = fronts[j].module, parts[j].size
        average = copied(first)
        average.load_state_dict(naive.mean((kept[j], size) for j, size in sorted(met.items())))
        return in_one(average, back), [in_one(mine, back) for mine in kept]

    return train


def mergesfl(task: Task) -> Outcome:
    """The rows that arrive at a step are one batch; fronts count by their batch size."""
    model = copied(task.model)
    for n in range(1, task.rounds + 1):
        front, back = in_two(model, task.cut)
        parts = opened(task, n, lambda size: min(task.batch_size, size))
        fronts, server = {j: Bent(front, task.rule) for j in parts}, Bent(back, task.rule)
        for k in range(max(len(p.steps) for p in parts.values())):
            active = [j for j, p in parts.items() if k < len(p.steps)]
            x = {j: fronts[j].module(parts[j].steps[k][0]) for j in active}
            leaf = torch.cat([x[j].detach() for j in active]).requires_grad_()
            labels = torch.cat([parts[j].steps[k][1] for j in active])
            loss = functional.cross_entropy(server.module(leaf), labels)
            gx, *of_back = torch.autograd.grad(loss, [leaf, *server.weights.values()])
            server.step(of_back, n)
            for j, rows in zip(active, torch.split(gx, [len(x[j]) for j in active]), strict=True):
                client_step(fronts[j], x[j], rows * len(leaf) / len(x[j]), n)
        d = {j: min(task.batch_size, p.size) for j, p in parts.items() if p.reported}
        model.load_state_dict(
            {**naive.mean((fronts[j].module, d_j) for j, d_j in d.items()), **server.module.state_dict()}
        )
    return model, []


def cyclesfl(task: Task) -> Outcome:
    """The server learns from the features that arrive, and judges those; what it has learned from a client stays."""
    model, cycle = copied(task.model), Cycle()
    for n in range(1, task.rounds + 1):
        front, back = in_two(model, task.cut)
        parts = opened(task, n)
        fronts, server = {j: Bent(front, task.rule) for j in parts}, Bent(back, task.rule)
        for k in range(max(len(p.steps) for p in parts.values())):
            batches = {j: p.steps[k] for j, p in parts.items() if k < len(p.steps)}
            x = {j: fronts[j].module(inputs) for j, (inputs, _) in batches.items()}
            sent = [(x[j], y, parts[j].size) for j, (_, y) in batches.items()]
            server_phase(server, cycle, sent, task.batch_size, n)
            gx = {j: frozen_gradient(server, cycle, x[j], y) for j, (_, y) in batches.items()}
            for j in batches:
                client_step(fronts[j], x[j], gx[j], n)
        model.load_state_dict({**reported({**fronts}, parts), **server.module.state_dict()})
    return model, []


def relayed(cycle: Cycle | None) -> Callable[[Task], Outcome]:
    """SSL, CycleSSL: the server keeps a lost client's steps, the next client gets the front of the one before it."""

    def train(task: Task) -> Outcome:
        model = copied(task.model)
        for n in range(1, task.rounds + 1):
            latest, back = in_two(model, task.cut)
            server = Bent(back, task.rule)
            for p in opened(task, n).values():
                mine = Bent(latest, task.rule)
                for batch in p.steps:
                    if cycle is None:
                        naive.split_step(mine, server, batch, n)
                    else:
                        x, y = mine.module(batch[0]), batch[1]
                        server_phase(server, cycle, [(x, y, p.size)], len(x), n)
                        client_step(mine, x, frozen_gradient(server, cycle, x, y), n)
                latest = mine.module if p.reported else latest
            model.load_state_dict({**latest.state_dict(), **server.module.state_dict()})
        return model, []

    return train


LOSSY: dict[str, Callable[[Task], Outcome]] = {
    "psl": keeping(None),
    "sglr": keeping(0.5),
    "mergesfl": mergesfl,
    "cyclesfl": cyclesfl,
    "ssl": relayed(None),
    "cyclessl": relayed(Cycle()),
}


def check(task: Task, scheme: str, faults: Sequence[Fault]) -> None:
    run = disturbed(task, scheme, faults)
    model, own = LOSSY[scheme](task)
    assert difference(run.model, model) <= EXACT
    assert len(run.clients) == len(own)
    assert all(difference(run.clients[j], one) <= EXACT for j, one in enumerate(own))


# ---- A step that does not arrive ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("scheme", LOSSY)
def test_lost_client(scheme: str, lost: Lost) -> None:
    check(losing(whole(scheme), lost), scheme, gone(lost))


@pytest.mark.parametrize("optimizer", ["nag", "adam"])
@pytest.mark.parametrize("scheme", LOSSY)
def test_lost_client_with_other_optimizers(scheme: str, optimizer: str) -> None:
    lost = LOSSES["two clients"]
    check(losing(whole(scheme, optimizer), lost), scheme, gone(lost, "delay"))


@pytest.mark.parametrize("scheme", LOSSY)
def test_lost_report(scheme: str) -> None:
    faults = [Fault("drop", 2, client, REPORT) for client in REPORTS]
    check(losing(whole(scheme), REPORTS), scheme, faults)


@pytest.mark.parametrize("scheme", LOSSY)
def test_the_last_of_the_turn_is_lost(scheme: str) -> None:
    """What is handed on, or averaged, is then the last front that was reported."""
    lost = {3: 9}
    check(losing(whole(scheme), lost), scheme, gone(lost))


@pytest.mark.parametrize("scheme", LOSSY)
def test_doubled_and_reordered_messages_change_nothing(scheme: str) -> None:
    task = whole(scheme, "adam", rounds=2)
    doubled = [Fault("duplicate", 1, 0, 0), Fault("repeat", 2, 1, 2), Fault("repeat", 2, 3, 9)]
    undisturbed = disturbed(task, scheme, [], backend="loop").model  # in a stack bits depend on its order
    assert difference(disturbed(task, scheme, doubled, backend="loop").model, undisturbed) == 0
    assert difference(disturbed(task, scheme, doubled, reorder=5, backend="loop").model, undisturbed) == 0


@pytest.mark.parametrize("scheme", LOSSY)
def test_a_round_without_a_client_left_leaves_no_trace(scheme: str) -> None:
    everybody = {0: 1, 1: 1, 2: 4, 3: 2} | ({4: 0} if scheme == "mergesfl" else {})
    task = task_of(OPTIMIZERS["sgdm"][1])
    plain = cl.rounds(task.model, task.clients, **arguments(task, scheme, OPTIMIZERS["sgdm"][0]))
    setup = dataclasses.replace(plain.setup, cohort=FaultyCohort(plain.setup.cohort, gone(everybody)))
    run = cl.Run(copied(task.model), setup, plain.state, None)
    next(run)
    before = run.state
    with pytest.raises(cl.RoundAbandoned):
        next(run)
    assert run.state is before
    alone = disturbed(dataclasses.replace(task, rounds=1), scheme, [])
    assert difference(run.model, alone.model) == 0


def test_a_lost_client_goes_on_with_the_front_it_had() -> None:
    """Its next round begins where its last confirmed round ended, and it is not counted as having taken part."""
    task = losing(task_of(OPTIMIZERS["sgdm"][1], rounds=2), {2: 4})
    run = disturbed(task, "psl", gone({2: 4}))
    before = disturbed(dataclasses.replace(task, rounds=1), "psl", [])
    front = run.state.front(2), before.state.front(2)
    assert front[0] is not None and front[1] is not None and torch.equal(front[0].w, front[1].w)
    assert run.state.participations == {0: 2, 1: 2, 2: 1, 3: 2}


# ---- An answer that does not arrive ------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [{2: 2}, {2: 0}, {3: 9}, {1: 1, 3: 6}], ids=str)
@pytest.mark.parametrize(("optimizer", "kind"), [("sgdm", "drop"), ("adam", "delay")])
@pytest.mark.parametrize("scheme", ["fedavg", "sflv1", "smofi", "psl", cl.SFLV1(every="step")], ids=str)
def test_silent_at_its_square(scheme: Any, optimizer: str, lost: Lost, kind: Literal["drop", "delay"]) -> None:
    """Without the client's part of the norm the server does not take the step: as if the step had not arrived."""
    task = task_of(OPTIMIZERS[optimizer][1], rounds=2)
    faults = [dataclasses.replace(fault, what="square") for fault in gone(lost, kind)]
    ours = disturbed(task, scheme, faults, **ALONE).model
    assert difference(ours, disturbed(task, scheme, gone(lost), **ALONE).model) == 0
    assert difference(ours, _undisturbed(scheme, optimizer)) > 1e-5


@functools.cache
def _undisturbed(scheme: Any, optimizer: str) -> nn.Module:
    return disturbed(task_of(OPTIMIZERS[optimizer][1], rounds=2), scheme, [], **ALONE).model


@pytest.mark.parametrize("lost", [{2: 2}, {2: 0}, {1: 1, 3: 6}], ids=str)
@pytest.mark.parametrize("scheme", ["sflv2", cl.SFLV2(order="step", reset="round"), "ssl"], ids=str)
def test_silent_at_its_square_with_one_server_model(scheme: Any, lost: Lost) -> None:
    """The same for the weights; BatchNorm has seen the rows, which did arrive."""
    task = task_of(OPTIMIZERS["sgdm"][1], rounds=2)
    faults = [dataclasses.replace(fault, what="square") for fault in gone(lost)]
    ours, expected = (disturbed(task, scheme, given, **NAR).model for given in (faults, gone(lost)))
    named = dict(expected.named_parameters())
    assert all(torch.equal(w, named[name]) for name, w in ours.named_parameters())


def test_doubled_squares_change_nothing() -> None:
    task = task_of(OPTIMIZERS["sgdm"][1])
    doubled = [Fault("duplicate", 1, 0, 0, "square"), Fault("repeat", 2, 1, 2, "square")]
    undisturbed = disturbed(task, "smofi", [], **NAR).model
    assert difference(disturbed(task, "smofi", doubled, reorder=5, **NAR).model, undisturbed) == 0


def fusing(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
    """SMoFi that fuses fronts too; a client whose momentum is late has taken that step, but its front's
    momentum of that step is not in the average any more: its last one ages instead."""
    fronts, backs = {j: Half(front, task.rule) for j in parts}, {j: Half(back, task.rule) for j in parts}
    heard = {j: dataclasses.replace(p, epochs=[p.steps[: len(p.steps) - (not p.reported)]]) for j, p in parts.items()}
    server, clients = Fusing(backs, parts, power(-0.1)), Fusing(fronts, heard, power(-0.1))
    for k in range(max(len(p.steps) for p in parts.values())):
        active = [j for j, p in parts.items() if k < len(p.steps)]
        for j in active:
            naive.split_step(fronts[j], backs[j], parts[j].steps[k], n)
        server.after_step(k, active)
        if answered := [j for j in active if k < len(heard[j].steps)]:
            clients.after_step(k, answered)
    return {**reported(fronts, parts), **reported(backs, parts)}


@pytest.mark.parametrize("lost", [{2: 2}, {2: 1}, {3: 10}, {1: 1, 3: 7}], ids=str)
@pytest.mark.parametrize(("optimizer", "kind"), [("sgdm", "drop"), ("nag", "delay"), ("adam", "delay")])
def test_silent_at_its_momentum(optimizer: str, lost: Lost, kind: Literal["drop", "delay"]) -> None:
    """`lost`: the number of steps after which the momentum does not arrive."""
    task = losing(task_of(OPTIMIZERS[optimizer][1]), lost)
    faults = [Fault(kind, 2, client, step, "momentum") for client, step in lost.items()]
    ours = disturbed(task, cl.SMoFi(fuse_clients=True), faults).model
    assert difference(ours, naive.train(task, fusing)) <= EXACT


def test_doubled_momenta_change_nothing() -> None:
    task, scheme = task_of(OPTIMIZERS["adam"][1]), cl.SMoFi(fuse_clients=True)
    doubled = [Fault("duplicate", 1, 0, 1, "momentum"), Fault("repeat", 2, 1, 2, "momentum")]
    undisturbed = disturbed(task, scheme, []).model
    assert difference(disturbed(task, scheme, doubled, reorder=5).model, undisturbed) == 0
