"""Labels that stay: what travels and what never does, and what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import cutlayer as cl
from cutlayer.clients.cohort import Cohort
from cutlayer.clients.messages import (
    Adopt,
    CutGrad,
    Down,
    FeatureGrad,
    Features,
    Finish,
    Momentum,
    NextStep,
    Plan,
    Report,
    Smashed,
    Square,
)
from tests.equal.naive import difference
from tests.equal.test_u_shape import turned_model

SCHEMES = ("fedavg", "sflv1", "sflv2", "smofi", "mergesfl", "psl", "sglr", "ssl")
SIZES = (9, 13, 4)  # T_j = 2, 3 and 1
T = (2, 3, 1)
BASE: dict[str, Any] = {"labels": "stay", "cut": 1, "rounds": 2, "batch_size": 4, "local_epochs": 1}


def data(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """No four labels in a row are the same."""
    draw = torch.Generator().manual_seed(100 * seed + rows)
    y = torch.arange(rows) % 3 + torch.arange(rows) // 5 % 2
    return torch.randn(rows, 5, generator=draw, dtype=torch.float64) + y[:, None], y % 3


def clients() -> list[tuple[Tensor, Tensor]]:
    return [data(rows) for rows in SIZES]


class Tap(Cohort):
    """A cohort that writes down what is sent, in order: (whether it goes up, the message)."""

    def __init__(self, inner: Cohort) -> None:
        self.inner = inner
        self.tape: list[tuple[bool, Any]] = []

    def ask(self, messages: Sequence[Down]) -> Any:
        self.tape += [(False, message) for message in messages if not isinstance(message, NextStep | Finish)]
        answers = self.inner.ask(messages)
        self.tape += [(True, answer) for answer in answers]
        return answers


def tapped(scheme: Any, **more: Any) -> tuple[list[cl.Round], list[tuple[bool, Any]]]:
    """The records of a run, and everything that was sent."""
    plain = cl.rounds(turned_model(), clients(), **{**BASE, "scheme": scheme, **more})
    tap = Tap(plain.setup.cohort)
    run = cl.Run(turned_model(), dataclasses.replace(plain.setup, cohort=tap), plain.state, None)
    return list(run), tap.tape


# ---- Messages ----------------------------------------------------------------------------------------------------

STEP = (Smashed, Features, FeatureGrad, CutGrad)
ASKED: dict[str, tuple[Any, dict[str, Any], tuple[type, ...]]] = {
    **{scheme: (scheme, {}, STEP) for scheme in SCHEMES},
    "smofi stacked": ("smofi", {"backend": "stacked"}, STEP),
    "smofi joint": ("smofi", {"local": cl.FedNAR(norm="joint")}, (*STEP, Square)),
    "ssl joint": ("ssl", {"local": cl.FedNAR(norm="joint")}, (*STEP, Square)),
    "smofi clients": (cl.SMoFi(fuse_clients=True), {}, (*STEP, Momentum, Adopt)),
}


@pytest.mark.parametrize("case", ASKED)
def test_four_messages_a_step_and_two_a_round(case: str) -> None:
    """4T + 2 in all: 5T + 2 with a joint norm, and two more a step where clients' momenta are fused."""
    scheme, more, step = ASKED[case]
    records, tape = tapped(scheme, **more)
    for n in (1, 2):
        for j, steps in enumerate(T):
            mine = [m for _, m in tape if (m.address.round, m.address.client) == (n, j)]
            assert [type(m) for m in mine] == [Plan, *step * steps, Report]
            assert len(mine) == len(step) * steps + 2
    assert [record.steps for record in records] == [sum(T)] * 2


FRONT, LAST = 5 * 6 + 2 * 6 + 6 * 4 + 4, 6 * 4 + 2 * 4 + 4 * 3 + 3  # weights; of BatchNorm come as many buffers again,
ENDS = 8 * (FRONT + LAST + 2 * 6 + 1 + 2 * 4 + 1)  # and a counter each
ROWS = 4 * sum(T)
TURNED = 8 * ROWS * (4 + 6)  # A_j has 4 elements a row, Z_j 6, and their gradients as many


@pytest.mark.parametrize("backend", ["loop", "stacked"])
def test_bytes_by_hand(backend: str) -> None:
    """Everything is as large up as down: there are no labels on the way."""
    records, tape = tapped("fedavg", backend=backend)
    assert [(r.bytes_up, r.bytes_down) for r in records] == [(TURNED + 3 * ENDS, TURNED + 3 * ENDS)] * 2
    for up in (True, False):
        assert sum(message.nbytes for way, message in tape if way is up) == 2 * (TURNED + 3 * ENDS)


def test_bytes_of_ends_that_are_kept_and_of_norms() -> None:
    """Kept ends travel once, down; a part of a joint norm is a number each way and step."""
    kept, _ = tapped("psl")
    assert [(r.bytes_up, r.bytes_down) for r in kept] == [(TURNED, TURNED + 3 * ENDS), (TURNED, TURNED)]
    (joint, _), _ = tapped("smofi", local=cl.FedNAR(norm="joint"))
    assert joint.bytes_up == joint.bytes_down == TURNED + 3 * ENDS + 8 * sum(T)


