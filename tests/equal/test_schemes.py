"""Every scheme, with every optimizer, against its naive restatement: parameters and buffers, in float64 to 1e-9."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import cutlayer as cl
from tests.equal import compare, naive
from tests.equal.compare import EXACT
from tests.equal.naive import Rule, Scheme, Task, copied, difference, small_clients, small_model

CUT = 1
OPTIMIZERS = {
    "sgdm": compare.OPTIMIZERS["sgd"],
    **{k: compare.OPTIMIZERS[k] for k in ("nag", "adam", "adamw")},
    "lion": compare.LION,
}
# The naive side is made anew for each run: SFLV2(reset="never") remembers.
SCHEMES: dict[str, tuple[Any, Callable[[], Scheme]]] = {
    "fedavg": ("fedavg", lambda: naive.fedavg),
    "sflv1-default": ("sflv1", lambda: naive.sflv1("epoch")),
    "sflv1-round": (cl.SFLV1(every="round"), lambda: naive.sflv1("round")),
    "sflv1-epoch": (cl.SFLV1(every="epoch"), lambda: naive.sflv1("epoch")),
    "sflv1-step": (cl.SFLV1(every="step"), lambda: naive.sflv1("step")),
    "sflv2-default": ("sflv2", lambda: naive.sflv2("client", "step")),
    "sflv2-client-step": (cl.SFLV2(order="client", reset="step"), lambda: naive.sflv2("client", "step")),
    "sflv2-client-client": (cl.SFLV2(order="client", reset="client"), lambda: naive.sflv2("client", "client")),
    "sflv2-client-round": (cl.SFLV2(order="client", reset="round"), lambda: naive.sflv2("client", "round")),
    "sflv2-client-never": (cl.SFLV2(order="client", reset="never"), lambda: naive.sflv2("client", "never")),
    "sflv2-step-step": (cl.SFLV2(order="step", reset="step"), lambda: naive.sflv2("step", "step")),
    "sflv2-step-client": (cl.SFLV2(order="step", reset="client"), lambda: naive.sflv2("step", "client")),
    "sflv2-step-round": (cl.SFLV2(order="step", reset="round"), lambda: naive.sflv2("step", "round")),
    "sflv2-step-never": (cl.SFLV2(order="step", reset="never"), lambda: naive.sflv2("step", "never")),
    "smofi": ("smofi", naive.smofi),
}
DEFAULTS = ("sflv1-default", "sflv2-default")  # the same computation as another name
MAIN = ("fedavg", "sflv1-epoch", "sflv1-step", "sflv2-client-step", "sflv2-client-never", "sflv2-step-round", "smofi")


def arguments(task: Task, scheme: Any, optimizer: Any, server_optimizer: Any = None) -> dict[str, Any]:
    """A task in the library's words."""
    return {
        "cut": task.cut,
        "scheme": scheme,
        "update": None if task.global_beta is None else cl.FedAvgM(beta=task.global_beta),
        "optimizer": optimizer,
        "server_optimizer": server_optimizer,
        "rounds": task.rounds,
        "participation": 1.0,
        "batch_size": task.batch_size,
        "local_epochs": task.local_epochs,
        "local_steps": task.local_steps,
        "last_batch": task.last_batch,
        "small_client": None if scheme == "mergesfl" else task.small_client,  # it skips nobody
        "shuffle": False,
    }


def library(task: Task, scheme: Any, optimizer: Any, server_optimizer: Any = None) -> nn.Module:
    """The library's answer to a task."""
    before = copied(task.model)
    result = cl.train(task.model, task.clients, **arguments(task, scheme, optimizer, server_optimizer))
    assert difference(task.model, before) == 0, "train must not touch the caller's model"
    assert [record.n for record in result.history] == list(range(1, task.rounds + 1))
    return result.model


