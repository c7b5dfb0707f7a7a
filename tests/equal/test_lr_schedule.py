"""Learning-rate schedules, by round and by step: against the naive restatement and torch's schedulers."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import cutlayer as cl
from cutlayer.errors import ContractError
from cutlayer.experiment.config import parse
from tests.equal import naive
from tests.equal.naive import difference, small_clients, small_model
from tests.equal.test_schemes import EXACT, OPTIMIZERS, SCHEMES, arguments, task_of


def zigzag(n: int, k: int) -> float:
    return (0.5 + 0.3 * (k % 3)) / n


FACTORS: dict[str, tuple[Any, Callable[[int, int], float]]] = {
    "function of round and step": (zigzag, zigzag),
    "warm-up of every round": (cl.Warmup(rounds=2, steps=4), lambda n, k: min(1, n / 2) * min(1, (k + 1) / 4)),
    "function of the round": (lambda n: 1 / n, lambda n, k: 1 / n),
    "cosine": (
        cl.Cosine(rounds=4, warmup=1, floor=0.1),
        lambda n, k: 1.0 if n == 1 else 0.1 + 0.9 * (1 + math.cos(math.pi * (n - 2) / 3)) / 2,
    ),
}


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("scheme", ["fedavg", "sflv1-epoch", "sflv2-client-never", "sflv2-step-round", "smofi"])
def test_equals_the_naive_restatement(scheme: str, factor: str) -> None:
    given, restated = SCHEMES[scheme]
    schedule, naively = FACTORS[factor]
    ours, rule = OPTIMIZERS["adamw" if schedule is zigzag else "sgdm"]
    task = task_of(dataclasses.replace(rule, factor=naively), rounds=2)
    expected = naive.train(task, restated())
    for backend in ("loop", "stacked") if schedule is zigzag else ("loop",):
        result = cl.train(
            task.model, task.clients, **arguments(task, given, ours), lr_schedule=schedule, backend=backend
        )
        assert difference(result.model, expected) <= EXACT
        assert [record.lr for record in result.history] == pytest.approx([task.rule.eta(n, 0) for n in (1, 2)])


@pytest.mark.parametrize("scheme", ["mergesfl", "psl", "sglr", "cyclesfl", "cyclessl", "ssl"])
def test_by_step_and_by_round_agree(scheme: str) -> None:
    """A function of round and step that does not look at the step is one of the round."""
    given: dict[str, Any] = {"cut": 1, "scheme": scheme, "rounds": 2, "batch_size": 4, "local_epochs": 1, "seed": 3}
    clients = small_clients((8, 9, 13))
    by_step, by_round, plain = (
        cl.train(small_model(), clients, lr_schedule=f, **given).model
        for f in (lambda n, k: 0.5 / n, lambda n: 0.5 / n, None)
    )
    assert difference(by_step, by_round) == 0
    assert difference(by_step, plain) > 1e-4


def test_a_functions_parameters_say_what_it_depends_on() -> None:
    """One with a default is the function's own; `cl.named` keeps the parameters."""
    clients, given = small_clients((8, 9)), {"cut": 1, "rounds": 2, "batch_size": 4, "local_epochs": 1}
    plain = cl.train(small_model(), clients, lr_schedule=lambda n: 0.5 / n, **given)
    for same in (lambda n, base=0.5: base / n, cl.named(lambda n: 0.5 / n, "half"), functools.partial(zagged, 0.5)):
        assert difference(cl.train(small_model(), clients, lr_schedule=same, **given).model, plain.model) == 0
    by_step = cl.train(small_model(), clients, lr_schedule=cl.named(zigzag, "zigzag"), **given)
    assert difference(by_step.model, cl.train(small_model(), clients, lr_schedule=zigzag, **given).model) == 0
    rates = 8 * sum(by_step.history[0].client_steps)  # a plan states the rate of every step
    assert by_step.history[0].bytes_down == plain.history[0].bytes_down + rates


def zagged(base: float, n: int) -> float:
    return base / n


def test_accumulation_counts_optimizer_steps() -> None:
    clients = [(x[:, :5], y) for x, y in small_clients((24, 36))]
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    one, other = (
        cl.train(net, clients, cut=1, lr_schedule=zigzag, rounds=2, local_epochs=1, batch_size=12 // a, accumulate=a)
        for a in (1, 3)
    )
    assert difference(one.model, other.model) <= EXACT


def test_the_cosine_is_torchs() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=20, eta_min=0.05)
    schedule = cl.Cosine(rounds=20, floor=0.05)
    for n in range(1, 22):
        assert schedule(n) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_a_run_goes_on_with_the_same_rates(tmp_path: Path) -> None:
    clients, out = small_clients((8, 9, 13)), tmp_path / "run"
    given: dict[str, Any] = {"cut": 1, "batch_size": 4, "local_epochs": 2, "lr_schedule": zigzag}
    whole = cl.train(small_model(), clients, rounds=4, **given).model
    run = cl.rounds(small_model(), clients, rounds=4, out=out, **given)
    next(run), next(run)
    run.close()
    assert difference(cl.train(small_model(), clients, rounds=4, out=out, **given).model, whole) == 0
    with pytest.raises(ContractError, match="lr_schedule"):
        cl.train(small_model(), clients, rounds=4, out=out, **given | {"lr_schedule": cl.Warmup()})


def test_on_the_command_line_a_cosine_has_the_rounds_of_the_run() -> None:
    assert parse({"rounds": 30, "lr_schedule": "cosine"}).lr_schedule == {
        "name": "cosine",
        "rounds": 30,
        "warmup": 0,
        "floor": 0.0,
    }
    given = {"rounds": 30, "lr_schedule": {"name": "cosine", "rounds": 50, "warmup": 5}}
    assert parse(given).part("lr_schedule") == cl.Cosine(50, 5)


@pytest.mark.parametrize(
    ("given", "more", "words"),
    [
        (lambda: 1.0, {}, "lr_schedule = .* expected a function of the round, or of the round and the step"),
        (lambda n: -1.0, {}, r"lr_schedule\(1\) = -1.0: expected a finite number, at least 0"),
        ("cosin", {}, "cosine"),
        (0.5, {}, "lr_schedule = 0.5: expected one of cosine, warmup"),
        (zigzag, {"update": cl.SlowMo()}, "changes within a round; expected a schedule by round"),
    ],
)
def test_bad_schedules_are_refused(given: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        cl.train(small_model(), small_clients((8, 9)), cut=1, batch_size=4, lr_schedule=given, **more)


def test_bad_numbers_are_refused() -> None:
    for make, words in (
        (lambda: cl.Cosine(rounds=0), "rounds = 0"),
        (lambda: cl.Cosine(rounds=5, warmup=5), "warmup = 5: expected rounds, from 0 to below 5"),
        (lambda: cl.Cosine(rounds=5, floor=2.0), "floor = 2.0"),
        (lambda: cl.Warmup(steps=-1), "steps = -1"),
    ):
        with pytest.raises(ContractError, match=words):
            make()