def test_work_and_time_by_hand() -> None:
    """The last block's work is the client's; Z_j travels with A_j."""
    devices = [(0.1, 100.0), (0.2, 80.0), (0.05, 40.0)]
    (record, _), _ = tapped("fedavg", profile=devices)
    front, middle, last = 5 * 6 + 6 * 4, 4 * 6, 6 * 4 + 4 * 3
    assert record.macs_client == 3 * ROWS * (front + last)
    assert record.macs_server == 3 * ROWS * middle
    O, S, p_s = (front + last) / (front + middle + last), (4 + 6) * 32 / 1000, 0.35 / 3 / 100  # noqa: E741
    t = [3 * 4 * p * O + 3 * 4 * p_s * (1 - O) + 2 * 4 * S / b for p, b in devices]
    assert record.sim_seconds == pytest.approx(max(T[j] * t[j] for j in range(3)))


class Stale(Tap):
    """Features of the step before come once more, after their step and again before the next."""

    def ask(self, messages: Sequence[Down]) -> Any:
        n, kind = messages[0].address.round, type(messages[0])
        old = [m for _, m in self.tape if isinstance(m, Features) and m.address.round == n]
        for message in old if kind is Features else ():
            assert self.inner.ask([message]) == []
        answers = super().ask(messages)
        late = [m for m in old if kind is CutGrad and m.address in [reply.address for reply in messages]]
        assert kind is not CutGrad or (late and self.inner.ask(late) == [])
        return answers


@pytest.mark.parametrize("scheme", ["sflv2", "mergesfl"])
def test_stale_features_change_nothing(scheme: str) -> None:
    """They are known by their address, and not answered."""
    plain, disturbed = (cl.rounds(turned_model(), clients(), scheme=scheme, **BASE) for _ in range(2))
    setup = dataclasses.replace(disturbed.setup, cohort=Stale(disturbed.setup.cohort))
    run = cl.Run(turned_model(), setup, disturbed.state, None)
    assert len(list(plain)) == len(list(run)) and difference(plain.model, run.model) == 0


# ---- Labels ------------------------------------------------------------------------------------------------------


def tensors(thing: Any, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor that hangs on a message, however deep."""
    if id(thing) in seen or isinstance(thing, type | str | int | float):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
        return
    inside = thing.values() if isinstance(thing, Mapping) else thing if isinstance(thing, list | tuple) else ()
    for part in (*inside, *getattr(thing, "__dict__", {}).values()):
        yield from tensors(part, seen)


def tells(tensor: Tensor, y: Tensor) -> bool:
    """Whether labels lie in it one after another, as numbers or one-hot, along its rows or its columns."""
    found = tensor.detach().double()
    ways = [found.flatten(), found.reshape(len(found), -1).t().flatten()] if found.ndim else []
    wanted = [y.double(), functional.one_hot(y, 3).double().flatten()]
    pairs = [(way.unfold(0, len(line), 1), line) for way in ways for line in wanted if len(way) >= len(line)]
    return any(bool((windows == line).all(dim=1).any()) for windows, line in pairs)


def leaks(tape: list[tuple[bool, Any]]) -> int:
    """The messages after the plan in which labels of the client are found: of the step's batch, or of the first."""
    count = 0
    for message in (message for _, message in tape if not isinstance(message, Plan)):
        first = 4 * max(0, message.address.step)
        y = data(SIZES[message.address.client])[1][first : first + 4]
        count += any(tells(tensor, y) for tensor in tensors(message, set()))
    return count


@pytest.mark.parametrize(("scheme", "backend"), [*((s, "loop") for s in SCHEMES), ("smofi", "stacked")])
def test_labels_are_in_no_message(scheme: str, backend: str) -> None:
    _, tape = tapped(scheme, shuffle=False, backend=backend, rounds=1)
    assert all(message.y is None for _, message in tape if isinstance(message, Smashed))
    assert all(message.loss is None for _, message in tape if isinstance(message, CutGrad))
    assert leaks(tape) == 0
    integers = [t for up, m in tape if up for t in tensors(m, set()) if not t.is_floating_point()]
    assert all(t.numel() <= 2 for t in integers)  # BatchNorm's counters


def test_labels_that_are_sent_would_be_found() -> None:
    """The search above can find something."""
    _, tape = tapped("mergesfl", labels="send", shuffle=False, rounds=1)
    assert leaks(tape) == sum(T)
    y = data(4)[1]
    assert tells(torch.stack([torch.rand(4), y.float()], dim=1), y) and tells(functional.one_hot(y, 3), y)


def test_the_loss_stays_too() -> None:
    records, _ = tapped("smofi", test=data(20, 1))
    assert all(record.train_loss is None and record.loss is not None for record in records)
