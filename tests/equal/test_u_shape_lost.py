"""Labels that stay, and clients that do not: each lost in the middle of a step, between A_j and dL_j/dZ_j.

The server has sent Z_j and hears nothing: the client is lost for the round before the server steps. Neither of its
halves is averaged. What it gave before stays, and where the middle is one for all, its rows have been in BatchNorm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest
import torch

import cutlayer as cl
from tests.clients.faulty import REPORT, Fault, FaultyCohort, What
from tests.equal import naive_u_shape
from tests.equal.compare import EXACT, OPTIMIZERS
from tests.equal.naive import copied, difference, small_clients
from tests.equal.naive_u_shape import Turned
from tests.equal.test_u_shape import EVERY, LOCALS, SCHEMES, task_of

# Two epochs of 1, 2, 3 and 1 batches; with MergeSFL a fifth client has two batches of all its three samples.
SIZES = (5, 9, 13, 6, 3)
T = (2, 4, 6, 2, 0)
CLIENTS = small_clients(SIZES)
Lost = Mapping[tuple[int, int], int]  # (round, client): the first step that is not taken
PLANS: dict[str, tuple[Lost, Literal["drop", "delay"]]] = {
    "first and last": ({(1, 1): 0, (2, 2): 1, (3, 2): 5}, "drop"),  # at the end client 2 is alone
    "two at once": ({(1, 0): 1, (1, 2): 4, (2, 2): 3, (3, 1): 1, (3, 3): 1}, "delay"),
}
LOSSY = [*SCHEMES, "smofi-clients"]


def lossy(optimizer: str, lost: Lost, what: What = "step", local: str = "none", **changes: Any) -> Turned:
    """A task in which these clients are lost; at their features, their A_j has arrived."""
    task = task_of(optimizer, **{"clients": CLIENTS, "local_epochs": 2, **changes})
    unanswered = frozenset(lost) if what != "step" else frozenset()
    return dataclasses.replace(task, lost=lost, unanswered=unanswered, local=LOCALS[local][1])


def faults_of(lost: Lost, kind: Literal["drop", "delay"], what: What) -> list[Fault]:
    return [Fault(kind, n, j, step, what) for (n, j), step in lost.items()]


def started(
    task: Turned, scheme: str, faults: Sequence[Fault], reorder: int | None = None, **more: Any
) -> tuple[cl.Run, FaultyCohort]:
    """The library's run of a task, and the cohort that disturbs it."""
    given: dict[str, Any] = {
        "cut": task.cut,
        "labels": "stay",
        "scheme": EVERY[scheme][0],
        "optimizer": next(ours for ours, rule in OPTIMIZERS.values() if rule == task.rule),
        "local": next(ours for ours, rule in LOCALS.values() if rule == task.local),
        "rounds": task.rounds,
        "batch_size": task.batch_size,
        "local_epochs": task.local_epochs,
        "shuffle": False,
    }
    plain = cl.rounds(task.model, task.clients, **given | more)
    cohort = FaultyCohort(plain.setup.cohort, faults, reorder)
    return cl.Run(copied(task.model), dataclasses.replace(plain.setup, cohort=cohort), plain.state, None), cohort


def disturbed(
    task: Turned, scheme: str, faults: Sequence[Fault], reorder: int | None = None, **more: Any
) -> tuple[cl.Run, list[cl.Round]]:
    """A run to its end; it is checked that every fault happened, and that whoever was lost is on record as lost."""
    run, cohort = started(task, scheme, faults, reorder, **more)
    records = list(run)
    assert len(records) == task.rounds and cohort.unfired == []
    for record in records:
        lost = {fault.client for fault in faults if fault.round == record.n and fault.kind in ("drop", "delay")}
        assert record.lost == len(lost) and not lost & set(record.clients)
    return run, records


def check(task: Turned, scheme: str, faults: Sequence[Fault], **more: Any) -> list[cl.Round]:
    run, records = disturbed(task, scheme, faults, **more)
    model, own = naive_u_shape.train(task, EVERY[scheme][1]())
    assert difference(run.model, model) <= EXACT
    assert len(run.clients) == len(own)
    assert all(difference(run.clients[j], one) <= EXACT for j, one in enumerate(own))
    return records


# ---- Without an answer to Z_j ------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("scheme", LOSSY)
def test_lost_at_the_features(scheme: str, plan: str) -> None:
    lost, kind = PLANS[plan]
    backend = "stacked" if kind == "drop" else "loop"
    check(lossy("sgd", lost, "features"), scheme, faults_of(lost, kind, "features"), backend=backend)


@pytest.mark.parametrize(("scheme", "optimizer"), [("smofi", "adam"), ("smofi", "nag"), ("mergesfl", "adam")])
def test_lost_at_the_features_with_other_optimizers(scheme: str, optimizer: str) -> None:
    lost, kind = PLANS["two at once"]
    task = lossy(optimizer, lost, "features", global_beta=0.3)
    update = cl.FedAvgM(beta=0.3)
    check(task, scheme, faults_of(lost, kind, "features"), backend="stacked", update=update)


