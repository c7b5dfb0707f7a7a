"""What the comparisons with naive restatements share: optimizers, tasks, and a task in the library's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import cutlayer as cl
from tests.equal.naive import Rule, Task, copied, difference, small_clients, small_model

EXACT = 1e-9
OPTIMIZERS: dict[str, tuple[Any, Rule]] = {
    "sgd": (
        cl.SGD(lr=0.05, momentum=0.9, weight_decay=0.01, decay=0.97),
        Rule("sgd", lr=0.05, momentum=0.9, weight_decay=0.01, decay=0.97),
    ),
    "nag": (
        cl.NAG(lr=0.04, momentum=0.8, weight_decay=0.02, decay=0.9),
        Rule("nag", lr=0.04, momentum=0.8, weight_decay=0.02, decay=0.9),
    ),
    "adam": (
        cl.Adam(lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.02, decay=0.97),
        Rule("adam", lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.02, decay=0.97),
    ),
    "adamw": (
        cl.AdamW(lr=0.01, betas=(0.8, 0.999), eps=1e-8, weight_decay=0.05, decay=0.97),
        Rule("adamw", lr=0.01, betas=(0.8, 0.999), eps=1e-8, weight_decay=0.05, decay=0.97),
    ),
}
LION: tuple[Any, Rule] = (
    cl.Lion(lr=0.003, betas=(0.8, 0.95), weight_decay=0.05, decay=0.97),
    Rule("lion", lr=0.003, betas=(0.8, 0.95), weight_decay=0.05, decay=0.97),
)


def curved_model() -> nn.Sequential:
    """Four blocks as of `small_model`, with a bend between the cut and the server's BatchNorm.

    BatchNorm right after a linear layer makes the gradients of a batch's rows sum to zero, and the mean gradient which
    SGLR hands out would be nothing but rounding.
    """
    torch.default_generator.manual_seed(3)
    return nn.Sequential(
        nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh()),
        nn.Sequential(nn.Linear(6, 5), nn.Tanh()),
        nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU()),
        nn.Linear(6, 3),
    ).double()


def task_of(optimizer: str, server: str | None = None, **changes: Any) -> Task:
    """Five clients with 1, 2, 1, 3 and 0 batches of four, and a cut in the middle of four blocks.

    With a fixed number of steps a client below one batch trains on all it has.
    """
    server_rule = None if server is None else OPTIMIZERS[server][1]
    given: dict[str, Any] = {"model": small_model(), "clients": small_clients((5, 9, 6, 13, 3)), "cut": 1, "rounds": 2}
    given |= {"rule": OPTIMIZERS[optimizer][1], "server_rule": server_rule}
    if changes.get("local_steps") is not None:
        given["small_client"] = "one_batch"
    return Task(**given | changes)


def library(task: Task, scheme: Any, optimizer: str, server: str | None = None, **more: Any) -> cl.Result:
    """The library's answer to a task, without any randomness."""
    before = copied(task.model)
    given: dict[str, Any] = {
        "cut": task.cut,
        "scheme": scheme,
        "optimizer": OPTIMIZERS[optimizer][0],
        "server_optimizer": None if server is None else OPTIMIZERS[server][0],
        "rounds": task.rounds,
        "participation": 1.0,
        "batch_size": task.batch_size,
        "local_epochs": task.local_epochs,
        "local_steps": task.local_steps,
        "last_batch": task.last_batch,
        "shuffle": False,
    }
    if task.global_beta is not None:
        given["update"] = cl.FedAvgM(beta=task.global_beta)
    result = cl.train(task.model, task.clients, **given | more)
    assert difference(task.model, before) == 0, "train must not touch the caller's model"
    assert [record.n for record in result.history] == list(range(1, task.rounds + 1))
    return result


def same_clients(result: cl.Result, expected: Sequence[nn.Module]) -> bool:
    """Whether every client's personal model is the expected one; if none differs from another, they say nothing."""
    assert len(result.clients) == len(expected)
    assert any(difference(one, expected[0]) > 1e-4 for one in expected)
    return all(difference(result.clients[j], one) <= EXACT for j, one in enumerate(expected))
