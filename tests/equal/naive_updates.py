"""The global updates once more, as plainly as they can be said: SlowMo and FedNAG.

SlowMo  u <- b u + (x - Wbar) / g ; x <- x - a g u, with x the weights at the start of the round and g = eta_n; u is of
        parameters only. The local buffers start the next round at zero, or at the weighted mean of the last round's.
FedNAG  clients run NAG (or Adam); weights and moments are averaged, and the next round's clients start with both;
        Adam's step counter goes on from the largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from tests.equal.naive import Half, Moments, Part, Parts, Scheme, State, Task, copied, mean, part
from tests.equal.naive_local import in_two


@dataclass(frozen=True)
class SlowMo:
    """a, b, what becomes of the local buffers, and how the clients are weighted."""

    lr: float = 1.0
    beta: float = 0.6
    buffers: Literal["reset", "average"] = "reset"
    weights: Literal["samples", "uniform"] = "samples"


@dataclass(frozen=True)
class FedNAG:
    """Weights and moments are averaged alike."""


@dataclass(frozen=True)
class Memory:
    """What every client of a round starts its optimizer with."""

    moments: Moments
    t: int


def fedavg_with_memory(
    task: Task, n: int, model: nn.Sequential, parts: Parts, memory: Memory | None
) -> tuple[State, Memory]:
    """A round of plain federated averaging which starts from `memory` and tells the mean of the clients' own."""
    models = {j: Half(model, task.rule) for j in parts}
    for j, of_j in parts.items():
        if memory is not None:
            models[j].moments = {which: dict(of) for which, of in memory.moments.items()}
            models[j].t = memory.t
        for x, y in of_j.steps:
            loss = functional.cross_entropy(models[j].module(x), y)
            models[j].step(torch.autograd.grad(loss, list(models[j].weights.values())), n)
    total = sum(of_j.size for of_j in parts.values())
    moments: Moments = {"m": {}, "v": {}}
    for which, of in moments.items():
        for name, w in model.named_parameters():
            of[name] = torch.zeros_like(w)
            for j, of_j in parts.items():
                of[name] = (of[name] + of_j.size / total * models[j].moments[which][name]).detach()
    average = mean((models[j].module, of_j.size) for j, of_j in parts.items())
    return average, Memory(moments, max(half.t for half in models.values()))


def parts_of(task: Task, uniform: bool = False) -> Parts:
    """The clients that train, with their batches; all of them count the same where the weights are uniform."""
    every: Mapping[int, Part] = {j: part(task, j, None) for j in range(len(task.clients))}
    return {j: replace(p, size=1) if uniform else p for j, p in every.items() if p.steps}


def train(task: Task, update: SlowMo | FedNAG, scheme: Scheme | None = None) -> nn.Sequential:
    """Rounds of `scheme`, or of plain federated averaging, each followed by the update."""
    model, memory = copied(task.model), None
    u = {name: torch.zeros_like(w) for name, w in model.named_parameters()}
    if isinstance(update, FedNAG) and task.rule.kind == "sgd":
        task = replace(task, rule=replace(task.rule, kind="nag"))
    for n in range(1, task.rounds + 1):
        parts = parts_of(task, isinstance(update, SlowMo) and update.weights == "uniform")
        x = {name: value.clone() for name, value in model.state_dict().items()}
        if scheme is None:
            W, moments = fedavg_with_memory(task, n, model, parts, memory)
            if isinstance(update, FedNAG) or update.buffers == "average":
                memory = moments
        else:
            W = scheme(task, n, *in_two(model, task.cut), parts)
        if isinstance(update, SlowMo):
            g = task.rule.eta(n)
            for name in u:
                u[name] = update.beta * u[name] + (x[name] - W[name]) / g
                W[name] = x[name] - update.lr * g * u[name]
        model.load_state_dict(W)
    return model
