"""The simulator and the network end with the same bits: every scheme, over real sockets with mutual TLS."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cutlayer as cl
from cutlayer.network.client.loop import Joined
from tests.engine.test_forms import Ordered, Table, mapped
from tests.network.harness import network, play, rows
from tests.schemes.outside import median

SCHEMES = (
    *("fedavg", "sflv1", "smofi", "sflv2", "ssl", "mergesfl", "psl", "sglr"),
    *("cyclepsl", "cyclesfl", "cyclesglr", "cyclessl"),
)
OPTIMIZERS = {"sgdm": cl.SGD(lr=0.1, momentum=0.9, weight_decay=1e-3), "adam": cl.Adam(lr=1e-2)}


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a[1].equal(b[1]) for a, b in pairs)


def check(
    out: Path, model: nn.Sequential | None = None, data: Any = None, memory: bool = False, **training: Any
) -> None:
    """Weights, fronts and records of a run over the network are those of the simulator; `memory`: without sockets."""
    model, data = network() if model is None else model, data or rows()
    arguments = {"cut": 0, "rounds": 2, "batch_size": 4, "local_epochs": 1} | training
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="clients keep their fronts")
        played = play(out, data, model=model, memory=memory, **arguments)
    simulated = cl.train(model, data, test=data[0], backend="loop", **arguments)
    keeps, tail = len(simulated.clients) > 0, arguments.get("labels") == "stay"
    L, end = 1 if keeps else 0, len(model) - (keeps and tail)
    assert same(played.result.model[L:end], simulated.model[L:end])
    for j, client in enumerate(played.clients):
        assert isinstance(client, Joined), client
        whole = simulated.clients[j] if keeps else simulated.model
        assert client.front is not None
        assert same(client.front, nn.Sequential(whole[0], *([whole[-1]] if tail else [])))
    for ours, theirs in zip(played.result.history, simulated.history, strict=True):
        assert (ours.steps, ours.samples, ours.bytes_up, ours.bytes_down, ours.clients, ours.faults) == (
            *(theirs.steps, theirs.samples, theirs.bytes_up, theirs.bytes_down, theirs.clients),
            (),
        )
        assert ours.sim_seconds is None
        if not keeps:
            assert (ours.accuracy, ours.train_loss, ours.drift_client) == (
                *(theirs.accuracy, theirs.train_loss, theirs.drift_client),
            )


@pytest.mark.parametrize(
    "training",
    [
        {"scheme": cl.Aligned(kappa=0.5, fade=0.9, weights="samples", lam=0.5), "calibrate": 0.5},
        {"scheme": cl.Aligned(kappa=0.5, rho=0.2, cycle=True)},
    ],
    ids=["calibrated", "cycled"],
)
def test_aligned(tmp_path: Path, training: dict[str, Any]) -> None:
    check(tmp_path, memory=True, optimizer=OPTIMIZERS["sgdm"], **training)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("scheme", "labels"),
    [(s, labels) for s in SCHEMES for labels in ("send", "stay") if labels == "send" or not s.startswith("cycle")],
)
def test_every_scheme(tmp_path: Path, scheme: str, labels: str, optimizer: str) -> None:
    """With momentum over sockets, with Adam over a transport in memory."""
    check(tmp_path, memory=optimizer == "adam", scheme=scheme, labels=labels, optimizer=OPTIMIZERS[optimizer])


@pytest.mark.parametrize("scheme", ["psl", "cyclesfl", "sflv2"])
def test_memory_that_lives_on(tmp_path: Path, scheme: str) -> None:
    """Protocol cyclesl: moments and places in the data stay with the clients."""
    check(tmp_path, scheme=scheme, protocol="cyclesl", optimizer=OPTIMIZERS["adam"], rounds=3)


@pytest.mark.parametrize(
    "more",
    [
        {"local": cl.FedNAR(max_norm=0.5, norm="joint")},
        {"local": cl.FedProx(mu=0.1), "update": cl.FedAvgM(beta=0.3)},
        {"update": cl.FedNAG(), "scheme": "fedavg"},
        {"scheme": cl.SMoFi(fuse_clients=True)},
        {"participation": 0.5, "rounds": 4},
        {"cut": (0, 2), "rounds": 3},
        {"noise": 0.1},
        {"shuffle": False, "last_batch": "keep"},
        {"batch_size": 2, "accumulate": 2, "clip": cl.Clip(0.3, "joint"), "last_batch": "keep"},
        {"batch_size": 2, "accumulate": 2, "scheme": cl.SMoFi(fuse_clients=True), "lr_schedule": cl.Warmup(2, 3)},
        {"batch_size": 2, "accumulate": 2, "labels": "stay", "scheme": "mergesfl", "detail": True},
        {"batch_size": 2, "accumulate": 2, "scheme": "psl", "protocol": "cyclesl", "last_batch": "keep", "rounds": 4},
        {"scheme": "sflv1", "lr_schedule": lambda n, k: 1 / (n + k)},
    ],
    ids=[
        *("joint", "prox", "fednag", "fused", "participation", "cuts", "noise", "kept"),
        *("accumulate joint", "accumulate fused", "accumulate stay", "accumulate onward", "rates by step"),
    ],
)
def test_every_message(tmp_path: Path, more: dict[str, Any]) -> None:
    check(tmp_path, data=rows((12, 20, 10, 16)), **more)


def test_images_and_dropout(tmp_path: Path) -> None:
    """Kernels and activations that lie channels last, and random numbers at the client's address."""
    torch.manual_seed(0)
    front = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.3))
    back = nn.Sequential(nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 3))
    g = torch.Generator().manual_seed(1)
    data = [(torch.randn(n, 3, 8, 8, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in (8, 12)]
    check(tmp_path, nn.Sequential(front, back), data, scheme="smofi")


def test_a_plan_with_rates_for_many_steps(tmp_path: Path) -> None:
    """They take more bytes than the tiny front."""
    many: dict[str, Any] = {"local_steps": 800, "batch_size": 2, "rounds": 1, "lr_schedule": lambda n, k: 1 / (1 + k)}
    check(tmp_path, data=rows((2, 2)), memory=True, **many)


def test_a_scheme_from_outside(tmp_path: Path) -> None:
    check(tmp_path, scheme=median())


def test_double_precision(tmp_path: Path) -> None:
    check(tmp_path, network(torch.float64), rows(dtype=torch.float64), scheme="smofi")


def test_any_form_of_rows(tmp_path: Path) -> None:
    """An iterable, rows by name, a loader and a mapped file; over sockets, by `cl.join`."""
    pairs = rows()
    forms = [
        Ordered(*pairs[0]),
        cl.rows(Table(*pairs[1]), inputs="in", target="out"),
        DataLoader(TensorDataset(*pairs[2]), 4, drop_last=True),
        mapped(*pairs[3], tmp_path),
    ]
    check(tmp_path, data=forms, protocol="cyclesl", scheme="psl", local_steps=2, rounds=3)


def test_a_loader_with_other_batches_than_the_server_s(tmp_path: Path) -> None:
    pairs = rows()
    loader = DataLoader(TensorDataset(*pairs[1]), 2, drop_last=True)
    settings = {"min_clients": 2, "quorum": 0.5}
    played = play(tmp_path, [pairs[0], loader], settings, memory=True, cut=0, rounds=1, batch_size=4, local_epochs=1)
    assert isinstance(played.clients[0], Joined)
    assert isinstance(played.clients[1], cl.ContractError) and "batch_size = 2: expected 4" in str(played.clients[1])
