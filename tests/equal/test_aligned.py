"""Aligned, option by option and together, and calibrated logits, against naive restatements: float64, to 1e-9.

The four clients that take part have 2, 4, 2 and 6 steps: two finish together, and the last one is alone at the end.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import cutlayer as cl
from tests.clients.faulty import Fault, FaultyCohort
from tests.equal.compare import EXACT, OPTIMIZERS, library, task_of
from tests.equal.naive import Half, Task, copied, difference, small_clients, small_model, train
from tests.equal.naive_aligned import aligned, calibrated, front_step, server_gradients

Options = dict[str, Any]
BACKENDS = ("loop", "stacked")
CARRIED: Options = {"kappa": 0.7, "fade": 0.9, "weights": "samples"}
ELASTIC: Options = {"lam": 0.6, "gamma": 0.5, "rho": 0.4, "ramp": 3}
AGED: Options = {"alpha": -0.5, "hist_norm": "weights", "kappa": 0.7, "weights": "samples", **ELASTIC, "tau": 1.5}
EVERYTHING: Options = {"hist_norm": "weights", **CARRIED, **ELASTIC, "cycle": True}
OPTIONS: list[tuple[str, Options]] = [
    ("sgd", {"kappa": 0.8}),
    ("sgd", {"fade": 0.9}),
    ("sgd", {"weights": "samples"}),
    ("sgd", {"lam": 0.5}),
    ("sgd", {"lam": 1.0, "gamma": 0.0}),
    ("sgd", {"rho": 0.3}),
    ("sgd", {"rho": 0.5, "ramp": 4}),
    ("sgd", {"cycle": True}),
    ("sgd", {"adaptive": True}),
    ("sgd", {"tau": 0.7}),
    ("sgd", CARRIED),
    ("sgd", ELASTIC),
    ("sgd", {"adaptive": True, "hist_norm": "weights", "kappa": 0.5, "rho": 0.2}),
    ("sgd", {"adaptive": True, "weights": "samples"}),
    ("sgd", {"cycle": True, "rho": 0.5}),
    ("sgd", {"cycle": True, "lam": 0.5, "fade": 0.8}),
    ("sgd", AGED),
    ("sgd", EVERYTHING),
    ("nag", {"cycle": True, "rho": 1.0}),
    ("nag", AGED),
    ("nag", EVERYTHING),
    ("adam", {"kappa": 0.8}),
    ("adam", {"kappa": 0.0}),
    ("adam", EVERYTHING),
]


def named(given: Any) -> str:
    return given if isinstance(given, str) else ",".join(f"{name}={value}" for name, value in given.items())


def scheme_of(options: Options) -> cl.Aligned:
    return cl.Aligned(**{name: value for name, value in options.items() if name != "tau"})


def gaps(task: Task, options: Options, expected: nn.Module, optimizer: str, server: str | None = None) -> list[float]:
    """How far the library is from what is expected, on either backend; `tau` is the training's, not the scheme's."""
    scheme, tau = scheme_of(options), options.get("tau", 0.0)
    results = (library(task, scheme, optimizer, server, calibrate=tau, backend=backend) for backend in BACKENDS)
    return [difference(result.model, expected) for result in results]


def close(apart: list[float]) -> bool:
    return all(gap <= EXACT for gap in apart)


@functools.cache
def plain(optimizer: str, rounds: int) -> nn.Module:
    """Without any option: what an answer must differ from, or to be equal would say nothing."""
    return train(task_of(optimizer, rounds=rounds), aligned())


# ---- Aligned -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("optimizer", "options"), OPTIONS, ids=named)
def test_options(optimizer: str, options: Options) -> None:
    task = task_of(optimizer, rounds=3 if "kappa" in options else 2)
    expected = train(task, aligned(**options))
    assert difference(expected, plain(optimizer, task.rounds)) > 1e-5
    assert close(gaps(task, options, expected, optimizer))


def test_unequal_hands() -> None:
    """Batches of four, three and two rows in the same step; a cumulative BatchNorm counts both of its passes."""
    model, clients = small_model(bn_momentum=None), small_clients((6, 8, 11, 15))
    task = task_of("sgd", model=model, clients=clients, last_batch="keep")
    assert close(gaps(task, EVERYTHING, train(task, aligned(**EVERYTHING)), "sgd"))


def test_another_optimizer_on_the_server() -> None:
    """And momentum of the whole model between rounds, which is not the one that `kappa` carries."""
    task = task_of("adamw", "nag", rounds=3, global_beta=0.3)
    assert close(gaps(task, EVERYTHING, train(task, aligned(**EVERYTHING)), "adamw", "nag"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_options_it_is_smofi(backend: str) -> None:
    task = task_of("nag")
    one, other = (library(task, scheme, "nag", backend=backend) for scheme in (cl.Aligned(), cl.SMoFi()))
    assert difference(one.model, other.model) == 0
    assert [r.train_loss for r in one.history] == [r.train_loss for r in other.history]
    assert [(r.bytes_up, r.bytes_down) for r in one.history] == [(r.bytes_up, r.bytes_down) for r in other.history]


# ---- One model that steps on the mean gradient -------------------------------------------------------------------


def plain_model() -> nn.Sequential:
    """Without BatchNorm, whose statistics every surrogate has for itself."""
    torch.default_generator.manual_seed(6)
    return nn.Sequential(
        nn.Sequential(nn.Linear(5, 6), nn.Tanh()), nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 3)
    ).double()


def mean_gradient(task: Task, p: list[float]) -> nn.Sequential:
    """One back, one momentum, the gradient weighed by `p`; the fronts are each client's, and averaged with `p`."""
    whole, J, B = copied(task.model), range(len(task.clients)), task.batch_size
    lower, upper = nn.Sequential(*list(whole)[: task.cut + 1]), nn.Sequential(*list(whole)[task.cut + 1 :])
    for n in range(1, task.rounds + 1):
        fronts = [Half(lower, task.rule) for _ in J]
        back = Half(upper, task.rule)
        for k in range(task.local_steps or 0):
            gradients, sent = [], []
            for j in J:
                x, y = (part[k * B : (k + 1) * B] for part in task.clients[j])
                a = fronts[j].module(x)
                at_cut, g = server_gradients(back, a, y, 0.0, [])
                gradients.append([p[j] * value for value in g.values()])
                sent.append((a, at_cut))
            back.step([torch.stack(same).sum(dim=0) for same in zip(*gradients, strict=True)], n, k)
            for j in J:
                front_step(fronts[j], *sent[j], n)
        with torch.no_grad():
            for i, w in enumerate(lower.parameters()):
                w.copy_(torch.stack([p[j] * list(fronts[j].weights.values())[i] for j in J]).sum(dim=0))
            for w, stepped in zip(upper.parameters(), back.weights.values(), strict=True):
                w.copy_(stepped)
    return whole


