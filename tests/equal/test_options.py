"""SMoFi's two options that are not the paper's, against restatements of their own: float64, to 1e-9.

fuse_clients   the clients' own momenta are averaged after every step, by the very formula of the server's
adaptive       a finished client's momentum counts by its cosine with the sum of the fresh ones, not by its age

The four clients that take part have 2, 4, 6 and 10 steps, so finished ones are averaged in from the third step on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl
from tests.equal import naive
from tests.equal.compare import EXACT, OPTIMIZERS
from tests.equal.naive import (
    Half,
    Moments,
    Parts,
    Rule,
    Scheme,
    State,
    Task,
    difference,
    mean,
    small_clients,
    small_model,
)

Weigh = Callable[[int, int, Moments, Moments], float]  # k, k_j, a finished client's last momentum, the sum of the fresh


def power(alpha: float) -> Weigh:
    """The paper's: the age of a momentum in steps, to the power of alpha."""
    return lambda k, k_j, final, fresh: float(k - k_j + 1) ** alpha


def cosine(seen: list[float]) -> Weigh:
    """Ours: the first moments of a whole half, laid end to end; what points the other way counts nothing."""

    def weigh(k: int, k_j: int, final: Moments, fresh: Moments) -> float:
        one, other = (torch.cat([m.flatten() for m in moments["m"].values()]) for moments in (final, fresh))
        seen.append(float(torch.nn.functional.cosine_similarity(one, other, dim=0, eps=0)))
        return max(0.0, seen[-1])

    return weigh


class Fusing:
    """Momenta of one side of the cut, averaged step by step."""

    def __init__(self, halves: Mapping[int, Half], parts: Parts, weigh: Weigh, rebias: bool = False) -> None:
        self.halves, self.parts, self.weigh, self.rebias = halves, parts, weigh, rebias
        self.finished: dict[int, tuple[int, Moments]] = {}

    def after_step(self, k: int, active: Sequence[int]) -> None:
        """( sum_A m_j + sum_H s_j m_j ) / m takes the place of every active client's momentum."""
        one = self.halves[active[0]]
        fresh: Moments = {
            which: {name: self.total([self.halves[j].moments[which][name] for j in active]) for name in one.weights}
            for which in ("m", "v")
        }
        s = {j: self.weigh(k, k_j, final, fresh) for j, (k_j, final) in self.finished.items()}
        betas = dict(zip(("m", "v"), one.rule.betas, strict=True))
        average: Moments = {"m": {}, "v": {}}
        for which, beta in betas.items():
            for name, total in fresh[which].items():
                for j, (k_j, final) in self.finished.items():
                    aged = (1 - beta ** (k + 1)) / (1 - beta ** (k_j + 1)) if self.rebias else 1.0
                    total = total + s[j] * aged * final[which][name]
                average[which][name] = total / (len(active) + len(self.finished))
        for j in active:
            if k + 1 == len(self.parts[j].steps):
                self.finished[j] = (k, self.halves[j].moments)
            self.halves[j].moments = {which: dict(state) for which, state in average.items()}

    @staticmethod
    def total(momenta: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(momenta)).sum(dim=0)


