"""SlowMo and FedNAG against their naive restatements, and updates with schemes of another kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import cutlayer as cl
from cutlayer.errors import ContractError
from tests.equal import naive, naive_split, naive_updates
from tests.equal.compare import EXACT, library, same_clients, task_of
from tests.equal.naive import difference
from tests.equal.naive_updates import FedNAG, SlowMo

FIXED: dict[str, Any] = {"local_steps": 5}
EPOCHS: dict[str, Any] = {"local_epochs": 2}
LENGTHS = pytest.mark.parametrize("length", [FIXED, EPOCHS], ids=["steps", "epochs"])
SLOWMO: list[dict[str, Any]] = [
    {},
    {"lr": 0.5, "beta": 0.4},
    {"lr": 1.3, "beta": 0.0},
    {"buffers": "average"},
    {"lr": 0.5, "beta": 0.4, "buffers": "average", "weights": "uniform"},
    {"weights": "uniform"},
]


@LENGTHS
@pytest.mark.parametrize("settings", SLOWMO, ids=str)
def test_slowmo(settings: dict[str, Any], length: dict[str, Any]) -> None:
    """The rate decays, so that what is carried over is u, and not its product with the rate."""
    task = task_of("sgd", rounds=3, **length)
    result = library(task, "fedavg", "sgd", update=cl.SlowMo(**settings))
    assert difference(result.model, naive_updates.train(task, SlowMo(**settings))) <= EXACT


@pytest.mark.parametrize(
    ("optimizer", "buffers", "length"),
    [("nag", "average", FIXED), ("adam", "average", EPOCHS), ("adam", "reset", FIXED), ("adamw", "average", FIXED)],
    ids=str,
)
def test_slowmo_over_other_optimizers(optimizer: str, buffers: str, length: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"lr": 0.5, "beta": 0.4, "buffers": buffers}
    task = task_of(optimizer, rounds=3, **length)
    result = library(task, "fedavg", optimizer, update=cl.SlowMo(**settings))
    assert difference(result.model, naive_updates.train(task, SlowMo(**settings))) <= EXACT


def test_every_setting_of_slowmo_matters_here() -> None:
    for length in (FIXED, EPOCHS):
        task = task_of("sgd", rounds=3, **length)
        answers = [naive_updates.train(task, SlowMo(**settings)) for settings in SLOWMO]
        answers += [naive_updates.train(task, FedNAG()), naive.train(task, naive.fedavg)]
        for i, one in enumerate(answers):
            assert all(difference(one, other) > 1e-4 for other in answers[:i])


@LENGTHS
@pytest.mark.parametrize("optimizer", ["sgd", "nag", "adam", "adamw"])
def test_fednag(optimizer: str, length: dict[str, Any]) -> None:
    """SGD becomes NAG; with epochs Adam's counters differ between clients, and the largest goes on."""
    task = task_of(optimizer, rounds=3, **length)
    expected = naive_updates.train(task, FedNAG())
    assert difference(library(task, "fedavg", optimizer, update=cl.FedNAG()).model, expected) <= EXACT
    assert difference(naive.train(task, naive.fedavg), expected) > 1e-3


