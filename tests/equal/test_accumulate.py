"""Gradient accumulation: a step on several micro-batches, whose gradients are averaged over all their samples.

Against the naive restatement, with BatchNorm in both halves (so that a micro-batch is not a part of a batch), and,
without BatchNorm, against the same training with one large batch. In float64, to 1e-9.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cutlayer as cl
from cutlayer.data.schedule import BatchSchedule
from cutlayer.errors import ContractError
from tests.clients.faulty import Fault
from tests.equal import naive
from tests.equal.naive import Task, difference, small_clients, small_model
from tests.equal.test_lost import disturbed
from tests.equal.test_schemes import EXACT, OPTIMIZERS, SCHEMES, arguments

TIMES, MICRO = 3, 4
SIZES = (12, 26, 38, 75, 3)  # whole steps of twelve: 1, 2, 3, 6, 0
KEPT = (12, 28, 44, 75, 4)  # rests of 0, 4, 8, 3 and 4 rows: whole and incomplete micro-batches, one or two of them
KINDS = ("sflv1-round", "sflv1-epoch", "sflv1-step", "sflv2-client-step", "sflv2-client-never", "smofi")


def task_of(optimizer: str, **changes: Any) -> Task:
    """A task whose batch is a whole step; its rule takes it in micro-batches."""
    rule = dataclasses.replace(OPTIMIZERS[optimizer][1], micro=MICRO)
    given = {"model": small_model(), "clients": small_clients(SIZES), "cut": 1, "rule": rule, "rounds": 2}
    return Task(**{**given, "batch_size": TIMES * MICRO, **changes})


def in_micro_batches(task: Task, scheme: Any, optimizer: Any) -> dict[str, Any]:
    return arguments(task, scheme, optimizer) | {"batch_size": MICRO, "accumulate": TIMES}


@pytest.mark.parametrize(("optimizer", "last"), [("sgdm", "keep"), ("adam", "drop"), ("lion", "drop")])
@pytest.mark.parametrize("scheme", KINDS)
def test_equals_the_naive_restatement(scheme: str, optimizer: str, last: str) -> None:
    given, restated = SCHEMES[scheme]
    clients = small_clients(SIZES if last == "drop" else KEPT)
    task = task_of(optimizer, last_batch=last, clients=clients, local_epochs=2 if scheme == "sflv1-epoch" else 1)
    ours = in_micro_batches(task, given, OPTIMIZERS[optimizer][0])
    expected = naive.train(task, restated())
    for backend in ("loop", "stacked") if optimizer == "sgdm" else ("loop",):
        assert difference(cl.train(task.model, task.clients, **ours, backend=backend).model, expected) <= EXACT
    if optimizer == "sgdm":
        whole = cl.train(task.model, task.clients, **arguments(task, given, OPTIMIZERS[optimizer][0])).model
        assert difference(whole, expected) > 1e-5, "BatchNorm sees micro-batches"


@pytest.mark.parametrize("scheme", ["smofi", "sflv1-epoch", "sflv1-step", "sflv2-client-step"])
def test_a_client_lost_in_the_middle_of_a_step(scheme: str) -> None:
    """It never takes that step: its last whole step is what it leaves behind."""
    given, restated = SCHEMES[scheme]
    task = task_of("sgdm", global_beta=0.3)
    for micro in (1, 4, 8):  # of client 3: the second one of its step 0, 1 and 2
        lost = dataclasses.replace(task, lost={(2, 3): micro // TIMES})
        run, cohort = disturbed(task, given, OPTIMIZERS["sgdm"][0], [Fault("drop", 2, 3, micro)])
        faulty = cl.rounds(task.model, task.clients, **in_micro_batches(task, given, OPTIMIZERS["sgdm"][0]))
        run = cl.Run(run.model, dataclasses.replace(faulty.setup, cohort=cohort), run.state, None)
        assert len(list(run)) == task.rounds and not cohort.unfired
        expected = naive.train(lost, restated())
        if scheme.startswith("sflv2") or micro < TIMES:  # its micro-batches have moved the server's running statistics
            assert parameters_differ(run.model, expected) <= EXACT
        else:
            assert difference(run.model, expected) <= EXACT


def parameters_differ(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


# ---- one large batch -----------------------------------------------------------------------------------------------


def net() -> nn.Sequential:
    torch.default_generator.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).double()


ALIKE: dict[str, dict[str, Any]] = {
    "smofi": {},
    "smofi, kept": {"last_batch": "keep"},
    "smofi, adam, labels stay": {"labels": "stay", "optimizer": cl.Adam(lr=0.01)},
    "smofi, both sides fused": {"scheme": cl.SMoFi(fuse_clients=True)},
    "smofi, adaptive, steps": {"scheme": cl.SMoFi(adaptive=True), "local_steps": 4},
    "smofi, joint clipping": {"clip": cl.Clip(0.3, "joint")},
    "smofi, fednar and fedprox": {"local": (cl.FedProx(0.1), cl.FedNAR(0.3, "half"))},
    "fedavg, slowmo": {"scheme": "fedavg", "update": cl.SlowMo()},
    "fedavg, fednag": {"scheme": "fedavg", "update": cl.FedNAG(), "local_steps": 4},
    "mergesfl": {"scheme": "mergesfl", "local_steps": 3},
    "mergesfl, labels stay": {"scheme": "mergesfl", "labels": "stay", "local_steps": 3, "last_batch": "keep"},
    "psl, onward": {"scheme": "psl", "protocol": "cyclesl", "local_steps": 2, "optimizer": cl.Adam(lr=0.01)},
    "psl, onward, kept": {"scheme": "psl", "protocol": "cyclesl", "local_steps": 2, "last_batch": "keep"},
    "ssl": {"scheme": "ssl"},
    "sflv2": {"scheme": cl.SFLV2(reset="round"), "clip": 0.3},
    "small clients": {"small_client": "one_batch", "update": cl.FedAvgM(0.3)},
}


@pytest.mark.parametrize("more", ALIKE.values(), ids=ALIKE)
def test_equals_one_large_batch(more: dict[str, Any]) -> None:
    given: dict[str, Any] = {"cut": 1, "rounds": 2, "local_epochs": 1, "seed": 5, "participation": 3}
    sizes = (12, 28, 44, 75, 14) if more.get("scheme") == "mergesfl" else SIZES
    clients, test = small_clients(sizes), small_clients((20,))[0]
    large = cl.train(net(), clients, test=test, batch_size=TIMES * MICRO, **given | more)
    for backend in ("loop", "stacked") if "scheme" not in more else ("loop",):
        small = cl.train(net(), clients, test=test, batch_size=MICRO, accumulate=TIMES, backend=backend, **given | more)
        assert parameters_differ(small.model, large.model) <= EXACT
        for ours, theirs in zip(small.history, large.history, strict=True):
            same = ("steps", "samples", "client_steps", "client_samples", "participants", "lr", "bytes_up", "clip_rate")
            assert [getattr(ours, name) for name in same] == [getattr(theirs, name) for name in same]
            assert ours.sim_seconds == pytest.approx(theirs.sim_seconds)
            assert ours.drift_server == pytest.approx(theirs.drift_server, abs=1e-9)


def test_the_cycle_trains_its_server_on_every_micro_batch_and_its_clients_on_all_of_a_step() -> None:
    """One client, plain SGD, by hand."""
    x, y = small_clients((12,))[0]
    sgd = cl.SGD(lr=0.1, momentum=0.0, weight_decay=0.0)
    ours = cl.train(
        net(), [(x, y)], cut=1, scheme="cyclesfl", optimizer=sgd, rounds=1, batch_size=2, accumulate=3, local_epochs=1,
        shuffle=False,
    ).model  # fmt: skip
    model = net()
    front, back = model[:2], model[2:]

    def down(half: nn.Module, gradients: list[Tensor]) -> None:
        with torch.no_grad():
            for p, g in zip(half.parameters(), gradients, strict=True):
                p -= 0.1 * g

    for step in range(2):
        sums = [torch.zeros_like(p) for p in front.parameters()]
        for k in range(3):
            part = slice(6 * step + 2 * k, 6 * step + 2 * k + 2)
            a = front(x[part])
            loss = functional.cross_entropy(back(a.detach()), y[part])
            down(back, list(torch.autograd.grad(loss, list(back.parameters()))))
            mine = torch.autograd.grad(functional.cross_entropy(back(a), y[part]), list(front.parameters()))
            sums = [s + g / 3 for s, g in zip(sums, mine, strict=True)]
        down(front, sums)
    assert difference(ours, model) <= EXACT


LR, PLAIN = 0.1, cl.SGD(lr=0.1, momentum=0.0, weight_decay=0.0)


def gradients(loss: Tensor, half: nn.Module, n: int) -> list[Tensor]:
    """n times the gradient of a half."""
    return [n * g for g in torch.autograd.grad(loss, list(half.parameters()), retain_graph=True)]


def stepped(half: nn.Module, sums: list[list[Tensor]], n: int) -> None:
    """A step on the mean of n samples."""
    with torch.no_grad():
        for p, *same in zip(half.parameters(), *sums, strict=True):
            p -= LR * sum(same) / n


def test_one_server_that_serves_micro_batches_in_turn() -> None:
    """SFLV2 step by step: a client's later micro-batches see a server that others have moved."""
    clients = small_clients((12, 12))
    given: dict[str, Any] = {"batch_size": 2, "accumulate": 3, "local_epochs": 1, "rounds": 1, "shuffle": False}
    ours = cl.train(net(), clients, cut=1, scheme=cl.SFLV2(order="step"), optimizer=PLAIN, **given).model
    fronts, back = [net()[:2] for _ in clients], net()[2:]
    for step in range(2):
        sums: list[Any] = [([], []) for _ in clients]
        for k in range(3):
            part = slice(6 * step + 2 * k, 6 * step + 2 * k + 2)
            for front, (mine, its), (x, y) in zip(fronts, sums, clients, strict=True):
                loss = functional.cross_entropy(back(front(x[part])), y[part])
                mine.append(gradients(loss, front, 2))
                its.append(gradients(loss, back, 2))
                if k == 2:
                    stepped(back, its, 6)
                    stepped(front, mine, 6)
    mean = [torch.stack([a, b]).mean(0) for a, b in zip(*(f.parameters() for f in fronts), strict=True)]
    pairs = zip(ours.parameters(), [*mean, *back.parameters()], strict=True)
    assert max(float((one - other).detach().abs().max()) for one, other in pairs) <= EXACT