@pytest.mark.parametrize(
    ("optimizer", "sizes", "weights"), [("sgd", (12, 12, 12), "uniform"), ("nag", (12, 25, 17), "samples")]
)
def test_rho_of_one_is_one_model(optimizer: str, sizes: tuple[int, ...], weights: str) -> None:
    """Where all have the same number of steps."""
    task = task_of(optimizer, model=plain_model(), clients=small_clients(sizes), local_steps=3)
    expected = mean_gradient(task, [size / sum(sizes) for size in sizes])
    assert close(gaps(task, {"rho": 1.0, "weights": weights}, expected, optimizer))
    assert min(gaps(task, {"rho": 0.9, "weights": weights}, expected, optimizer)) > 1e-5


# ---- A client lost in mid-round ----------------------------------------------------------------------------------


def test_lost_clients() -> None:
    """Of the second round one client is lost after a step, and the largest one after three."""
    lost, task = {(2, 1): 1, (2, 3): 3}, task_of("sgd", rounds=3)
    given: dict[str, Any] = {"cut": task.cut, "optimizer": OPTIMIZERS["sgd"][0], "rounds": task.rounds}
    given |= {"batch_size": task.batch_size, "local_epochs": task.local_epochs, "shuffle": False}
    undisturbed = cl.rounds(task.model, task.clients, scheme=scheme_of(EVERYTHING), **given)
    faults = [Fault("drop", n, j, step) for (n, j), step in lost.items()]
    cohort = FaultyCohort(undisturbed.setup.cohort, faults, None)
    run = cl.Run(copied(task.model), dataclasses.replace(undisturbed.setup, cohort=cohort), undisturbed.state, None)
    assert len(list(run)) == task.rounds
    assert cohort.unfired == []
    expected = train(dataclasses.replace(task, lost=lost), aligned(**EVERYTHING))
    assert difference(run.model, expected) <= EXACT
    assert difference(train(task, aligned(**EVERYTHING)), expected) > 1e-5