@pytest.mark.parametrize("update", ["FedNAG", "SlowMo"])
def test_averaged_buffers_with_surrogates_for_a_round(update: str) -> None:
    """SFLV1(every="round") is federated averaging, with its memory in two halves, wherever the cut."""
    given: dict[str, Any] = {} if update == "FedNAG" else {"buffers": "average"}
    for cut, optimizer in ((0, "sgd"), (2, "adam")):
        task = task_of(optimizer, cut=cut, rounds=3)
        result = library(task, cl.SFLV1(every="round"), optimizer, update=getattr(cl, update)(**given))
        restated = getattr(naive_updates, update)(**given)
        assert difference(result.model, naive_updates.train(task, restated)) <= EXACT


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [("sgd", {}), ("adam", {"lr": 0.5, "beta": 0.4}), ("sgd", {"weights": "uniform"})],
    ids=str,
)
def test_slowmo_over_smofi(optimizer: str, settings: dict[str, Any]) -> None:
    task = task_of(optimizer, rounds=3)
    result = library(task, "smofi", optimizer, update=cl.SlowMo(**settings))
    expected = naive_updates.train(task, SlowMo(**settings), naive.smofi())
    assert difference(result.model, expected) <= EXACT


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fedavgm_over_psl(optimizer: str) -> None:
    """Clients keep their fronts, so the update acts on the server's half alone."""
    task = task_of(optimizer, rounds=3, global_beta=0.4)
    model, clients = naive_split.train_keep(task, naive_split.psl())
    result = library(task, "psl", optimizer)
    assert difference(result.model, model) <= EXACT
    assert same_clients(result, clients)
    without, _ = naive_split.train_keep(task_of(optimizer, rounds=3), naive_split.psl())
    assert difference(without, model) > 1e-3


REFUSED: list[tuple[Any, dict[str, Any]]] = [
    *((scheme, {}) for scheme in ("smofi", "sflv1", "sflv2", "mergesfl", "psl", "ssl", "cyclesfl", "cyclepsl")),
    ("fedavg", {"protocol": "cyclesl"}),
]


@pytest.mark.parametrize("update", ["FedNAG", "SlowMo"])
@pytest.mark.parametrize(("scheme", "more"), REFUSED, ids=str)
def test_averaged_buffers_are_refused_where_there_is_no_mean_of_them(
    scheme: Any, more: dict[str, Any], update: str
) -> None:
    given = cl.FedNAG() if update == "FedNAG" else cl.SlowMo(buffers="average")
    with pytest.raises(cl.ContractError):
        library(task_of("sgd", rounds=1), scheme, "sgd", update=given, **more)


@pytest.mark.parametrize("scheme", ["fedavg", "smofi"])
@pytest.mark.parametrize("half", ["front", "back", None])
def test_global_momentum_on_one_half(half: Any, scheme: str) -> None:
    """Round by round: the mean of a round without momentum, and m on the parameters of that half."""
    x, y = torch.randn(24, 6, dtype=torch.float64), torch.arange(24) % 3
    clients = [(x[:10], y[:10]), (x[10:], y[10:])]
    model = nn.Sequential(nn.Linear(6, 5), nn.Sequential(nn.Tanh(), nn.Linear(5, 3))).double()
    how: dict[str, Any] = {"cut": 0, "scheme": scheme, "batch_size": 4, "local_epochs": 2, "shuffle": False}
    how["optimizer"] = cl.SGD(lr=0.1, momentum=0.9)
    found = cl.train(model, clients, update=cl.FedAvgM(0.6, half=half), rounds=4, **how).model

    W = {name: w.detach().clone() for name, w in model.named_parameters()}
    m = {name: torch.zeros_like(w) for name, w in W.items()}
    for _ in range(4):
        model.load_state_dict(W)
        W_bar = dict(cl.train(model, clients, rounds=1, **how).model.named_parameters())
        for name in W:
            front = name.startswith("0.")
            beta = 0.6 if half is None or front == (half == "front") else 0.0
            m[name] = beta * m[name] + (W[name] - W_bar[name].detach())
            W[name] = W[name] - m[name]
    assert max(float((w.detach() - W[name]).abs().max()) for name, w in found.named_parameters()) <= EXACT


def test_there_is_no_global_momentum_on_fronts_that_are_kept() -> None:
    with pytest.raises(ContractError, match="clients keep their fronts; expected no half, or 'back'"):
        cl.train(naive.small_model(), naive.small_clients(), scheme="psl", update=cl.FedAvgM(0.5, half="front"))
    with pytest.raises(ContractError, match="half = 'middle': expected 'front', 'back' or None"):
        cl.FedAvgM(half="middle")  # type: ignore[arg-type]
