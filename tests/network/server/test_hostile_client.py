"""Clients that break the contract are lost at that point, and named; the others end with the simulator's bits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import cutlayer as cl
from cutlayer.clients.codec import Encoded
from cutlayer.network.client.loop import Joined
from tests.clients.faulty import REPORT, Fault, What
from tests.network.harness import network, play, rows
from tests.network.hostile_client import Bend, at, bent, dialled, like, simulated, unhurried
from tests.network.test_bits import same

DATA = rows((8, 12, 9))  # 2, 3 and 2 steps of 4
BAD = 1  # who breaks it: ward-1
BASE: dict[str, Any] = {"cut": 0, "batch_size": 4, "local_epochs": 1, "scheme": "smofi"}
Breach = Any
"""A message -> what goes out instead, and what the journal says of it."""


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    unhurried(monkeypatch)


def nan(x: Tensor, value: float = math.nan) -> Tensor:
    x = x.clone()
    x.view(-1)[-1] = value
    return x


def moved(answer: Encoded, **by: int) -> Encoded:
    """Another address: round, client, step or attempt."""
    names = ("round", "client", "step", "attempt")
    return like(answer, address=[n + by.get(name, 0) for n, name in zip(answer[1]["address"], names, strict=True)])


SMASHED: dict[str, Breach] = {
    "NaN": (lambda m: like(m, nan(m[2][0]), m[2][1]), "smashed data with NaN or infinity"),
    "infinity": (lambda m: like(m, nan(m[2][0], -math.inf), m[2][1]), "smashed data with NaN or infinity"),
    "wider": (lambda m: like(m, torch.ones(4, 9), m[2][1]), "smashed data of torch.float32 (4, 9)"),
    "flat": (lambda m: like(m, torch.ones(32), m[2][1]), "smashed data of torch.float32 (32,)"),
    "deeper": (lambda m: like(m, torch.ones(4, 8, 1), m[2][1]), "smashed data of torch.float32 (4, 8, 1)"),
    "doubles": (lambda m: like(m, m[2][0].double(), m[2][1]), "smashed data of torch.float64"),
    "halves": (lambda m: like(m, m[2][0].half(), m[2][1]), "smashed data of torch.float16"),
    "too many rows": (lambda m: like(m, torch.ones(5, 8), torch.zeros(5).long()), "smashed data of torch.float32 (5,"),
    "no rows": (lambda m: like(m, torch.ones(0, 8), torch.zeros(0).long()), "smashed data of torch.float32 (0,"),
    "label 3 of 3": (lambda m: like(m, m[2][0], torch.tensor([0, 1, 2, 3])), "labels outside 0..2"),
    "label -1": (lambda m: like(m, m[2][0], torch.tensor([0, 1, 2, -1])), "labels outside 0..2"),
    "labels of another type": (lambda m: like(m, m[2][0], m[2][1].int()), "labels of torch.int32"),
    "labels missing": (lambda m: like(m, m[2][0]), "a Smashed of 1 tensors, expected 2"),
    "too few labels": (lambda m: like(m, m[2][0], m[2][1][:3]), "labels of torch.int64 (3,)"),
    "a third tensor": (lambda m: like(m, *m[2], torch.ones(1)), "a Smashed of 3 tensors, expected 2"),
    "next round": (lambda m: moved(m, round=1), "a Smashed for round 17, attempt 0, client 1, step 1, expected"),
    "next attempt": (lambda m: moved(m, attempt=1), "attempt 1, client 1, step 1, expected round"),
    "next step": (lambda m: moved(m, step=1), "client 1, step 2, expected round"),
    "another's number": (lambda m: moved(m, client=-1), "client 0, step 1, expected round"),
    "another's, and late": (lambda m: moved(m, client=1, round=-1), "client 2, step 1, expected round"),
    "no address": (lambda m: like(m, address=None), "a 'Smashed' without an address"),
    "half an address": (lambda m: like(m, address=[22, 1]), "a 'Smashed' without an address"),
    "an address of words": (lambda m: like(m, address=["22", 1, 1, 0]), "a 'Smashed' without an address"),
    "another kind": (lambda m: like(m, kind="FeatureGrad"), "a 'FeatureGrad' where a Smashed was due"),
    "no kind": (lambda m: like(m, kind="x" * 99), "a 'xxxxxxxxxxxxxxxxxxxx' where a Smashed was due"),
    "the server's kind": (lambda m: like(m, kind="CutGrad"), "a 'CutGrad' where a Smashed was due"),
    "a report, early": (lambda m: like(moved(m, step=-2), kind="Report"), "a 'Report' where a Smashed was due"),
    "labels kept back": (lambda m: like(m, m[2][0], y=0), "smashed data without labels"),
    "labels twice": (lambda m: like(m, *m[2], m[2][1], y=2), "a Smashed with y = 2"),
}
SOME = {name: SMASHED[name] for name in ("NaN", "wider", "too many rows", "label -1", "next step", "another kind")}
REPORTS: dict[str, Breach] = {
    "NaN": (lambda m: like(m, nan(m[2][0]), *m[2][1:]), "a vector with NaN or infinity"),
    "infinite statistics": (
        lambda m: like(m, m[2][0], nan(m[2][1], math.inf), m[2][2]),
        "a vector with NaN or infinity",
    ),
    "too long": (lambda m: like(m, torch.ones(len(m[2][0]) + 1), *m[2][1:]), "a vector of torch.float32 (57,)"),
    "too short": (lambda m: like(m, m[2][0][1:], *m[2][1:]), "a vector of torch.float32 (55,)"),
    "as a matrix": (lambda m: like(m, m[2][0][None], *m[2][1:]), "a vector of torch.float32 (1, 56)"),
    "doubles": (lambda m: like(m, m[2][0].double(), *m[2][1:]), "a vector of torch.float64"),
    "counters of another type": (lambda m: like(m, *m[2][:2], m[2][2].int()), "a vector of torch.int32"),
    "a vector missing": (lambda m: like(m, *m[2][:2]), "a Report of 2 tensors, expected 3"),
    "moments nobody asked for": (lambda m: like(m, *m[2], m[2][0]), "a Report of 4 tensors, expected 3"),
    "moments in words too": (
        lambda m: like(m, *m[2], m[2][0], memory=[1, 3]),
        "a report with parts that were not asked for, or without parts that were",
    ),
    "no front": (lambda m: like(m, torch.ones(1), end=0), "a Report of 1 tensors, expected 0"),
    "memory shared after all": (lambda m: like(m, shares_memory=True), "a report with parts that were not asked for"),
    "more samples": (lambda m: like(m, samples=12_000), "a report of 12000 samples, expected 12"),
    "fewer samples": (lambda m: like(m, samples=1), "a report of 1 samples, expected 12"),
    "no samples": (lambda m: like(m, samples=None), "a Report without samples"),
    "samples in words": (lambda m: like(m, samples="12"), "a Report with samples = '12': expected a count"),
    "half a sample": (lambda m: like(m, samples=12.0), "a Report with samples = 12.0: expected a count"),
    "clipped below zero": (lambda m: like(m, clipped=-1), "a Report with clipped = -1: expected a count"),
    "tried beyond counting": (
        lambda m: like(m, tried=2**60),
        "a Report with tried = 11529",
    ),
    "a word more": (lambda m: like(m, script="rm"), "a Report with an unknown script"),
    "as a step": (lambda m: moved(m, step=1), "expected round"),
}
FEATURES: dict[str, Breach] = {
    "NaN": (lambda m: like(m, nan(m[2][0])), "a gradient with NaN or infinity"),
    "wider": (lambda m: like(m, torch.ones(4, 9)), "a gradient of torch.float32 (4, 9)"),
    "doubles": (lambda m: like(m, m[2][0].double()), "a gradient of torch.float64"),
    "fewer rows": (lambda m: like(m, m[2][0][:3]), "a gradient of torch.float32 (3, 8)"),
    "labels after all": (lambda m: like(m, m[2][0], torch.zeros(4).long()), "a FeatureGrad of 2 tensors, expected 1"),
    "the step again": (lambda m: like(m, kind="Square"), "a 'Square' where a FeatureGrad was due"),
}
SQUARES: dict[str, Breach] = {
    "NaN": (lambda m: like(m, nan(m[2][0])), "a squared norm with NaN or infinity"),
    "infinity": (lambda m: like(m, nan(m[2][0], math.inf)), "a squared norm with NaN or infinity"),
    "below zero": (lambda m: like(m, -m[2][0] - 1), "a squared norm below 0"),
    "single": (lambda m: like(m, m[2][0].float()), "a squared norm of torch.float32 ()"),
    "a vector": (lambda m: like(m, m[2][0].view(1)), "a squared norm of torch.float64 (1,)"),
}
MOMENTA: dict[str, Breach] = {
    "NaN": (lambda m: like(m, nan(m[2][0])), "a vector with NaN or infinity"),
    "too long": (lambda m: like(m, torch.ones(57)), "a vector of torch.float32 (57,)"),
    "two": (lambda m: like(m, m[2][0], m[2][0]), "a Momentum of 2 tensors, expected 1"),
    "two in words": (lambda m: like(m, m[2][0], m[2][0], m=2), "2 moments, where SGD has 1"),
}
MEMORY: dict[str, Breach] = {
    "NaN": (lambda m: like(m, *m[2][:3], nan(m[2][3])), "a vector with NaN or infinity"),
    "too long": (lambda m: like(m, *m[2][:3], torch.ones(57)), "a vector of torch.float32 (57,)"),
    "missing": (lambda m: like(m, *m[2][:3]), "a Report of 3 tensors, expected 4"),
    "age below zero": (lambda m: like(m, memory=[1, -1]), "a Report with memory = [1, -1]: expected a count"),
}
GROUPS: dict[str, tuple[Mapping[str, Breach], str, What, int, dict[str, Any]]] = {
    "smashed": (SMASHED, "Smashed", "step", 1, {}),
    "smashed-sflv2": (SOME, "Smashed", "step", 1, {"scheme": "sflv2"}),
    "smashed-cyclesfl": (SOME, "Smashed", "step", 1, {"scheme": "cyclesfl"}),
    "report": (REPORTS, "Report", "step", REPORT, {}),
    "features": (FEATURES, "FeatureGrad", "features", 1, {"labels": "stay"}),
    "square": (SQUARES, "Square", "square", 1, {"local": cl.FedNAR(max_norm=0.5)}),
    "momentum": (MOMENTA, "Momentum", "momentum", 2, {"scheme": cl.SMoFi(fuse_clients=True)}),
    "memory": (MEMORY, "Report", "step", REPORT, {"update": cl.FedNAG(), "scheme": "fedavg"}),
}


SOCKETS = ("smashed", "report")


@pytest.mark.parametrize("group", GROUPS)
def test_a_breach_in_every_round(tmp_path: Path, group: str) -> None:
    """One client, which breaks the contract in another way each round: it is lost there, and back in the next."""
    breaches, kind, what, step, more = GROUPS[group]
    ways, training = list(breaches.values()), BASE | {"rounds": len(breaches)} | more
    done: list[int] = []

    def bend(answer: Encoded) -> Iterable[Encoded]:
        said, n, here = at(answer)
        if said != kind or here != step:
            return [answer]
        done.append(n)
        return [ways[n - 1][0](answer)]

    played = play(
        tmp_path, DATA, guests={BAD: bent(BAD, DATA, bend, tmp_path)}, memory=group not in SOCKETS, **training
    )
    assert done == list(range(1, len(ways) + 1))
    for record, (name, (_, words)) in zip(played.result.history, breaches.items(), strict=True):
        (fault,) = record.faults
        assert fault.startswith("ward-1: it sent ") and words in fault, (name, fault)
        assert record.lost == 1 and record.clients == (0, 2), name
    lost = [Fault("drop", n, BAD, step, what) for n in done]
    assert same(played.result.model, simulated(DATA, lost, **training))
    assert played.service.roster.entries[BAD].drops == len(ways)
    assert played.clients[BAD] is None and all(isinstance(played.clients[j], Joined) for j in (0, 2))


def test_nan_for_twenty_rounds(tmp_path: Path) -> None:
    """By hand: never one of its numbers reaches the weights."""

    def guest(port: int) -> int:
        line, _ = dialled(port, "ward-1")
        line.send("Ready", {"samples": 12})
        line.reader.limit, asked = 2**20, 0
        while (frame := line.receive()).kind != "Bye":
            if frame.kind == "Plan":
                asked += 1
                n, j, _, attempt = frame.words["address"]
                words = {"address": [n, j, 0, attempt], "y": 1}
                line.send("Smashed", words, [torch.full((4, 8), math.nan), torch.zeros(4).long()])
        line.close()
        return asked

    training = BASE | {"rounds": 20}
    played = play(tmp_path, DATA, guests={BAD: guest}, **training)
    assert played.clients[BAD] == 20
    assert [record.faults for record in played.result.history] == [
        ("ward-1: it sent smashed data with NaN or infinity, expected finite torch.float32 (4, 8)",)
    ] * 20
    expected = simulated(DATA, [Fault("drop", n, BAD, 0) for n in range(1, 21)], **training)
    assert same(played.result.model, expected)
    assert all(bool(torch.isfinite(w).all()) for w in played.result.model.state_dict().values())


SHAPES: dict[str, dict[str, Any]] = {
    "send": {},
    "stay": {"labels": "stay"},
    "joint": {"local": cl.FedNAR(max_norm=0.5)},
    "fused": {"scheme": cl.SMoFi(fuse_clients=True)},
    "sflv2": {"scheme": "sflv2"},
}


def undisturbed(tmp_path: Path, bend: Bend, **more: Any) -> None:
    """Whatever goes out besides: the run ends with the bits of one in which it did not, and nobody is blamed."""
    training = BASE | {"rounds": 3} | more
    played = play(tmp_path, DATA, guests={BAD: bent(BAD, DATA, bend, tmp_path)}, **training)
    simulator = cl.train(network(), DATA, test=DATA[0], backend="loop", **training)
    assert [record.faults for record in played.result.history] == [()] * 3
    assert same(played.result.model, simulator.model)


@pytest.mark.parametrize("more", SHAPES.values(), ids=SHAPES)
def test_doubled_frames_change_nothing(tmp_path: Path, more: dict[str, Any]) -> None:
    undisturbed(tmp_path, lambda answer: [answer, answer], **more)


def test_a_double_with_other_numbers_changes_nothing(tmp_path: Path) -> None:
    undisturbed(tmp_path, lambda answer: [answer, like(answer, *(nan(x.float()) for x in answer[2]))])


@pytest.mark.parametrize("more", SHAPES.values(), ids=SHAPES)
def test_frames_of_an_earlier_round_change_nothing(tmp_path: Path, more: dict[str, Any]) -> None:
    """As they were, with other numbers, or of another kind; before and after those that are due."""
    past: dict[tuple[str, int], Encoded] = {}

    def bend(answer: Encoded) -> Iterable[Encoded]:
        kind, _, step = at(answer)
        old = past.get((kind, step))
        past[kind, step] = answer
        if old is None:
            return [answer]
        worse = like(old, *(nan(x.float()) for x in old[2]), kind="Report" if kind == "Smashed" else "Smashed")
        return [old, answer] if step % 2 else [worse, answer]

    undisturbed(tmp_path, bend, **more)


def test_frames_of_an_earlier_attempt_change_nothing(tmp_path: Path) -> None:
    """One client fails the first attempt at round 2; the other answers the second with frames of the first, too."""
    past: dict[int, Encoded] = {}
    stale: list[list[int]] = []

    def fails(answer: Encoded) -> Iterable[Encoded]:
        first = answer[1]["address"] == [2, 2, 1, 0]
        return [like(answer, nan(answer[2][0]), answer[2][1]) if first else answer]

    def repeats(answer: Encoded) -> Iterable[Encoded]:
        kind, n, step = at(answer)
        if kind != "Smashed" or n != 2:
            return [answer]
        if answer[1]["address"][3] == 0:
            past[step] = answer
            return [answer]
        stale.append(past[step][1]["address"])
        return [like(past[step], nan(past[step][2][0]), past[step][2][1]), answer]

    training = BASE | {"rounds": 3}
    guests = {1: bent(1, DATA, repeats, tmp_path), 2: bent(2, DATA, fails, tmp_path)}
    played = play(tmp_path, DATA, {"quorum": 1.0}, guests=guests, **training)
    assert stale[:2] == [[2, 1, 0, 0], [2, 1, 1, 0]]
    who, attempt = played.result.history[1].faults
    assert who.startswith("ward-2: it sent smashed data with NaN or infinity") and attempt.startswith(
        "attempt 1: round 2"
    )
    assert played.result.history[0].faults == played.result.history[2].faults == ()
    simulator = cl.train(network(), DATA, test=DATA[0], backend="loop", **training)
    assert same(played.result.model, simulator.model)
