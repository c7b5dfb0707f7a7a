"""protocol="cyclesl", rounds of one batch per client, against its naive restatement in float64 to 1e-9."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import cutlayer as cl
from tests.equal import naive_cyclesl
from tests.equal.compare import EXACT, curved_model, library, same_clients, task_of
from tests.equal.naive import Task, difference, small_clients, small_model
from tests.equal.naive_cyclesl import RoundOf
from tests.equal.naive_split import Cycle

ROUNDS = 10
PLAIN: dict[str, RoundOf] = {
    "psl": naive_cyclesl.psl,
    "sglr": naive_cyclesl.sglr(),
    "ssl": naive_cyclesl.ssl,
    "sflv1": naive_cyclesl.sflv1,
    "sflv2": naive_cyclesl.sflv2,
}
CYCLES: dict[str, tuple[str, Callable[[Cycle], RoundOf]]] = {
    "cyclepsl": ("CyclePSL", naive_cyclesl.cycle),
    "cyclesfl": ("CycleSFL", lambda settings: naive_cyclesl.cycle(settings, sync=True)),
    "cyclesglr": ("CycleSGLR", lambda settings: naive_cyclesl.cycle(settings, share=0.5)),
    "cyclessl": ("CycleSSL", naive_cyclesl.cyclessl),
}
BY_NAME: dict[str, RoundOf] = PLAIN | {name: restated(Cycle()) for name, (_, restated) in CYCLES.items()}
KEEP = ("psl", "sglr", "cyclepsl", "cyclesglr")
RELAY = ("ssl", "cyclessl")
VARIANTS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "adam": (["adam"], {}),
    "sgd": (["sgd"], {}),
    "two": (["nag", "adamw"], {"cut": 0, "rounds": 5}),
    "keep-last": (["sgd"], {"last_batch": "keep", "clients": small_clients((6, 8, 15, 2)), "rounds": 5}),
}


def task_with(optimizers: list[str], **changes: Any) -> Task:
    """Clients with 1, 2, 1 and 3 batches, which wrap at different rounds, and one below a batch."""
    return task_of(*optimizers, **{"rounds": ROUNDS, **changes})


def model_for(scheme: str) -> nn.Sequential:
    """The usual one, but where a mean gradient is handed out one whose mean is not zero."""
    return curved_model() if "sglr" in scheme else small_model()


def agrees(task: Task, name: str, given: Any, restated: RoundOf, optimizers: list[str], **more: Any) -> bool:
    """The joint model, and where clients keep their fronts each client's own model too.

    Who takes part is read off the records, and the restatement follows.
    """
    result = library(task, given, *optimizers, protocol="cyclesl", **more)
    cohorts = [sorted(record.clients) for record in result.history]
    expected = naive_cyclesl.train(task, restated, cohorts, relay=name in RELAY)
    if name in KEEP and not same_clients(result, expected.clients):
        return False
    return difference(result.model, expected.model) <= EXACT


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("scheme", BY_NAME)
def test_scheme(scheme: str, variant: str) -> None:
    optimizers, changes = VARIANTS[variant]
    assert agrees(
        task_with(optimizers, **changes, model=model_for(scheme)), scheme, scheme, BY_NAME[scheme], optimizers
    )


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_fedavg(optimizer: str) -> None:
    task = task_with([optimizer])
    result = library(task, "fedavg", optimizer, protocol="cyclesl")
    assert difference(result.model, naive_cyclesl.fedavg(task)) <= EXACT


@pytest.mark.parametrize("scheme", BY_NAME)
def test_some_clients_each_round(scheme: str) -> None:
    """Two of four: a slot's memory meets other clients, absent clients keep their place, and kept fronts grow stale."""
    task = task_with(["adam"], clients=small_clients((5, 9, 6, 13)), model=model_for(scheme))
    assert agrees(task, scheme, scheme, BY_NAME[scheme], ["adam"], participation=0.5)


@pytest.mark.parametrize("scheme", KEEP)
def test_fronts_that_never_trained_are_not_in_the_mean(scheme: str) -> None:
    """One client a round, two rounds: at least two of four still hold the front they were given."""
    task = task_with(["sgd"], clients=small_clients((5, 9, 6, 13)), model=model_for(scheme), rounds=2)
    assert agrees(task, scheme, scheme, BY_NAME[scheme], ["sgd"], participation=1)


def test_fedavg_with_some_clients_each_round() -> None:
    """Memory is each client's here, not the slot's: another model than SFLV1's, which is the same with everybody in."""
    task = task_with(["adam"], clients=small_clients((5, 9, 6, 13)))
    result = library(task, "fedavg", "adam", protocol="cyclesl", participation=0.5)
    cohorts = [sorted(record.clients) for record in result.history]
    assert len({tuple(J) for J in cohorts}) > 2
    expected = naive_cyclesl.fedavg(task, cohorts)
    assert difference(result.model, expected) <= EXACT
    assert difference(naive_cyclesl.train(task, naive_cyclesl.sflv1, cohorts).model, expected) > 1e-4
    everybody = naive_cyclesl.train(task, naive_cyclesl.sflv1).model
    assert difference(everybody, naive_cyclesl.fedavg(task)) <= EXACT


