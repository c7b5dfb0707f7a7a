"""MergeSFL's regulation and selection, and the devices they look at."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import cutlayer as cl
from cutlayer.core.randomness import EVERYBODY
from cutlayer.nn.macs import Shape
from cutlayer.simulation.devices import draw, seconds_per_sample


def test_batches_follow_speed_within_bounds() -> None:
    cost = {0: 1.0, 1: 2.0, 2: 100.0, 3: 0.01}
    d = cl.MergeSFL().batches(16, {0: 500, 1: 500, 2: 500, 3: 50}, cost)
    total = sum(1 / u for u in cost.values())
    assert d[0] == max(2, round(64 / total)) and d[2] == 2  # the slowest gets the least
    assert d[3] == 50  # as fast as four budgets, but it has 50 rows
    assert cl.MergeSFL().batches(16, dict.fromkeys(range(4), 500), dict.fromkeys(range(4), 3.0)) == dict.fromkeys(
        range(4), 16
    )


def test_seconds_per_sample() -> None:
    shape = Shape(macs=[100, 300, 600], elements=[50, 20, 10])
    u = seconds_per_sample(cl.Device(seconds=0.01, kbps=8.0), shape, cut=1)
    assert u == pytest.approx(3 * 0.01 * 0.4 + 2 * (20 * 32 / 1000) / 8.0)


def histogram(j: int) -> NDArray[np.float64]:
    table = np.eye(4)
    return np.full(4, 0.25) if j == EVERYBODY else table[j % 4]


def divergence(chosen: tuple[int, ...], d: dict[int, int]) -> float:
    Phi = sum((d[j] * histogram(j) for j in chosen), np.zeros(4)) / sum(d[j] for j in chosen)
    return sum(p * math.log((p + 1e-8) / (0.25 + 1e-8)) for p in Phi)


def test_kl_greedy_finds_the_cohort_nearest_to_everybody() -> None:
    d = dict.fromkeys(range(8), 10)
    pool = [0, 4, 1, 5, 2, 6, 3, 7]
    chosen = cl.MergeSFL(select="kl_greedy").choose(pool, 4, d, {}, histogram)
    assert chosen is not None
    best = min(divergence(c, d) for c in itertools.combinations(pool, 4))
    assert divergence(tuple(chosen), d) == pytest.approx(best)


def test_kl_greedy_gives_ties_to_the_fewest_turns() -> None:
    d = dict.fromkeys(range(8), 10)
    turns = {0: 3, 1: 3, 2: 3, 3: 3}
    assert cl.MergeSFL(select="kl_greedy").choose(list(range(8)), 4, d, turns, histogram) == [4, 5, 6, 7]
    assert cl.MergeSFL().traits.needs_labels == "no"  # then nobody is chosen by them


def skewed() -> tuple[nn.Sequential, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Twelve clients with one class each: 0, 0, 0, 1, 1, 1, ..."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))
    return model, [(torch.randn(20, 5), torch.full((20,), j // 3)) for j in range(12)]


def test_a_run_with_kl_greedy_has_every_class_in_every_round_and_takes_turns() -> None:
    model, clients = skewed()
    settings = {"participation": 4, "rounds": 6, "local_steps": 2, "batch_size": 8}
    history = cl.train(model, clients, scheme=cl.MergeSFL(select="kl_greedy"), **settings).history
    for round in history:
        assert len({j // 3 for j in round.clients}) >= 3  # the pool of eight may lack a class
    plain = cl.train(model, clients, scheme="mergesfl", **settings).history
    spread = [sum(len({j // 3 for j in r.clients}) for r in rounds) for rounds in (history, plain)]
    assert spread[0] > spread[1]
    again = cl.train(model, clients, scheme=cl.MergeSFL(select="kl_greedy"), **settings).history
    assert [r.clients for r in again] == [r.clients for r in history]


def test_the_rate_follows_the_batch_only_where_asked() -> None:
    assert cl.MergeSFL().rate(0.1, 4, 8) == 0.1
    assert cl.MergeSFL(scale_lr=True).rate(0.1, 4, 8) == pytest.approx(0.05)


def test_lognormal_devices_are_drawn_once_per_client_and_seed() -> None:
    resnet18 = 37_000_000  # MACs: the model the profile's seconds are for
    one, again, other = (draw("lognormal", n, seed, resnet18)[:] for n, seed in ((200, 0), (300, 0), (200, 1)))
    assert one == again[:200] and one != other
    assert 0.05 < np.median([d.seconds for d in one]) < 0.09 and 4000 < np.median([d.kbps for d in one]) < 9000
    assert all(0.015 <= d.seconds <= 0.2 and 100 <= d.kbps <= 100_000 for d in one)


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ([(0.1, 10.0)], "1 of them"),
        ([(0.1, 0.0)] * 12, "profile\\[0\\].kbps = 0.0"),
        ([(-1.0, 10.0)] * 12, "profile\\[0\\].seconds = -1.0"),
        ("fast", "profile"),
        ([0.1] * 12, "profile"),
    ],
)
def test_bad_devices_are_named(devices: object, said: str) -> None:
    model, clients = skewed()
    with pytest.raises(cl.ContractError, match=said):
        cl.train(model, clients, scheme="mergesfl", batch_size=8, profile=devices)  # type: ignore[arg-type]
