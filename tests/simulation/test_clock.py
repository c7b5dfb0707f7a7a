"""The simulated clock: by hand, by property, and against the specification's own simulation."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cutlayer as cl
from cutlayer.clients.waves import waves
from cutlayer.data.partition import Dirichlet
from cutlayer.nn.macs import Shape
from cutlayer.registry import SCHEMES
from cutlayer.simulation.clock import COMPOSITIONS, Clock, Timing, Work, seconds, server_seconds
from cutlayer.simulation.devices import Device, draw, seconds_per_sample

SPLIT = [name for name in COMPOSITIONS if name != "plain"]
PAPER_LIKE = Clock(sequential="paper_like")

# By hand: O = 40/100 = 0.4, S = 125*32/1000 = 4 kbit, p_s = 0.005 s.
SHAPE = Shape(macs=[40, 60], elements=[125, 10])
DEVICES = [Device(0.1, 100.0), Device(0.2, 80.0), Device(0.05, 40.0)]
WORK = Work(steps={0: 3, 1: 2, 2: 1}, batch={0: 10, 1: 10, 2: 20}, cut=0)
# client   dev = 3*B*p*O     srv = 3*B*p_s*0.6    comm = 2*B*S/b   t      T*t    sync = 2*1000*32/1000/b
# 0        30*0.1*0.4 = 1.2  30*0.005*0.6 = 0.09  80/100 = 0.8     2.09   6.27   64/100 = 0.64
# 1        30*0.2*0.4 = 2.4  30*0.005*0.6 = 0.09  80/80  = 1.0     3.49   6.98   64/80  = 0.80
# 2        60*.05*0.4 = 1.2  60*0.005*0.6 = 0.18  160/40 = 4.0     5.38   5.38   64/40  = 1.60
BY_HAND = {
    # the slowest of {0, 1, 2}, of {0, 1}, of {0}: 5.38 + 3.49 + 2.09
    "step_barrier": (10.96, 10.96 + 1.6),
    # the latest of 6.27, 6.98, 5.38; with sync of 6.91, 7.78, 6.98
    "round_barrier": (6.98, 7.78),
    # 6.27 + 6.98 + 5.38; with sync + 0.64 + 0.8 + 1.6
    "sequential": (18.63, 21.67),
    "relay": (18.63, 21.67),
    # (5.2 + 0.09 + 0.09 + 0.18) + (3.4 + 0.09 + 0.09) + (2.0 + 0.09) = 5.56 + 3.58 + 2.09
    "merged": (11.23, 11.23 + 1.6),
    # E_s = 2. k = 0: up max(0.4 + 0.4, 0.8 + 0.5, 0.4 + 2.0) = 2.4, server 2*0.36 = 0.72, frozen 2/3*0.18 = 0.12,
    #                 back max(0.8 + 0.4, 1.6 + 0.5, 0.8 + 2.0) = 2.8: 6.04
    #          k = 1: 1.3 + 2*0.18 + 0.06 + 2.1 = 3.82;  k = 2: 0.8 + 2*0.09 + 0.06 + 1.2 = 2.24
    "cycled": (12.10, 12.10 + 1.6),
    # the same phases, surrogates side by side: 2.4 + 5/3*0.18 + 2.8, 1.3 + 5/3*0.09 + 2.1, 0.8 + 5/3*0.09 + 1.2
    "cycled_side_by_side": (11.20, 11.20 + 1.6),
    # 3*(2.0 + 8/3*0.09) + 2*(3.4 + 8/3*0.09) + (5.2 + 8/3*0.18) = 6.72 + 7.28 + 5.68; with sync + 3.04
    "cycled_sequential": (19.68, 22.72),
    # whole steps 3*B*p = 3, 6, 3: the latest of 3*3 + 0.64, 2*6 + 0.8, 3 + 1.6, asked for or not
    "plain": (12.8, 12.8),
}


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_three_clients_by_hand(composition: str) -> None:
    without, with_sync = BY_HAND[composition]
    for clock, expected in ((Clock(), without), (Clock(sync=True), with_sync)):
        found = seconds(clock, Timing(composition, 2), WORK, DEVICES, SHAPE, 0.005, weights=1000)
        assert found == pytest.approx(expected, abs=1e-12)


def test_sflv2_as_the_paper_seems_to_count_it() -> None:
    """Clients side by side and the server's work in turn: the numbers of merged."""
    for clock, expected in ((PAPER_LIKE, 11.23), (dataclasses.replace(PAPER_LIKE, sync=True), 12.83)):
        assert seconds(clock, Timing("sequential"), WORK, DEVICES, SHAPE, 0.005, 1000) == pytest.approx(expected)
        assert seconds(clock, Timing("relay"), WORK, DEVICES, SHAPE, 0.005) == pytest.approx(
            18.63
        )  # the front is passed on


