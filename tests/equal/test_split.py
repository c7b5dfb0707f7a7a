"""MergeSFL, PSL, SGLR, SSL and the Cycle family in rounds of local epochs or steps, against their restatements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import cutlayer as cl
from tests.equal import naive, naive_split
from tests.equal.compare import EXACT, curved_model, library, same_clients, task_of
from tests.equal.naive import Scheme, Task, difference, small_clients, small_model
from tests.equal.naive_local import FedNAR, FedProx, Local
from tests.equal.naive_split import Cycle, Device, KeepScheme, merged_batch_sizes

OPTIMIZER = pytest.mark.parametrize("optimizer", ["sgd", "adam"])
DEVICES = [(0.010, 60.0), (0.004, 20.0), (0.060, 6.0), (0.002, 90.0), (0.008, 12.0)]
ONE_FAST = [(0.010, 60.0), (0.004, 20.0), (0.060, 6.0), (0.0001, 9000.0), (0.008, 12.0)]
BIG = (26, 40, 21, 33, 31)


def sync(task: Task, scheme: Scheme) -> nn.Sequential:
    return naive.train(task, scheme)


def model_for(scheme: str) -> nn.Sequential:
    """The usual one, but where a mean gradient is handed out one whose mean is not zero."""
    return curved_model() if "sglr" in scheme else small_model()


def agrees(task: Task, given: Any, restated: Scheme | KeepScheme, keep: bool, *optimizers: str, **more: Any) -> bool:
    """The joint model, and where clients keep their fronts each client's own model too."""
    result = library(task, given, *optimizers, **more)
    if not keep:
        return difference(result.model, naive.train(task, restated)) <= EXACT  # type: ignore[arg-type]
    model, clients = naive_split.train_keep(task, restated)  # type: ignore[arg-type]
    return difference(result.model, model) <= EXACT and same_clients(result, clients)


# ---- MergeSFL ----------------------------------------------------------------------------------------------------


def devices(of: list[tuple[float, float]] = DEVICES) -> tuple[list[Any], list[Device]]:
    return [cl.Device(seconds=s, kbps=b) for s, b in of], [Device(s, b) for s, b in of]


MERGE: list[dict[str, Any]] = [{}, {"front_weights": "uniform"}, {"scale_lr": True}]


@pytest.mark.parametrize(("optimizer", "length"), [("sgd", {"local_epochs": 2}), ("adam", {"local_steps": 4})], ids=str)
@pytest.mark.parametrize("settings", MERGE, ids=str)
def test_mergesfl_with_unequal_devices(settings: dict[str, Any], optimizer: str, length: dict[str, Any]) -> None:
    """A batch of B = 24 becomes one of 3 (the least) to 33 (all that client has)."""
    task = task_of(optimizer, clients=small_clients(BIG), batch_size=24, **length)
    given, restated = devices()
    assert agrees(
        task,
        cl.MergeSFL(**settings),
        naive_split.mergesfl(restated, **settings),
        False,
        optimizer,
        profile=given,
    )