def smofi(weigh: Weigh, clients_too: bool, rebias: bool = False) -> Scheme:
    """Fusion of the surrogates, and (if asked) of the fronts."""

    def play(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
        fronts = {j: Half(front, task.rule) for j in parts}
        backs = {j: Half(back, task.server_rule or task.rule) for j in parts}
        sides = [Fusing(backs, parts, weigh, rebias)] + [Fusing(fronts, parts, weigh, rebias)] * clients_too
        for k in range(max(len(p.steps) for p in parts.values())):
            active = [j for j, p in parts.items() if k < len(p.steps)]
            for j in active:
                naive.split_step(fronts[j], backs[j], parts[j].steps[k], n)
            for side in sides:
                side.after_step(k, active)
        return {
            **mean((fronts[j].module, p.size) for j, p in parts.items()),
            **mean((backs[j].module, p.size) for j, p in parts.items()),
        }

    return play


def task_of(optimizer: str, server: str | None = None, global_beta: float | None = 0.3) -> Task:
    server_rule = None if server is None else OPTIMIZERS[server][1]
    rule = OPTIMIZERS[optimizer][1]
    return Task(small_model(), small_clients(), 1, rule, server_rule, rounds=2, global_beta=global_beta)


def library(task: Task, scheme: cl.SMoFi, optimizer: str, server: str | None = None) -> cl.Result:
    given: dict[str, Any] = {"optimizer": OPTIMIZERS[optimizer][0]}
    if server is not None:
        given["server_optimizer"] = OPTIMIZERS[server][0]
    if task.global_beta is not None:
        given["update"] = cl.FedAvgM(task.global_beta)
    sizes: dict[str, Any] = {"rounds": task.rounds, "batch_size": task.batch_size, "local_epochs": task.local_epochs}
    return cl.train(task.model, task.clients, cut=task.cut, scheme=scheme, shuffle=False, **given, **sizes)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fuse_clients(optimizer: str) -> None:
    task = task_of(optimizer)
    ours = library(task, cl.SMoFi(alpha=-0.5, fuse_clients=True), optimizer).model
    assert difference(ours, naive.train(task, smofi(power(-0.5), clients_too=True))) <= EXACT
    assert difference(ours, naive.train(task, smofi(power(-0.5), clients_too=False))) > 1e-5


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("clients_too", [False, True], ids=["server", "clients-too"])
def test_adaptive(optimizer: str, clients_too: bool) -> None:
    task, seen = task_of(optimizer), list[float]()
    ours = library(task, cl.SMoFi(alpha=-0.5, adaptive=True, fuse_clients=clients_too), optimizer).model
    assert difference(ours, naive.train(task, smofi(cosine(seen), clients_too))) <= EXACT
    assert difference(ours, naive.train(task, smofi(power(-0.5), clients_too))) > 1e-5
    assert len(seen) == 2 * (2 + 2 * 2 + 4 * 3) * (1 + clients_too)
    assert max(abs(cos) for cos in seen) < 0.999 and any(cos > 0 for cos in seen)


def test_a_momentum_that_points_the_other_way_counts_nothing() -> None:
    """Of two clients with little momentum, the second has the first one's labels turned round."""
    x = torch.linspace(-1, 1, 40, dtype=torch.float64).reshape(10, 4)
    y = torch.zeros(10, dtype=torch.int64)
    torch.default_generator.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).double()
    task = Task(model, [(x[:4], y[:4]), (x, 1 - y)], 0, Rule("sgd", lr=0.05, momentum=0.1), rounds=2)
    given: dict[str, Any] = {"optimizer": cl.SGD(lr=0.05, momentum=0.1, weight_decay=0.0), "rounds": 2}
    given |= {"batch_size": 4, "local_epochs": 2, "shuffle": False}
    ours = cl.train(model, task.clients, scheme=cl.SMoFi(adaptive=True), **given).model
    seen: list[float] = []
    assert difference(ours, naive.train(task, smofi(cosine(seen), clients_too=False))) <= EXACT
    assert min(seen) < -0.1
    assert difference(ours, naive.train(task, smofi(power(-0.1), clients_too=False))) > 1e-4


@pytest.mark.parametrize(("optimizer", "server"), [("sgd", "nag"), ("sgd", "adam"), ("adam", "sgd"), ("adamw", "adam")])
def test_fuse_clients_with_another_optimizer_on_the_server(optimizer: str, server: str) -> None:
    task = task_of(optimizer, server)
    ours = library(task, cl.SMoFi(alpha=-0.5, fuse_clients=True), optimizer, server).model
    assert difference(ours, naive.train(task, smofi(power(-0.5), clients_too=True))) <= EXACT


@pytest.mark.parametrize(("optimizer", "server"), [("adam", None), ("adamw", "adam")])
def test_fuse_clients_rescales_old_moments_by_the_clients_own_betas(optimizer: str, server: str | None) -> None:
    task = task_of(optimizer, server)
    ours = library(task, cl.SMoFi(fuse_clients=True, rebias_history=True), optimizer, server).model
    assert difference(ours, naive.train(task, smofi(power(-0.1), clients_too=True, rebias=True))) <= EXACT


@pytest.mark.parametrize(("optimizer", "moments"), [("sgd", 1), ("nag", 1), ("adam", 2), ("adamw", 2)])
def test_fuse_clients_is_paid_for(optimizer: str, moments: int) -> None:
    """Each client sends its momentum and gets the fused one, at every step."""
    task = task_of(optimizer)
    plain, fused = (library(task, cl.SMoFi(fuse_clients=on), optimizer).history for on in (False, True))
    front = 8 * sum(w.numel() for w in task.model[: task.cut + 1].parameters())
    for before, after in zip(plain, fused, strict=True):
        assert before.steps == after.steps == 2 + 4 + 6 + 10
        assert after.bytes_up - before.bytes_up == after.steps * moments * front
        assert after.bytes_down - before.bytes_down == after.steps * moments * front


def test_adaptive_costs_nothing() -> None:
    task = task_of("sgd")
    plain, adaptive = (library(task, cl.SMoFi(adaptive=on), "sgd").history for on in (False, True))
    assert [(r.bytes_up, r.bytes_down) for r in plain] == [(r.bytes_up, r.bytes_down) for r in adaptive]


@pytest.mark.parametrize("protocol", ["smofi", "cyclesl"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_clients_alike_stay_alike(optimizer: str, protocol: str) -> None:
    """With the same samples everywhere, every momentum is the mean already, and fusing it changes nothing."""
    x, y = small_clients()[2]
    given: dict[str, Any] = {"optimizer": OPTIMIZERS[optimizer][0], "protocol": protocol, "rounds": 3, "cut": 1}
    given |= {"batch_size": 4, "local_steps": 2, "shuffle": False}
    plain, fused = (
        cl.train(small_model(), [(x, y)] * 3, scheme=cl.SMoFi(fuse_clients=on), **given).model for on in (False, True)
    )
    assert difference(plain, fused) <= EXACT