def test_equal_clients() -> None:
    """Then barriers cost nothing, and one after another is m times as long."""
    work = Work(dict.fromkeys(range(5), 7), dict.fromkeys(range(5), 10), 0)
    step, round, strict = (
        seconds(Clock(), Timing(name), work, DEVICES[:1] * 5, SHAPE, 0.005)
        for name in ("step_barrier", "round_barrier", "sequential")
    )
    assert step == pytest.approx(7 * 2.09) and round == pytest.approx(step) and strict == pytest.approx(5 * step)


def test_mergesfl_is_the_formula_of_the_specification() -> None:
    """T * [max_j d_j*(3*p_j*O + 2*S/b_j) + 3*p_s*(1 - O)*sum_j d_j]."""
    u = {j: seconds_per_sample(device, SHAPE, 0) for j, device in enumerate(DEVICES)}
    d = cl.MergeSFL().batches(16, dict.fromkeys(u, 1000), u)
    expected = 75 * (max(d[j] * u[j] for j in u) + 3 * 0.005 * 0.6 * sum(d.values()))
    assert seconds(Clock(), Timing("merged"), Work(dict.fromkeys(u, 75), d, 0), DEVICES, SHAPE, 0.005) == pytest.approx(
        expected
    )


def test_the_server_is_kappa_times_the_mean_device() -> None:
    assert server_seconds(DEVICES, 100.0) == pytest.approx(0.35 / 3 / 100)
    many = [Device(0.1, 1.0)] * 1000 + [Device(9.0, 1.0)]
    assert server_seconds(many, 50.0) == pytest.approx(0.1 / 50)  # the first thousand stand for all


def test_clients_without_steps_take_no_part() -> None:
    idle = Work({**WORK.steps, 7: 0}, WORK.batch, 0)
    for name in COMPOSITIONS:
        same = seconds(Clock(sync=True), Timing(name), WORK, DEVICES, SHAPE, 0.005, 9)
        assert seconds(Clock(sync=True), Timing(name), idle, DEVICES, SHAPE, 0.005, 9) == same
        assert seconds(Clock(), Timing(name), Work({0: 0}, {}, 0), DEVICES, SHAPE, 0.005) == 0.0


def test_payload_of_a_step() -> None:
    """At 1 Mbit/s and without computing, the seconds are the Mbit: ResNet-18 at 32x32 and ResNet-34 at 64x64, L = 2."""
    for elements, B, mbit in ((4096, 32, 8.4), (16384, 64, 67.0)):
        found = seconds(
            Clock(), Timing("step_barrier"), Work({0: 1}, {0: B}, 0), [Device(0.0, 1000.0)], Shape([1], [elements]), 0
        )
        assert found == pytest.approx(mbit, rel=0.005)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"kappa": 0}, "kappa = 0"), ({"sync": 1}, "sync = 1"), ({"sequential": "paper"}, "sequential = 'paper'")],
)
def test_bad_clocks_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(cl.ContractError, match=said):
        Clock(**settings)


def test_unknown_compositions_are_named() -> None:
    with pytest.raises(cl.ContractError, match="unknown composition 'merge': did you mean 'merged'"):
        seconds(Clock(), Timing("merge"), WORK, DEVICES, SHAPE, 0.005)


# Which scheme is composed how


EXPECTED = {
    "fedavg": "round_barrier",
    "sflv1": "round_barrier",
    "sflv2": "sequential",
    "smofi": "step_barrier",
    "mergesfl": "merged",
    "psl": "round_barrier",
    "sglr": "step_barrier",
    "ssl": "relay",
    "cyclepsl": "cycled",
    "cyclesfl": "cycled",
    "cyclesglr": "cycled",
    "cyclessl": "cycled_sequential",
}


def test_every_scheme_has_its_composition() -> None:
    found = {name: part.make(**part.fixed).traits.timing.composition for name, part in SCHEMES.items()}
    assert {name: found[name] for name in EXPECTED} == EXPECTED