def test_the_batch_sizes_show_every_bound() -> None:
    """The least, a client's all, 4 B, and between; compute and network each matter."""
    _, restated = devices()
    sizes = merged_batch_sizes(task_of("sgd", clients=small_clients(BIG), batch_size=24), restated)
    assert min(sizes) == 3 == max(2, 24 // 8)
    assert len(set(sizes)) >= 4
    assert any(d == size for d, size in zip(sizes, BIG, strict=True))
    few = merged_batch_sizes(task_of("sgd", clients=small_clients((40,) * 5)), devices(ONE_FAST)[1])
    assert max(few) == 16 == 4 * 4 and min(few) == 2
    for other in ([Device(d.seconds, 500.0) for d in restated], [Device(0.01, d.kbps) for d in restated]):
        assert merged_batch_sizes(task_of("sgd", clients=small_clients(BIG), batch_size=24), other) != sizes


@pytest.mark.parametrize("cut", [0, 2])
def test_mergesfl_at_other_cuts_and_bounds(cut: int) -> None:
    """The cut changes what a client computes and sends; here the fastest may take 4 B and no more."""
    given, restated = devices(ONE_FAST)
    task = task_of("sgd", clients=small_clients((41, 38, 35, 50, 40)), batch_size=4, cut=cut, local_epochs=1)
    assert agrees(task, "mergesfl", naive_split.mergesfl(restated), False, "sgd", profile=given)


@pytest.mark.parametrize("settings", [{}, {"front_weights": "uniform"}, {"scale_lr": True}], ids=str)
@OPTIMIZER
def test_mergesfl_without_devices(optimizer: str, settings: dict[str, Any]) -> None:
    """All take B rows; clients have 1, 2, 1 and 3 batches, so ever fewer are merged."""
    task = task_of(optimizer, clients=small_clients((5, 9, 6, 13)), global_beta=0.3)
    assert agrees(task, cl.MergeSFL(**settings), naive_split.mergesfl(None, **settings), False, optimizer)


@pytest.mark.parametrize("length", [{"local_steps": 4}, {"local_epochs": 2}], ids=str)
@pytest.mark.parametrize("settings", [{}, {"front_weights": "uniform"}], ids=str)
def test_mergesfl_with_a_client_below_a_batch(settings: dict[str, Any], length: dict[str, Any]) -> None:
    """It takes part with three rows, all that it has: d_j is at most |D_j|."""
    task = task_of("sgd", **length)
    assert agrees(task, cl.MergeSFL(**settings), naive_split.mergesfl(None, **settings), False, "sgd")


def test_mergesfl_with_another_optimizer_on_the_server() -> None:
    task = task_of("adam", "nag", local_steps=4)
    assert agrees(task, cl.MergeSFL(scale_lr=True), naive_split.mergesfl(scale_lr=True), False, "adam", "nag")


# ---- PSL, SGLR, SSL ----------------------------------------------------------------------------------------------

PLAIN: dict[str, tuple[Callable[[], Any], bool]] = {
    "psl": (naive_split.psl, True),
    "sglr": (naive_split.sglr, True),
    "ssl": (lambda: naive_split.ssl, False),
}
VARIANTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "sgd": ({}, ["sgd"]),
    "adam": ({}, ["adam"]),
    "two": ({"cut": 0}, ["sgd", "adam"]),
    "steps": ({"local_steps": 4}, ["nag"]),
    "keep-last": ({"last_batch": "keep", "clients": small_clients((6, 8, 15, 3))}, ["adamw"]),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("scheme", PLAIN)
def test_plain(scheme: str, variant: str) -> None:
    (restated, keep), (changes, optimizers) = PLAIN[scheme], VARIANTS[variant]
    task = task_of(*optimizers, **changes, model=model_for(scheme))
    assert agrees(task, scheme, restated(), keep, *optimizers)


@pytest.mark.parametrize("share", [0.1, 0.75, 1.0])
def test_sglr_share(share: float) -> None:
    for optimizer in ("sgd", "adam"):
        task = task_of(optimizer, model=curved_model(), last_batch="keep", clients=small_clients((6, 8, 15, 3)))
        assert agrees(task, cl.SGLR(share=share), naive_split.sglr(share), True, optimizer)


# ---- The Cycle family --------------------------------------------------------------------------------------------

CYCLES: dict[str, tuple[str, Callable[[Cycle], Any], bool]] = {
    "cyclesfl": ("CycleSFL", naive_split.cyclesfl, False),
    "cyclepsl": ("CyclePSL", naive_split.cycle_keep, True),
    "cyclesglr": ("CycleSGLR", lambda cycle: naive_split.cycle_keep(cycle, share=0.5), True),
    "cyclessl": ("CycleSSL", naive_split.cyclessl, False),
}
SETTINGS: list[dict[str, Any]] = [
    {"server_epochs": 2},
    {"frozen_bn": "no_update"},
    {"frozen_bn": "eval"},
    {"server_epochs": 2, "server_batch": 6, "loss_weight": "uniform", "frozen_bn": "no_update"},
    {"server_batch": 7, "loss_weight": "uniform"},
    {"server_batch": 5},  # sixteen rows leave a batch of one, which BatchNorm cannot take
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("scheme", CYCLES)
def test_cycle_by_name(scheme: str, variant: str) -> None:
    """The defaults: one server epoch in the clients' batch size, samples weighted, frozen_bn="train"."""
    (_, restated, keep), (changes, optimizers) = CYCLES[scheme], VARIANTS[variant]
    task = task_of(*optimizers, **changes, model=model_for(scheme))
    assert agrees(task, scheme, restated(Cycle()), keep, *optimizers)


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
    """Each local step is one cycle over the clients that still have a batch."""
    name, restated, keep = CYCLES[scheme]
    optimizer = "adam" if "frozen_bn" in settings else "sgd"
    task = task_of(optimizer, model=model_for(scheme))
    assert agrees(task, getattr(cl, name)(**settings), restated(Cycle(**settings)), keep, optimizer)


@pytest.mark.parametrize("share", [0.1, 0.75, 1.0])
def test_cyclesglr_share(share: float) -> None:
    restated = naive_split.cycle_keep(Cycle(), share=share)
    assert agrees(task_of("sgd", model=curved_model()), cl.CycleSGLR(share=share), restated, True, "sgd")


def test_cyclesfl_with_global_momentum() -> None:
    task = task_of("sgd", global_beta=0.3)
    assert agrees(task, "cyclesfl", naive_split.cyclesfl(Cycle()), False, "sgd")
    task = task_of("adam", global_beta=0.3)
    assert agrees(task, "cyclepsl", naive_split.cycle_keep(Cycle()), True, "adam")


# ---- With local rules --------------------------------------------------------------------------------------------

RULED: dict[str, tuple[Any, Callable[[Local], Scheme]]] = {
    "mergesfl": ("mergesfl", lambda local: naive_split.mergesfl(local=local)),
    "cyclesfl": ("cyclesfl", lambda local: naive_split.cyclesfl(Cycle(), local)),
    "cyclessl": ("cyclessl", lambda local: naive_split.cyclessl(Cycle(), local)),
}


@pytest.mark.parametrize("scheme", RULED)
def test_norm_per_half(scheme: str) -> None:
    """The server's norm is of the merged gradient, or of each of its mini-batches."""
    task = task_of("sgd", clients=small_clients((5, 9, 6, 13)))
    given, restated = RULED[scheme]
    local = FedNAR(max_norm=0.6, norm="half")
    assert agrees(task, given, restated(local), False, "sgd", local=cl.FedNAR(max_norm=0.6, norm="half"))
    assert difference(sync(task, restated(local)), sync(task, restated(None))) > 1e-3


@pytest.mark.parametrize("scheme", RULED)
def test_proximal_term(scheme: str) -> None:
    task = task_of("sgd", clients=small_clients((5, 9, 6, 13)))
    given, restated = RULED[scheme]
    assert agrees(task, given, restated(FedProx(mu=0.3)), False, "sgd", local=cl.FedProx(mu=0.3))


@pytest.mark.parametrize("rule", ["prox", "nar"])
def test_rules_on_a_front_that_is_kept(rule: str) -> None:
    """A front that nobody averages is pulled towards where it began the round itself."""
    restated: Local = FedProx(mu=0.3) if rule == "prox" else FedNAR(max_norm=0.6, norm="half")
    ours = cl.FedProx(mu=0.3) if rule == "prox" else cl.FedNAR(max_norm=0.6, norm="half")
    model, clients = naive_split.train_keep(task_of("sgd"), naive_split.cycle_keep(Cycle(), local=restated), restated)
    result = library(task_of("sgd"), "cyclepsl", "sgd", local=ours)
    assert difference(result.model, model) <= EXACT
    assert same_clients(result, clients)


@pytest.mark.parametrize("scheme", ["mergesfl", *CYCLES])
def test_a_joint_norm_is_refused_where_no_pair_steps_together(scheme: str) -> None:
    with pytest.raises(cl.ContractError):
        library(task_of("sgd", rounds=1), scheme, "sgd", local=cl.FedNAR(max_norm=0.6, norm="joint"))


# ---- Whether all this can fail -----------------------------------------------------------------------------------


def test_this_task_can_tell_them_apart() -> None:
    """Each scheme and each setting gives another model."""
    task = task_of("sgd", model=curved_model())
    answers = [sync(task, naive_split.ssl), sync(task, naive_split.mergesfl())]
    answers += [sync(task, restated(Cycle())) for _, restated, keep in CYCLES.values() if not keep]
    keeps = [naive_split.psl(), *(naive_split.sglr(share) for share in (0.1, 0.5, 0.75, 1.0))]
    keeps += [restated(Cycle()) for _, restated, keep in CYCLES.values() if keep]
    keeps += [naive_split.cycle_keep(Cycle(**settings)) for settings in SETTINGS]
    answers += [naive_split.train_keep(task, restated)[0] for restated in keeps]
    assert all(torch.isfinite(w).all() for one in answers for w in one.parameters())
    for i, one in enumerate(answers):
        assert all(difference(one, other) > 1e-5 for other in answers[:i])
