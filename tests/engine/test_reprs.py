"""What people see when they print a round, a run or its result: a short line."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import cutlayer as cl
from cutlayer.engine.records import Round
from cutlayer.engine.run import Result

FULL = {
    "n": 3,
    "accuracy": 0.912,
    "loss": 0.31234,
    "participants": 12,
    "steps": 240,
    "bytes_up": 1_000_000,
    "bytes_down": 468_006,
    "seconds": 0.8,
}
SHOWN = [
    ({}, "Round 3: accuracy 91.20 %, loss 0.312, 12 clients, 240 steps, 1.4 MiB, 0.8 s"),
    ({"accuracy": None}, "Round 3: loss 0.312, 12 clients, 240 steps, 1.4 MiB, 0.8 s"),
    ({"accuracy": None, "loss": None}, "Round 3: 12 clients, 240 steps, 1.4 MiB, 0.8 s"),
    ({"accuracy": None, "metric": 0.25}, "Round 3: loss 0.312, metric 0.25, 12 clients, 240 steps, 1.4 MiB, 0.8 s"),
    ({"loss": 1234.5}, "Round 3: accuracy 91.20 %, loss 1.23e+03, 12 clients, 240 steps, 1.4 MiB, 0.8 s"),
    (
        {"skipped": 2, "lost": 1, "faults": ("a: gone", "b: late")},
        "Round 3: accuracy 91.20 %, loss 0.312, 12 clients, 2 skipped, 1 lost, 2 faults, 240 steps, 1.4 MiB, 0.8 s",
    ),
    (
        {"participants": 1, "steps": 1, "faults": ("a: gone",), "bytes_up": 0, "bytes_down": 700, "seconds": 0.004},
        "Round 3: accuracy 91.20 %, loss 0.312, 1 client, 1 fault, 1 step, 700 B, 4 ms",
    ),
    (
        {"steps": 12_345, "bytes_up": 2048, "seconds": 7321.4, "bytes_down": 0},
        "Round 3: accuracy 91.20 %, loss 0.312, 12 clients, 12,345 steps, 2.0 KiB, 7,321.4 s",
    ),
    (
        {"bytes_up": 3 * 2**30, "more": {"new": "x" * 1000}},
        "Round 3: accuracy 91.20 %, loss 0.312, 12 clients, 240 steps, 3.0 GiB, 0.8 s",
    ),
]


@pytest.mark.parametrize(("change", "line"), SHOWN)
def test_a_round_is_one_short_line(change: dict[str, object], line: str) -> None:
    record = Round(**{**FULL, **change})
    assert repr(record) == str(record) == f"{record}" == line


def trained(**given: object) -> tuple[cl.Run, Result]:
    g = torch.Generator().manual_seed(0)
    clients = [(torch.rand(16, 4, generator=g), torch.arange(16) % 2) for _ in range(3)]
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    arguments = {"cut": 0, "rounds": 3, "batch_size": 8, **given}
    return cl.rounds(model, clients, **arguments), cl.train(model, clients, **arguments)


def test_a_result_is_a_few_words() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    scores = [0.5, 0.912, None, 0.9]
    history = [Round(n=n, accuracy=accuracy) for n, accuracy in enumerate(scores, start=1)]
    shown = "Result: 4 rounds, best accuracy 91.20 % in round 2, final 90.00 %, 58 parameters"
    assert repr(Result(model, history)) == shown
    assert repr(Result(model, history, [model, model])) == f"{shown}, 2 personal models"
    assert (
        repr(Result(model, history[:1]))
        == "Result: 1 round, best accuracy 50.00 % in round 1, final 50.00 %, 58 parameters"
    )
    assert repr(Result(model, history[2:3], [model])) == "Result: 1 round, 58 parameters, 1 personal model"
    assert repr(Result(model, [])) == "Result: 0 rounds, 58 parameters"


def test_a_training_under_way_says_how_far_it_is() -> None:
    run, result = trained(scheme="smofi")
    assert repr(run) == "Run: 0 of 3 rounds, SMoFi, 3 clients, cut 0, 58 parameters"
    next(run)
    assert repr(run) == "Run: 1 of 3 rounds, SMoFi, 3 clients, cut 0, 58 parameters"
    list(run)
    assert repr(run) == "Run: 3 of 3 rounds, finished, SMoFi, 3 clients, cut 0, 58 parameters"
    assert repr(result) == "Result: 3 rounds, 58 parameters"


def test_clients_that_keep_their_half_have_models_of_their_own() -> None:
    run, result = trained(scheme="psl", cut=(0, 0))
    assert repr(result) == "Result: 3 rounds, 58 parameters, 3 personal models"
    assert repr(run) == "Run: 0 of 3 rounds, PSL, 3 clients, cut 0, 58 parameters"