def test_the_composition_follows_the_parameters() -> None:
    assert cl.SFLV1(every="step").traits.timing == Timing("step_barrier", 1)
    assert cl.SFLV1(every="round").traits.timing == Timing("round_barrier", 1)
    assert cl.SFLV2(order="step").traits.timing == Timing("sequential", 1)
    assert cl.CycleSFL(server_epochs=4).traits.timing == Timing("cycled", 4)
    assert cl.CycleSSL(server_epochs=0).traits.timing == Timing("cycled_sequential", 0)


def test_a_scheme_of_ones_own_says_how_its_time_is_counted() -> None:
    class Mine(cl.MergeSFL):
        pass

    assert Mine().traits.timing == Timing("merged")
    with pytest.raises(cl.ContractError, match="unknown composition 'at once'"):
        Timing("at once")


# Properties

times = st.floats(0.001, 1.0)
clients = st.lists(st.tuples(times, st.floats(10, 1e5), st.integers(1, 6), st.integers(1, 64)), min_size=1, max_size=5)


def told(drawn: list[tuple[float, float, int, int]]) -> tuple[Work, list[Device]]:
    steps, batch = {j: c[2] for j, c in enumerate(drawn)}, {j: c[3] for j, c in enumerate(drawn)}
    return Work(steps, batch, 0), [Device(c[0], c[1]) for c in drawn]


@given(clients, st.booleans())
@settings(max_examples=60, deadline=None)
def test_who_waits_less_is_never_later(drawn: list[tuple[float, float, int, int]], sync: bool) -> None:
    work, devices = told(drawn)
    clock, like = Clock(sync=sync), Clock(sync=sync, sequential="paper_like")
    took = {name: seconds(clock, Timing(name), work, devices, SHAPE, 0.002, 500) for name in SPLIT}
    took["paper_like"] = seconds(like, Timing("sequential"), work, devices, SHAPE, 0.002, 500)
    orders = [
        ("round_barrier", "step_barrier", "paper_like", "sequential", "relay", "cycled_sequential"),
        ("paper_like", "merged", "cycled", "cycled_sequential"),
    ]
    for order in orders:
        for less, more in itertools.pairwise(order):
            assert took[less] <= took[more] * (1 + 1e-9)


@given(clients, st.sampled_from(list(COMPOSITIONS)), st.integers(0, 4), st.floats(1.0, 10.0))
@settings(max_examples=60, deadline=None)
def test_faster_is_never_later(
    drawn: list[tuple[float, float, int, int]], name: str, which: int, faster: float
) -> None:
    work, devices = told(drawn)
    j = which % len(devices)
    p, b = devices[j]
    before = seconds(Clock(sync=True), Timing(name), work, devices, SHAPE, 0.002, 500)
    for device in (Device(p, b * faster), Device(p / faster, b)):
        now = [*devices[:j], device, *devices[j + 1 :]]
        assert seconds(Clock(sync=True), Timing(name), work, now, SHAPE, 0.002, 500) <= before * (1 + 1e-9)


@given(clients)
@settings(max_examples=30, deadline=None)
def test_steps_are_the_waves_of_a_round(drawn: list[tuple[float, float, int, int]]) -> None:
    work, devices = told(drawn)
    t = {j: seconds(Clock(), Timing("relay"), Work({j: 1}, work.batch, 0), devices, SHAPE, 0.002) for j in work.steps}
    each = math.fsum(
        max(t[j] for j in wave.clients) for wave in waves("together", {j: [T] for j, T in work.steps.items()})
    )
    assert seconds(Clock(), Timing("step_barrier"), work, devices, SHAPE, 0.002) == pytest.approx(each)


# The specification's simulation: ResNets with the ImageNet stem cut at L = 2, Dir(0.2), five local epochs


@dataclass(frozen=True)
class Task:
    rows: int
    classes: int
    clients: int
    m: int
    B: int
    shape: Shape
    hours: float  # of a round with a step barrier
    ratios: list[tuple[float, float]]  # to it, the ranges printed


