"""The local rules under four schemes against their naive restatement, in float64 to 1e-9."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cutlayer as cl
from tests.equal import naive, naive_local
from tests.equal.compare import EXACT, library, task_of
from tests.equal.naive import Scheme, Task, difference
from tests.equal.naive_local import Clips, FedNAR, FedProx, Local

# The limits lie among the norms that occur, see `answer`.
LOCALS: dict[str, tuple[Any, Local]] = {
    "prox": (cl.FedProx(mu=0.3), FedProx(mu=0.3)),
    "nar-joint": (cl.FedNAR(max_norm=1.2, norm="joint"), FedNAR(max_norm=1.2, norm="joint")),
    "nar-half": (cl.FedNAR(max_norm=0.8, norm="half"), FedNAR(max_norm=0.8, norm="half")),
}
SCHEMES: dict[str, tuple[Any, Callable[[Local, Clips], Scheme]]] = {
    "fedavg": ("fedavg", naive_local.fedavg),
    "sflv1-epoch": (cl.SFLV1(every="epoch"), naive_local.sflv1_epoch),
    "sflv2-client-step": ("sflv2", lambda local, clips: naive_local.sflv2(local, clips, "client", "step")),
    "sflv2-step-round": (
        cl.SFLV2(order="step", reset="round"),
        lambda local, clips: naive_local.sflv2(local, clips, "step", "round"),
    ),
    "smofi": ("smofi", naive_local.smofi),
}


def answer(task: Task, scheme: str, local: Local) -> Any:
    """The naive side's model; FedNAR must have clipped some steps and let others pass, or it would show nothing."""
    clips: Clips = []
    model = naive.train(task, SCHEMES[scheme][1](local, clips))
    if isinstance(local, FedNAR):
        assert 0.1 < sum(clips) / len(clips) < 0.9
    return model


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_local_rule(scheme: str, local: str, optimizer: str) -> None:
    (ours, restated), task = LOCALS[local], task_of(optimizer)
    expected = answer(task, scheme, restated)
    assert difference(library(task, SCHEMES[scheme][0], optimizer, local=ours).model, expected) <= EXACT


@pytest.mark.parametrize("scheme", ["fedavg", "sflv2-step-round", "smofi"])
def test_fedprox_with_decoupled_weight_decay(scheme: str) -> None:
    """AdamW's decay stays outside; the pull goes through the moments like the gradient it is added to."""
    task = task_of("adamw")
    expected = answer(task, scheme, FedProx(mu=0.3))
    assert difference(library(task, SCHEMES[scheme][0], "adamw", local=cl.FedProx(mu=0.3)).model, expected) <= EXACT


@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("scheme", ["sflv1-epoch", "smofi"])
def test_another_optimizer_on_the_server(scheme: str, local: str) -> None:
    """Each half has its own weight decay in h."""
    (ours, restated), task = LOCALS[local], task_of("nag", "adam")
    result = library(task, SCHEMES[scheme][0], "nag", "adam", local=ours)
    assert difference(result.model, answer(task, scheme, restated)) <= EXACT


@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("scheme", ["fedavg", "smofi"])
def test_with_global_momentum_and_fixed_steps(scheme: str, local: str) -> None:
    (ours, restated), task = LOCALS[local], task_of("sgd", global_beta=0.3, local_steps=6)
    result = library(task, SCHEMES[scheme][0], "sgd", local=ours)
    assert difference(result.model, answer(task, scheme, restated)) <= EXACT


@pytest.mark.parametrize("cut", [0, 2])
@pytest.mark.parametrize("scheme", ["fedavg", "smofi"])
def test_the_cut_moves_a_norm_per_half_and_not_the_joint_one(scheme: str, cut: int) -> None:
    for local in ("nar-joint", "nar-half"):
        (ours, restated), task = LOCALS[local], task_of("sgd", cut=cut)
        result = library(task, SCHEMES[scheme][0], "sgd", local=ours)
        assert difference(result.model, answer(task, scheme, restated)) <= EXACT


def test_this_task_can_tell_the_rules_apart() -> None:
    """Each rule, and none, under each scheme gives another model."""
    task = task_of("sgd")
    rules = [None, *(restated for _, restated in LOCALS.values())]
    answers = [answer(task, scheme, rule) for scheme in SCHEMES for rule in rules]
    for i, one in enumerate(answers):
        assert all(difference(one, other) > 1e-5 for other in answers[:i])
