"""The seam holds schemes that are not in the library yet, and turns are what they are said to be."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import cutlayer as cl
from cutlayer.schemes import Closed, CutGrad, Server, Smashed, Timing, Traits, Wave
from tests.schemes.outside import EXAMPLE, median


@dataclass(frozen=True)
class Cycled:
    """CycleSFL in small: train the server on the pooled features, then take the clients' gradients from it."""

    server_batch: int
    traits: ClassVar[Traits] = Traits(
        order="together", carry="sync", halves="one", meets="step", own_gradient=False, timing=Timing("cycled")
    )

    def open(self, server: Server, clients: Sequence[int]) -> CycledRound:
        return CycledRound(server, self.server_batch)


class CycledRound:
    def __init__(self, server: Server, batch: int) -> None:
        self.server, self.batch = server, batch
        self.rows = server.surrogates(1)
        self.memory = server.memory(["server"])

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        server, rows = self.server, self.rows
        a, y = torch.cat([s.a for s in smashed]), torch.cat([s.y for s in smashed])
        order = torch.from_numpy(server.rng("features").permutation(len(y))) if server.shuffle else torch.arange(len(y))
        for part in order.split(self.batch):
            server.backward(rows, {smashed[0].address.client: 0}, [replace(smashed[0], a=a[part], y=y[part])])
            server.step(rows, self.memory, [0])
        return server.input_gradients(rows, 0, smashed)  # the updated server

    def close(self) -> Closed:
        return Closed(self.rows.row(0))


def small() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def data(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (rows,), generator=generator)


def test_cycled_with_one_client_is_a_server_step_then_a_client_step_with_the_new_server() -> None:
    x, y = data(12)
    fast: dict[str, Any] = {"rounds": 2, "batch_size": 4, "local_epochs": 1, "shuffle": False, "cut": 1}
    ours = cl.train(small(), [(x, y)], scheme=Cycled(4), optimizer=cl.SGD(0.1, 0.0, 0.0), **fast).model
    front, back = (copy.deepcopy(half) for half in cl.halves(small(), 1))
    for _ in range(2):
        for k in range(3):
            batch, labels = x[4 * k : 4 * k + 4], y[4 * k : 4 * k + 4]
            for module, source in ((back, front(batch).detach()), (front, batch)):
                whole = module(source) if module is back else back(module(source))
                gradients = torch.autograd.grad(nn.functional.cross_entropy(whole, labels), list(module.parameters()))
                with torch.no_grad():
                    for w, g in zip(module.parameters(), gradients, strict=True):
                        w -= 0.1 * g
    for mine, theirs in zip(ours.parameters(), (*front.parameters(), *back.parameters()), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_cycled_with_many_clients_learns() -> None:
    x, y = data(90)
    clients = [(x[j::3], y[j::3]) for j in range(3)]
    history = cl.train(small(), clients, test=(x, y), scheme=Cycled(8), rounds=6, batch_size=8, cut=1).history
    assert history[-1].loss < history[0].loss


def test_a_scheme_from_outside_imports_the_extension_api_alone() -> None:
    tree = ast.parse(EXAMPLE.read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in modules if name and name.startswith("cutlayer")} == {"cutlayer.schemes"}


def test_a_scheme_from_outside_in_the_simulator() -> None:
    """On simulated devices, stacked, with every kind of part around it."""
    clients = [data(12 + 4 * j) for j in range(4)]
    task: dict[str, Any] = {"cut": 1, "rounds": 2, "batch_size": 4, "local_epochs": 1, "test": data(20)}
    more = {"local": "fedprox", "update": "fedavgm", "optimizer": "adam", "protocol": "cyclesl", "profile": "lte"}
    with pytest.raises(cl.ContractError, match="looks at the clients' losses"):
        cl.train(small(), clients, scheme=median(), labels="stay", **{**task, "cut": 0})
    for given in ({}, more, {"local": "fednar"}):
        loop, stacked = (
            cl.train(small(), clients, scheme=median(), backend=how, **{**task, **given}) for how in ("loop", "stacked")
        )
        assert loop.history[-1].sim_seconds is not None and loop.history[-1].sim_seconds > 0
        for one, other in zip(loop.model.parameters(), stacked.model.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"order": "at once"}, "order = 'at once': expected one of together, by_epoch, one_by_one"),
        ({"carry": "relay"}, "order = 'together': expected 'one_by_one', where carry is 'relay'"),
        ({"halves": "spread", "own_gradient": False}, "own_gradient = False: expected True, where halves is 'spread'"),
        ({"own_gradient": "yes"}, "own_gradient = 'yes': expected True or False"),
        ({"common_steps": True}, "fuses_clients = False: expected True"),
        ({"timing": "merged"}, "timing = 'merged': expected a Timing"),
    ],
)
def test_traits_that_contradict_themselves_are_refused(wrong: dict[str, Any], said: str) -> None:
    good: dict[str, Any] = {"order": "together", "carry": "sync", "halves": "one", "meets": "step"}
    with pytest.raises(cl.ContractError, match=re.escape(said)):
        Traits(**{**good, "own_gradient": True, "timing": Timing("merged"), **wrong})


def served(monkeypatch: pytest.MonkeyPatch, scheme: cl.SFLV2, shuffle: bool) -> list[list[int]]:
    """The clients in the order the server served them, round by round."""
    seen: dict[int, list[int]] = {}
    real = Server.backward

    def spy(self: Server, rows: Any, row: Any, smashed: Sequence[Smashed]) -> list[CutGrad]:
        for s in smashed:
            seen.setdefault(s.address.round, []).append(s.address.client)
        return real(self, rows, row, smashed)

    with monkeypatch.context() as patch:
        patch.setattr(Server, "backward", spy)
        cl.train(small(), [data(8) for _ in range(6)], scheme=scheme, rounds=3, batch_size=4, shuffle=shuffle)
    return list(seen.values())


def test_sflv2_serves_clients_in_a_new_random_turn_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []
    for order in served(monkeypatch, cl.SFLV2(order="client"), shuffle=True):
        turn = [client for client, _ in groupby(order)]
        assert sorted(turn) == list(range(6))  # each client once, all its steps together
        turns.append(turn)
    assert len({tuple(turn) for turn in turns}) == 3


def test_sflv2_interleaved_keeps_one_turn_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = set()
    for order in served(monkeypatch, cl.SFLV2(order="step"), shuffle=True):
        steps = [tuple(order[i : i + 6]) for i in range(0, len(order), 6)]
        assert len(set(steps)) == 1 and sorted(steps[0]) == list(range(6))
        turns.add(steps[0])
    assert len(turns) == 3


@pytest.mark.parametrize("order", ["client", "step"])
def test_without_shuffling_clients_come_in_their_order(monkeypatch: pytest.MonkeyPatch, order: Any) -> None:
    for served_order in served(monkeypatch, cl.SFLV2(order=order), shuffle=False):
        turn = [client for client, _ in groupby(served_order)][:6]
        assert turn == list(range(6))