RESNET18 = Shape([11_840_000, 25_160_000], [4096, 10])  # O = 0.320
RESNET34 = Shape([47_242_000, 251_758_000], [16384, 200])  # O = 0.158
TASKS = {  # ratios: the round barrier, SFLV2 as the paper seems to count it, SFLV2 strictly
    # The specification prints 0.82 to 0.86 for the first. It is 0.805 +- 0.003 (3,840 rounds, 240 partitions), and the
    # few partitions of a test, or of a specification, are up to 0.03 beside that.
    "cifar10": Task(50_000, 10, 100, 20, 32, RESNET18, 0.54, [(0.775, 0.835), (1.00, 1.09), (2.8, 5.0)]),
    "cifar100": Task(50_000, 100, 100, 20, 32, RESNET18, 0.36, [(0.91, 0.95), (1.00, 1.15), (3.6, 7.7)]),
    "tiny": Task(100_000, 200, 200, 40, 64, RESNET34, 1.55, [(0.92, 0.95), (1.00, 1.58), (5.6, 13.8)]),
}


@pytest.mark.parametrize("name", TASKS)
def test_hours_and_ratios_of_the_specification(name: str) -> None:
    """Hours within 15 %: thousands of rounds give 0.52, 0.35 and 1.53. Ratios within the printed ranges, but one."""
    task = TASKS[name]
    took: list[list[float]] = []
    for seed in range(6):
        generator = np.random.default_rng(seed)
        labels = np.arange(task.rows) % task.classes
        T = [5 * (len(part) // task.B) for part in Dirichlet(0.2)(labels, task.clients, generator)]
        for fleet in range(10):
            devices = draw("lognormal", task.clients, 10 * seed + fleet, sum(task.shape.macs))[:]
            p_s = server_seconds(devices, 100.0)
            for _ in range(3):
                J = generator.choice(task.clients, task.m, replace=False).tolist()
                work = Work({j: T[j] for j in J}, dict.fromkeys(J, task.B), 0)
                ways = [
                    (Clock(), "step_barrier"),
                    (Clock(), "round_barrier"),
                    (PAPER_LIKE, "sequential"),
                    (Clock(), "relay"),
                ]
                took.append([seconds(clock, Timing(way), work, devices, task.shape, p_s) for clock, way in ways])
    step, *others = np.mean(took, axis=0)
    assert step / 3600 == pytest.approx(task.hours, rel=0.15)
    for mean, (low, high) in zip(others, task.ratios, strict=True):
        assert low - 0.005 <= mean / step <= high + 0.005  # printed with two digits


def test_mergesfl_equalises_as_the_specification_says() -> None:
    """Seconds a step, fixed T: a barrier without regulation 16 and 148, perfectly equalised 5 and 25. Regulated within
    bounds it comes to 4.8 and 31: on Tiny the least batch, 8 of 64, is too much for the slowest."""
    for task, barrier, equal, clamped in ((TASKS["cifar10"], 16, 5, 4.8), (TASKS["tiny"], 148, 25, 31)):
        took = []
        for seed in range(100):
            devices = draw("lognormal", task.m, seed, sum(task.shape.macs))[:]
            p_s = server_seconds(devices, 100.0)
            u = {j: seconds_per_sample(device, task.shape, 0) for j, device in enumerate(devices)}
            one, alike = dict.fromkeys(u, 1), dict.fromkeys(u, task.B)
            perfect = {j: task.m * task.B / u[j] / sum(1 / v for v in u.values()) for j in u}
            regulated = cl.MergeSFL().batches(task.B, dict.fromkeys(u, 10_000), u)
            ways = [("step_barrier", alike), ("merged", perfect), ("merged", regulated)]
            took.append([seconds(Clock(), Timing(way), Work(one, d, 0), devices, task.shape, p_s) for way, d in ways])
        assert np.mean(took, axis=0) == pytest.approx([barrier, equal, clamped], rel=0.15)


def test_a_front_that_is_kept_does_not_travel() -> None:
    work, shape = Work({0: 2}, {0: 4.0}, 0), Shape([50, 50], [1000, 10])
    devices, clocks = [Device(0.1, 1000.0)], [Clock(sync=sync) for sync in (False, True)]
    kept = [cl.PSL().traits.seconds(clock, work, devices, shape, 0.001, 5000) for clock in clocks]
    sent = [cl.SFLV1(every="round").traits.seconds(clock, work, devices, shape, 0.001, 5000) for clock in clocks]
    assert kept[0] == kept[1] == sent[0]
    assert sent[1] - sent[0] == pytest.approx(2 * 5000 * 32 / 1000 / 1000)  # 160 kbit down and 160 up at 1 Mbit/s