def test_averaged_gradients_of_micro_batches() -> None:
    """SGLR: every sample of a micro-batch gets the mean gradient at the cut of all clients' micro-batches."""
    clients = small_clients((6, 6))
    given: dict[str, Any] = {"batch_size": 2, "accumulate": 3, "local_epochs": 1, "rounds": 1, "shuffle": False}
    ours = cl.train(net(), clients, cut=1, scheme=cl.SGLR(share=1.0), optimizer=PLAIN, **given)
    fronts, backs = [net()[:2] for _ in clients], [net()[2:] for _ in clients]
    mine: list[Any] = [[] for _ in clients]
    its: list[Any] = [[] for _ in clients]
    for k in range(3):
        part, a, G = slice(2 * k, 2 * k + 2), [], []
        for j, (x, y) in enumerate(clients):
            a.append(fronts[j](x[part]))
            loss = functional.cross_entropy(backs[j](a[j]), y[part])
            its[j].append(gradients(loss, backs[j], 2))
            G.append(torch.autograd.grad(loss, a[j], retain_graph=True)[0])
        g_bar = torch.cat(G).mean(0)  # of clients of one size
        for j, front in enumerate(fronts):
            mine[j].append([2 * g for g in torch.autograd.grad(a[j], list(front.parameters()), g_bar.expand_as(a[j]))])
    for j in range(2):
        stepped(fronts[j], mine[j], 6)
        stepped(backs[j], its[j], 6)
    for j, front in enumerate(fronts):
        mean = [torch.stack([a, b]).mean(0) for a, b in zip(*(b.parameters() for b in backs), strict=True)]
        pairs = zip(ours.clients[j].parameters(), [*front.parameters(), *mean], strict=True)
        assert max(float((one - other).detach().abs().max()) for one, other in pairs) <= EXACT


def test_the_batches_of_a_schedule() -> None:
    schedule = BatchSchedule(batch_size=2, epochs=1, shuffle=False, last_batch="keep", accumulate=3)
    found = [(batch.rows.tolist(), batch.last) for batch in schedule.batches(9, 1, 0)]
    assert found == [([0, 1], False), ([2, 3], False), ([4, 5], True), ([6, 7], False), ([8], True)]
    assert (schedule.epochs_of(9), [schedule.pieces(9, k) for k in range(3)]) == ([2], [3, 2, 3])
    assert (schedule.smallest(9), schedule.smallest(10), schedule.smallest(12)) == (1, 2, 2)


def test_bad_numbers_are_refused() -> None:
    clients = small_clients((12,))
    with pytest.raises(ContractError, match="accumulate = 0: expected a whole number, at least 1"):
        cl.train(net(), clients, cut=1, accumulate=0)
    words = (
        "batch_size = 5: the largest client has 12 samples, so none has a full step of 3 batches; expected at most 4"
    )
    with pytest.raises(ContractError, match=words):
        cl.train(net(), clients, cut=1, batch_size=5, accumulate=3)
