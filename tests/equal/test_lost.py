"""A client lost in the middle of a round, against the naive restatement with the same loss.

A client that is silent at a step has finished for the round. Its front, and its own back, are left out of the round's
average; what it gave before (momentum, steps of a shared server model, averages already taken) stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest
from torch import nn

import cutlayer as cl
from tests.clients.faulty import REPORT, Fault, FaultyCohort
from tests.equal import naive
from tests.equal.naive import Task, copied, difference
from tests.equal.test_schemes import EXACT, OPTIMIZERS, SCHEMES, arguments, library, task_of

# The five clients of the task take 2, 4, 6, 10 and 0 steps: two epochs of 1, 2, 3, 5 and 0.
Lost = Mapping[int, int]  # client -> the first step that does not arrive, in round 2
LOSSES: dict[str, Lost] = {
    "before its first step": {1: 0},
    "first client, after one step": {0: 1},
    "within the first epoch": {2: 2},
    "between the epochs": {2: 3},
    "within the second epoch": {2: 4},
    "largest client, at once": {3: 0},
    "largest client, in the middle": {3: 4},
    "largest client, when alone": {3: 8},
    "two clients": {1: 1, 3: 6},
    "two at once": {0: 0, 2: 0},
}
REPORTS: Lost = {0: 2, 2: 6}  # all steps arrive, the report does not
LOSSY = ("fedavg", "sflv1-epoch", "sflv1-step", "sflv2-client-round", "sflv2-step-round", "smofi")


def disturbed(
    task: Task, scheme: Any, optimizer: Any, faults: Sequence[Fault], reorder: int | None = None
) -> tuple[cl.Run, FaultyCohort]:
    """The library's run of a task, and the cohort that disturbs it."""
    plain = cl.rounds(task.model, task.clients, **arguments(task, scheme, optimizer))
    cohort = FaultyCohort(plain.setup.cohort, faults, reorder)
    return cl.Run(copied(task.model), dataclasses.replace(plain.setup, cohort=cohort), plain.state, None), cohort


def answer(task: Task, scheme: Any, optimizer: Any, faults: Sequence[Fault], reorder: int | None = None) -> nn.Module:
    """The library's answer when these faults happen; it is checked that all of them did."""
    run, cohort = disturbed(task, scheme, optimizer, faults, reorder)
    assert len(list(run)) == task.rounds
    assert cohort.unfired == []
    assert (cohort.reordered > 0) == (reorder is not None)
    return run.model


def gone(lost: Lost, kind: Literal["drop", "delay"] = "drop") -> list[Fault]:
    return [Fault(kind, 2, client, step) for client, step in lost.items()]


def losing(task: Task, lost: Lost) -> Task:
    return dataclasses.replace(task, lost={(2, client): step for client, step in lost.items()})