# ---- Calibrated logits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "shared"),
    [(cl.SFLV1(every="round"), False), (cl.SFLV2(reset="round"), True)],
    ids=str,
)
def test_calibrated(scheme: Any, shared: bool) -> None:
    task = task_of("sgd")
    expected, less = (train(task, calibrated(tau, shared)) for tau in (0.8, 0.7))
    assert difference(expected, less) > 1e-5
    for backend in BACKENDS:
        assert difference(library(task, scheme, "sgd", calibrate=0.8, backend=backend).model, expected) <= EXACT


def test_calibrated_with_another_optimizer_and_unequal_batches() -> None:
    task = task_of("adam", clients=small_clients((6, 8, 11, 15)), last_batch="keep", global_beta=0.3)
    answer = library(task, "fedavg", "adam", calibrate=2.0).model
    assert difference(answer, train(task, calibrated(2.0, shared=False))) <= EXACT


def test_the_loss_is_the_calibrated_one() -> None:
    """One step on labels 0, 0, 0, 1 of three classes: pi is (3 1/3, 1 1/3, 1/3) / 5."""
    x, y = small_clients((4,))[0][0], torch.tensor([0, 0, 0, 1])
    task = task_of("sgd", clients=[(x, y)], rounds=1, local_steps=1)
    z = copied(task.model).train()(x).detach()
    pi = torch.tensor([10 / 15, 4 / 15, 1 / 15], dtype=torch.float64)
    expected, bare = (float(functional.cross_entropy(logits, y)) for logits in (z + 0.5 * pi.log(), z))
    assert library(task, "smofi", "sgd", calibrate=0.5).history[0].train_loss == pytest.approx(expected, abs=EXACT)
    assert abs(expected - bare) > 1e-2


# ---- Refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("kappa", {"kappa": 1.5}),
        ("fade", {"fade": -0.1}),
        ("weights", {"weights": "x"}),
        ("lam", {"lam": 2}),
        ("gamma", {"gamma": -1}),
        ("rho", {"rho": 2}),
        ("ramp", {"ramp": -1}),
        ("cycle", {"cycle": "yes"}),
        ("fade", {"fade": 0.9, "adaptive": True}),
    ],
    ids=named,
)
def test_bad_options(field: str, options: Options) -> None:
    with pytest.raises(cl.ContractError, match=rf"\b{field} = "):
        cl.Aligned(**options)


@pytest.mark.parametrize(
    "more",
    [
        {"calibrate": -1},
        {"calibrate": 0.5, "labels": "stay"},
        {"calibrate": 0.5, "scheme": "mergesfl"},
        {"calibrate": 0.5, "scheme": "cyclesfl"},
        {"calibrate": 0.5, "scheme": cl.Aligned(cycle=True)},
    ],
    ids=named,
)
def test_bad_calibration(more: dict[str, Any]) -> None:
    scheme = {"scheme": "smofi", **more}
    with pytest.raises(cl.ContractError, match=r"\bcalibrate = "):
        cl.train(small_model(), small_clients(), cut=1, rounds=1, batch_size=4, **scheme)
    allowed = {**scheme, "calibrate": 0.0}
    assert len(cl.train(small_model(), small_clients(), cut=1, rounds=1, batch_size=4, **allowed).history) == 1