SETTINGS: list[dict[str, Any]] = [
    {"server_epochs": 2},
    {"frozen_bn": "no_update"},
    {"frozen_bn": "eval"},
    {"server_batch": 6, "loss_weight": "uniform"},
    {"server_batch": 6},
    {"server_batch": 100, "server_epochs": 2},
    {"server_epochs": 2, "server_batch": 7, "loss_weight": "uniform", "frozen_bn": "no_update"},
    {"server_batch": 6, "loss_weight": "uniform", "frozen_bn": "eval"},
    {"server_batch": 5},  # sixteen rows leave a batch of one, which BatchNorm cannot take
]


FEWER = {
    "cyclesglr": SETTINGS[::3],
    "cyclessl": [
        settings for settings in SETTINGS if not {"server_batch", "loss_weight"} & set(settings)
    ],  # all it has
}


@pytest.mark.parametrize(
    ("scheme", "settings"),
    [(name, settings) for name in CYCLES for settings in FEWER.get(name, SETTINGS)],
    ids=str,
)
def test_cycle_settings(scheme: str, settings: dict[str, Any]) -> None:
    name, restated = CYCLES[scheme]
    optimizers = ["adam"] if "frozen_bn" in settings else ["sgd"]
    task = task_with(optimizers, model=model_for(scheme), rounds=4)
    assert agrees(task, scheme, getattr(cl, name)(**settings), restated(Cycle(**settings)), optimizers)


@pytest.mark.parametrize("share", [0.1, 0.75, 1.0])
def test_share(share: float) -> None:
    task = task_with(["adam"], model=curved_model(), rounds=4)
    assert agrees(task, "sglr", cl.SGLR(share=share), naive_cyclesl.sglr(share), ["adam"])
    restated = naive_cyclesl.cycle(Cycle(), share=share)
    assert agrees(task, "cyclesglr", cl.CycleSGLR(share=share), restated, ["adam"])


@pytest.mark.parametrize("scheme", ["sflv1", "cyclesfl", "psl"])
def test_local_epochs_say_nothing_here(scheme: str) -> None:
    task = task_with(["sgd"], rounds=5)
    one, other = (library(replace(task, local_epochs=E), scheme, "sgd", protocol="cyclesl") for E in (1, 4))
    assert difference(one.model, other.model) == 0
    assert [record.steps for record in one.history] == [4] * 5


def test_memory_stays() -> None:
    """A run of two rounds is not two runs of one: on the naive side, and in the library."""
    task = task_with(["sgd"], rounds=1, clients=small_clients((4, 4, 4)))
    for scheme in ("sflv2", "cyclesfl", "fedavg"):
        once = library(task, scheme, "sgd", protocol="cyclesl").model
        again = library(replace(task, model=once), scheme, "sgd", protocol="cyclesl").model  # type: ignore[arg-type]
        both = library(replace(task, rounds=2), scheme, "sgd", protocol="cyclesl").model
        assert difference(again, both) > 1e-4


def test_this_task_can_tell_them_apart() -> None:
    """Each scheme and each setting gives another model."""
    task = task_with(["adam"], model=curved_model(), rounds=3)
    answers = [naive_cyclesl.train(task, restated, relay=name in RELAY).model for name, restated in BY_NAME.items()]
    answers += [naive_cyclesl.train(task, naive_cyclesl.cycle(Cycle(**settings))).model for settings in SETTINGS]
    answers += [naive_cyclesl.train(task, naive_cyclesl.sglr(share)).model for share in (0.1, 0.75, 1.0)]
    for i, one in enumerate(answers):
        assert all(difference(one, other) > 1e-5 for other in answers[:i])


def after_one_step(scheme: Any, start: float) -> tuple[float, float]:
    """The weights of the paper's toy (section 3.2.1), one linear neuron on each side, after a step from `start`."""
    front, back = (nn.Linear(1, 1, bias=False).double() for _ in range(2))
    with torch.no_grad():
        front.weight.fill_(1.0)
        back.weight.fill_(start)
    one = torch.ones(1, 1, dtype=torch.float64)
    plain = cl.SGD(lr=0.05, momentum=0.0, weight_decay=0.0)
    how: dict[str, Any] = {"optimizer": plain, "rounds": 1, "batch_size": 1, "local_epochs": 1, "cut": 0}
    model = cl.train(nn.Sequential(front, back), [(one, one)], scheme=scheme, loss=functional.mse_loss, **how).model
    return model[0].weight.item(), model[1].weight.item()


@pytest.mark.parametrize("start", [1.2, 1.02, 1.001])
def test_the_toy_example(start: float) -> None:
    """w_s w_c x > y = 1: the server's step is the same, and the client's is smaller after it."""
    plain, cycled = after_one_step("sflv2", start), after_one_step(cl.CycleSFL(loss_weight="uniform"), start)
    w_s = start - 2 * 0.05 * (start - 1)
    assert plain == pytest.approx((1 - 2 * 0.05 * start * (start - 1), w_s), abs=EXACT)
    assert cycled == pytest.approx((1 - 2 * 0.05 * w_s * (w_s - 1), w_s), abs=EXACT)
    assert 1 - cycled[0] < 1 - plain[0]