@pytest.mark.parametrize("lost", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("scheme", LOSSY)
def test_lost_client(scheme: str, lost: Lost) -> None:
    given, restated = SCHEMES[scheme]
    ours, rule = OPTIMIZERS["sgdm"]
    task = task_of(rule, global_beta=0.3)
    dropped = answer(task, given, ours, gone(lost))
    assert difference(dropped, naive.train(losing(task, lost), restated())) <= EXACT
    assert difference(answer(task, given, ours, gone(lost, "delay")), dropped) == 0


@pytest.mark.parametrize("lost", [LOSSES["first client, after one step"], LOSSES["two clients"]], ids=["one", "two"])
@pytest.mark.parametrize("optimizer", ["nag", "adam", "adamw"])
@pytest.mark.parametrize("scheme", ["smofi", "sflv1-epoch", "sflv2-client-never"])
def test_lost_client_with_other_optimizers(scheme: str, optimizer: str, lost: Lost) -> None:
    given, restated = SCHEMES[scheme]
    ours, rule = OPTIMIZERS[optimizer]
    task = task_of(rule)
    assert difference(answer(task, given, ours, gone(lost)), naive.train(losing(task, lost), restated())) <= EXACT


@pytest.mark.parametrize(
    "flags",
    [{"stale_offset": 0, "alpha": -1.0}, {"alpha": 0.0}, {"hist_norm": "weights"}, {"rebias_history": True}],
    ids=["stale_offset", "alpha", "hist_norm", "rebias_history"],
)
def test_lost_client_with_smofi_flags(flags: dict[str, Any]) -> None:
    ours, rule = OPTIMIZERS["adam"]
    task, lost = task_of(rule), LOSSES["two clients"]
    expected = naive.train(losing(task, lost), naive.smofi(**flags))
    assert difference(answer(task, cl.SMoFi(**flags), ours, gone(lost)), expected) <= EXACT


@pytest.mark.parametrize("scheme", LOSSY)
def test_lost_report(scheme: str) -> None:
    """All steps arrived, the report did not: the front is left out, and the back where it is averaged with reports."""
    given, restated = SCHEMES[scheme]
    ours, rule = OPTIMIZERS["sgdm"]
    task = task_of(rule)
    faults = [Fault("drop", 2, client, REPORT) for client in REPORTS]
    expected = naive.train(losing(task, REPORTS), restated())
    assert difference(answer(task, given, ours, faults), expected) <= EXACT


@pytest.mark.parametrize("scheme", LOSSY)
def test_doubled_and_reordered_messages_change_nothing(scheme: str) -> None:
    given, _ = SCHEMES[scheme]
    ours, rule = OPTIMIZERS["adam"]
    task = task_of(rule, global_beta=0.3)
    undisturbed = library(task, given, ours)
    doubled = [
        Fault("duplicate", 1, 0, 0),
        Fault("duplicate", 2, 1, 3),
        Fault("repeat", 1, 2, 0),
        Fault("repeat", 2, 2, 5),
        Fault("repeat", 2, 3, 2),
        Fault("repeat", 2, 3, 9),
        Fault("duplicate", 2, 2, REPORT),
    ]
    assert difference(answer(task, given, ours, []), undisturbed) == 0
    assert difference(answer(task, given, ours, doubled), undisturbed) == 0
    assert difference(answer(task, given, ours, [], reorder=1), undisturbed) == 0
    assert difference(answer(task, given, ours, doubled, reorder=2), undisturbed) == 0


@pytest.mark.parametrize("scheme", LOSSY)
def test_message_of_the_round_before(scheme: str) -> None:
    """With one step a round, a late message meets the same step of the next round, and is not taken for it."""
    given, restated = SCHEMES[scheme]
    ours, rule = OPTIMIZERS["sgdm"]
    task = task_of(rule, local_steps=1)
    faults = [Fault("repeat", 1, 3, 0), *gone({1: 0}, "delay")]
    assert difference(answer(task, given, ours, faults), naive.train(losing(task, {1: 0}), restated())) <= EXACT


@pytest.mark.parametrize("scheme", LOSSY)
def test_order_does_not_matter_when_a_client_is_lost(scheme: str) -> None:
    given, _ = SCHEMES[scheme]
    ours, rule = OPTIMIZERS["sgdm"]
    task, faults = task_of(rule), gone(LOSSES["two clients"], "delay")
    assert difference(answer(task, given, ours, faults, reorder=3), answer(task, given, ours, faults)) == 0


@pytest.mark.parametrize("scheme", LOSSY)
def test_a_round_without_a_client_left_is_abandoned(scheme: str) -> None:
    """The round leaves no trace: the model is the one of the round before."""
    given, _ = SCHEMES[scheme]
    ours, rule = OPTIMIZERS["sgdm"]
    task = task_of(rule)
    run, cohort = disturbed(task, given, ours, gone({0: 1, 1: 1, 2: 4, 3: 2}))
    next(run)
    with pytest.raises(cl.RoundAbandoned):
        next(run)
    assert cohort.unfired == []
    assert difference(run.model, library(dataclasses.replace(task, rounds=1), given, ours)) == 0


@pytest.mark.parametrize("scheme", ["smofi", "sflv1-epoch", "sflv2-client-round"])
def test_every_loss_matters_here(scheme: str) -> None:
    """The task can tell each loss from none; else the comparisons above would say nothing."""
    _, restated = SCHEMES[scheme]
    task = task_of(OPTIMIZERS["sgdm"][1], rounds=2)
    undisturbed = naive.train(task, restated())
    answers = [naive.train(losing(task, lost), restated()) for lost in (REPORTS, *LOSSES.values())]
    assert min(difference(answer, undisturbed) for answer in answers) > 1e-6