def test_a_batch_that_nobody_answers_is_no_gradient_to_clip() -> None:
    """At its end client 2 is alone in MergeSFL's batch. Silent before A_j or after it, the gradients are the same."""
    lost = {(1, 2): 5}
    rates = []
    for what in ("step", "features"):
        task = lossy("sgd", lost, what, "nar-half", rounds=1)
        rates += [record.clip_rate for record in check(task, "mergesfl", faults_of(lost, "drop", what))]
    assert rates[0] == rates[1]


# ---- Lost elsewhere ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["sflv1-epoch", "smofi", "sflv2-step-round", "ssl", "mergesfl", "psl"])
def test_lost_before_it_sends(scheme: str) -> None:
    """A_j itself does not arrive; and of two whose steps all arrive, the report does not."""
    lost = {(1, 1): 0, (1, 2): 4, (2, 0): T[0], (2, 2): T[2]}
    faults = faults_of({key: step for key, step in lost.items() if key[0] == 1}, "delay", "step")
    faults += [Fault("drop", 2, j, REPORT) for n, j in lost if n == 2]
    check(lossy("sgd", lost, rounds=2), scheme, faults)


@pytest.mark.parametrize(
    ("scheme", "backend"),
    [("smofi", "stacked"), ("smofi", "loop"), ("sflv1-step", "stacked"), ("sflv2-client", "loop")],
)
def test_lost_at_its_norm(scheme: str, backend: str) -> None:
    """dL_j/dZ_j has arrived, its part of a joint norm has not: as if it had not answered at all."""
    lost, kind = PLANS["first and last"]
    task = lossy("sgd", lost, "square", "nar-joint")
    check(task, scheme, faults_of(lost, kind, "square"), backend=backend)


@pytest.mark.parametrize("scheme", ["smofi", "ssl"])
def test_lost_at_the_features_under_a_joint_norm(scheme: str) -> None:
    lost, kind = PLANS["two at once"]
    task = lossy("sgd", lost, "features", "nar-joint")
    check(task, scheme, faults_of(lost, kind, "features"))


# ---- What changes nothing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["fedavg", "smofi", "sflv2-step-round", "mergesfl", "sglr"])
def test_doubled_and_reordered_answers_change_nothing(scheme: str) -> None:
    task = lossy("adam", {}, rounds=2)
    doubled = [
        Fault("duplicate", 1, 0, 0, "features"),
        Fault("repeat", 1, 2, 5, "features"),  # comes again in the next round
        Fault("repeat", 2, 1, 2, "features"),
        Fault("duplicate", 2, 2, 1),
    ]
    undisturbed, _ = disturbed(task, scheme, [], backend="loop")
    again, _ = disturbed(task, scheme, doubled, reorder=5, backend="loop")
    assert difference(again.model, undisturbed.model) == 0


@pytest.mark.parametrize("scheme", ["sflv1-step", "smofi", "sflv2-client", "mergesfl", "psl"])
def test_a_round_in_which_nobody_answers_leaves_no_trace(scheme: str) -> None:
    task = lossy("sgd", {}, rounds=2, clients=CLIENTS[:4])
    run, cohort = started(task, scheme, [Fault("drop", 2, j, step, "features") for j, step in enumerate((1, 0, 3, 1))])
    next(run)
    before, model = run.state, run.model
    with pytest.raises(cl.RoundAbandoned):
        next(run)
    assert cohort.unfired == [] and run.state is before and difference(run.model, model) == 0


def test_a_lost_client_goes_on_with_the_ends_it_had() -> None:
    """Front and last block are those of its last confirmed round."""
    lost = {(2, 2): 4}
    run, _ = disturbed(lossy("sgd", lost, rounds=2), "psl", faults_of(lost, "drop", "features"))
    before, _ = disturbed(lossy("sgd", {}, rounds=1), "psl", [])
    ours, theirs = run.clients[2].state_dict(), before.clients[2].state_dict()
    same = {name for name in ours if torch.equal(ours[name], theirs[name])}
    assert {name for name in ours if name[0] in "03"} <= same
    assert not {name for name in ours if "weight" in name and name[0] in "12"} & same
    assert run.state.participations == {0: 2, 1: 2, 2: 1, 3: 2}


def test_every_loss_matters_here() -> None:
    """The task can tell each loss, and where it happened, from none; else the comparisons would say nothing."""
    for scheme in ("smofi", "mergesfl"):
        answers = [naive_u_shape.train(lossy("sgd", {}), EVERY[scheme][1]())[0]]
        for lost, _ in PLANS.values():
            what: list[What] = ["step"] if scheme == "smofi" else ["step", "features"]
            answers += [naive_u_shape.train(lossy("sgd", lost, kind), EVERY[scheme][1]())[0] for kind in what]
        assert min(difference(one, other) for i, one in enumerate(answers) for other in answers[:i]) > 1e-6