def task_of(rule: Rule, **changes: Any) -> Task:
    """Five clients with 1, 2, 3, 5 and 0 full batches, and a cut in the middle of four blocks."""
    return Task(**{"model": small_model(), "clients": small_clients(), "cut": CUT, "rule": rule, **changes})


def check(scheme: str, optimizer: str, **changes: Any) -> None:
    given, restated = SCHEMES[scheme]
    ours, rule = OPTIMIZERS[optimizer]
    task = task_of(rule, **{"rounds": 2, **changes})
    assert difference(library(task, given, ours), naive.train(task, restated())) <= EXACT


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name not in DEFAULTS])
def test_scheme(scheme: str, optimizer: str) -> None:
    check(scheme, optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scheme", MAIN)
def test_scheme_with_fedavgm(scheme: str, optimizer: str) -> None:
    check(scheme, optimizer, global_beta=0.3)


@pytest.mark.parametrize("scheme", DEFAULTS)
def test_default_of_a_name(scheme: str) -> None:
    check(scheme, "sgdm")


FLAGS: list[dict[str, Any]] = [
    {"alpha": -1.0},
    {"stale_offset": 0},
    {"hist_norm": "weights"},
    {"rebias_history": True},
    {"rebias_history": True, "hist_norm": "weights", "stale_offset": 0, "alpha": -0.5},
]


@pytest.mark.parametrize(
    ("flags", "optimizer"),
    [(f, o) for f in FLAGS for o in OPTIMIZERS if o in ("adam", "adamw") or "rebias_history" not in f],
    ids=lambda given: given if isinstance(given, str) else ",".join(f"{name}={value}" for name, value in given.items()),
)
def test_smofi_flags(flags: dict[str, Any], optimizer: str) -> None:
    """Each flag; only Adam's moments have a bias that `rebias_history` could correct."""
    ours, rule = OPTIMIZERS[optimizer]
    task = task_of(rule)
    assert difference(library(task, cl.SMoFi(**flags), ours), naive.train(task, naive.smofi(**flags))) <= EXACT


def test_every_flag_matters_here() -> None:
    """The task can tell each flag and each scheme from the others; else the comparisons above would say nothing."""
    task = task_of(OPTIMIZERS["adam"][1], rounds=2)
    answers = [naive.train(task, restated()) for name, (_, restated) in SCHEMES.items() if name not in DEFAULTS]
    answers += [naive.train(task, naive.smofi(**flags)) for flags in FLAGS]
    answers += [naive.train(dataclasses.replace(task, global_beta=0.3), naive.smofi())]
    same = [
        (i, k) for i, one in enumerate(answers) for k, other in enumerate(answers[:i]) if difference(one, other) < 1e-6
    ]
    assert same == [(1, 0)]  # SFLV1(every="round") is FedAvg


@pytest.mark.parametrize(("client", "server"), [("sgdm", "adam"), ("adamw", "nag")], ids=lambda name: name)
@pytest.mark.parametrize("scheme", [name for name in MAIN if name != "fedavg"] + ["sflv1-round"])
def test_server_optimizer(scheme: str, client: str, server: str) -> None:
    given, restated = SCHEMES[scheme]
    (ours, rule), (ours_server, rule_server) = OPTIMIZERS[client], OPTIMIZERS[server]
    task = task_of(rule, server_rule=rule_server, rounds=2)
    assert difference(library(task, given, ours, ours_server), naive.train(task, restated())) <= EXACT


@pytest.mark.parametrize("scheme", MAIN)
def test_local_steps_wrap(scheme: str) -> None:
    """Five steps: five passes of the smallest client, two and a half of the next, just one of the largest.

    A barrier between epochs is one between passes; a client that has done all its steps still counts at it.
    """
    check(scheme, "adam", local_steps=5, rounds=2)


@pytest.mark.parametrize("scheme", MAIN)
def test_last_batch_kept(scheme: str) -> None:
    check(scheme, "sgdm", last_batch="keep", clients=small_clients((6, 8, 15, 22)), rounds=2)


@pytest.mark.parametrize("scheme", MAIN)
def test_small_client_gives_one_batch(scheme: str) -> None:
    check(scheme, "sgdm", small_client="one_batch", rounds=2)


@pytest.mark.parametrize("scheme", ["smofi", "sflv1-step", "sflv2-client-never"])
def test_small_client_and_last_batch_together(scheme: str) -> None:
    check(scheme, "adamw", small_client="one_batch", last_batch="keep", clients=small_clients((6, 8, 15, 22, 3)))


@pytest.mark.parametrize("scheme", ["smofi", "fedavg", "sflv2-step-round"])
def test_small_client_with_local_steps(scheme: str) -> None:
    check(scheme, "nag", small_client="one_batch", local_steps=5, rounds=2)


@pytest.mark.parametrize("scheme", ["smofi", "sflv1-step", "sflv2-client-never"])
def test_decay_as_a_function(scheme: str) -> None:
    given, restated = SCHEMES[scheme]

    def halved_from_the_second(n: int) -> float:
        return 1.0 if n < 2 else 0.5

    ours = cl.SGD(lr=0.05, momentum=0.9, weight_decay=0.01, decay=halved_from_the_second)
    rule = Rule("sgd", lr=0.05, momentum=0.9, weight_decay=0.01, decay=halved_from_the_second)
    task = task_of(rule)
    answer = naive.train(task, restated())
    assert difference(library(task, given, ours), answer) <= EXACT
    constant = Rule("sgd", lr=0.05, momentum=0.9, weight_decay=0.01)
    assert difference(naive.train(task_of(constant), restated()), answer) > 1e-4


@pytest.mark.parametrize("scheme", ["smofi", "fedavg", "sflv1-step", "sflv2-step-round"])
def test_batchnorm_with_a_cumulative_average(scheme: str) -> None:
    """With momentum=None the running statistics depend on each copy's own counter."""
    check(scheme, "sgdm", model=small_model(bn_momentum=None))


@pytest.mark.parametrize("cut", [0, 2])
@pytest.mark.parametrize("scheme", ["smofi", "fedavg", "sflv1-step", "sflv2-client-never"])
def test_other_cuts(scheme: str, cut: int) -> None:
    check(scheme, "sgdm", cut=cut, rounds=2)


@pytest.mark.parametrize("scheme", ["smofi", "fedavg", "sflv1-epoch", "sflv2-client-round"])
def test_convolutions(scheme: str) -> None:
    """The same on images, with a convolution and BatchNorm2d on either side of the cut."""
    torch.default_generator.manual_seed(5)
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU()),
        nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(4, 4, 2, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3)),
    ).double()
    clients = [(torch.randn(size, 1, 6, 6).double(), torch.randint(0, 3, (size,))) for size in (9, 4, 17)]
    check(scheme, "nag", model=model, clients=clients, global_beta=0.3)


@pytest.mark.parametrize(
    ("scheme", "optimizer"), [*((name, "sgdm") for name in MAIN if name != "sflv2-client-step"), ("smofi", "nag")]
)
def test_float32(scheme: str, optimizer: str) -> None:
    """A float32 run stays within rounding of the float64 truth, at a rate gentle enough for rounding not to grow."""
    given, restated = SCHEMES[scheme]
    ours, rule = (dataclasses.replace(one, lr=0.01) for one in OPTIMIZERS[optimizer])
    clients = small_clients(dtype=torch.float32)
    single = task_of(rule, model=small_model(torch.float32), clients=clients, global_beta=0.3)
    double = dataclasses.replace(
        single, model=small_model(torch.float32).double(), clients=[(x.double(), y) for x, y in clients]
    )
    truth = naive.train(double, restated())
    answer = library(single, given, ours)
    assert all(w.dtype == torch.float32 for w in answer.parameters())
    assert difference(answer, truth) <= 1e-5
    assert difference(naive.train(single, restated()), truth) <= 1e-5  # or the task itself is too rough to compare
