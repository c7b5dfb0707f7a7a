"""Servers that ask for what they must not: the client leaves, and what it kept is as it was."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import cutlayer as cl
from cutlayer.clients.messages import Plan
from cutlayer.errors import StoreError
from cutlayer.network.protocol.codec import encode
from cutlayer.network.protocol.handshake import words
from cutlayer.network.transport.frames import Frame
from cutlayer.network.transport.hub import Connection
from tests.network.hostile_server import Script, leaves, nan, plan, welcome
from tests.network.raw_client import memory_of

Change = Callable[[dict[str, Any], list[Tensor]], Any]
"""What to change in a plan's words; the tensors to send instead, if any."""


def planned(change: Change, base: Plan | None = None) -> Script:
    """Send a plan with these changes."""

    def script(session: Connection, frame: Frame) -> None:
        if frame.kind == "Ready":
            _, said, tensors = encode(base or plan())
            other = change(said, tensors)
            session.send("Plan", said, tensors if other is None else other)

    return script


def put(**changes: Any) -> Change:
    """Words of a plan replaced; a double underscore leads into them."""

    def change(said: dict[str, Any], tensors: list[Tensor]) -> None:
        for name, value in changes.items():
            owner, *path = said, *name.split("__")
            for key in path[:-1]:
                owner = owner[key]
            owner[path[-1]] = value

    return change


def vectors(change: Callable[[list[Tensor]], list[Tensor]]) -> Change:
    return lambda said, tensors: change(tensors)


FIT = "expected finite"
PLANS: dict[str, tuple[Change, str]] = {
    "steps beyond the limit": (put(schedule__steps=1001), "steps = 1001, expected 1 to 1,000"),
    "steps beyond memory": (put(schedule__steps=2**62), "expected 1 to 1,000"),
    "epochs beyond the limit": (put(schedule__epochs=1001), "steps = 1001, expected 1 to 1,000"),
    "epochs beyond memory": (put(schedule__epochs=2**62), "expected 1 to 1,000"),
    "no epochs": (put(schedule__epochs=0), "local_epochs"),
    "no step at all": (put(schedule__batch_size=6), "steps = 0"),
    "rate beyond the limit": (put(eta=1.01), "rate = 1.01, expected above 0, to 1"),
    "rate 0": (put(eta=0.0), "rate = 0"),
    "rate below 0": (put(eta=-0.1), "rate = -0.1"),
    "rate NaN": (put(eta=math.nan), "rate = nan"),
    "rate infinite": (put(eta=math.inf), "rate = inf"),
    "batch beyond the limit": (
        put(schedule__batch_size=65, schedule__last_batch="keep"),
        "batch = 65, expected at most 64",
    ),
    "batch of one row": (put(schedule__batch_size=1), "which the model cannot follow"),
    "batch below 0": (put(schedule__batch_size=-4), "batch_size"),
    "cut beyond the agreed": (put(cut=1), "cut = 1, expected 0"),
    "cut below 0": (put(cut=-1), "a Plan with cut = -1: expected a count"),
    "noise NaN": (put(noise=math.nan), "noise = nan"),
    "noise below 0": (put(noise=-1.0), "noise = -1.0"),
    "labels that stay after all": (put(loss=True), "labels = True"),
    "unknown optimizer": (put(optimizer__name="LBFGS"), "whose optimizer is 'LBFGS'"),
    "optimizer by import": (put(optimizer__name="os.system"), "whose optimizer is 'os.system'"),
    "momentum of 2": (put(optimizer__numbers__momentum=2.0), "momentum"),
    "decay by NaN": (put(optimizer__numbers__weight_decay=math.nan), "weight_decay"),
    "parameter nobody knows": (put(optimizer__numbers__hook="x"), "unexpected keyword argument 'hook'"),
    "unknown rule": (put(local=[{"name": "Eval", "numbers": {}}]), "whose local is 'Eval'"),
    "rule of NaN": (put(local=[{"name": "fedprox", "numbers": {"mu": math.nan}}]), "mu"),
    "seed in words": (put(schedule__seed="x"), "a Plan with schedule = "),
    "shuffle in words": (put(schedule__shuffle="no"), "a Plan with schedule = "),
    "feed nobody knows": (put(schedule__file="/etc/passwd"), "unexpected keyword argument 'file'"),
    "round below 0": (put(address=[-2, 1, -1, 0]), "a 'Plan' without an address"),
    "memory of age -1": (put(memory=[0, -1]), "a Plan with memory = [0, -1]: expected a count"),
    "round confirmed below 0": (put(confirmed=-1, keeps_half=True), "a Plan with confirmed = -1: expected a count"),
    "a word more": (put(script="rm"), "a Plan with an unknown script"),
    "a number in words": (put(eta="0.1"), "a Plan with eta = '0.1': expected a number"),
    "no front, and none kept": (vectors(lambda v: []), "a Plan of 0 tensors, expected 3"),
    "moments announced": (put(memory=[1, 0]), "a Plan of 3 tensors, expected 4"),
    "NaN front": (vectors(lambda v: [nan(v[0]), *v[1:]]), FIT),
    "infinite statistics": (vectors(lambda v: [v[0], nan(v[1], math.inf), v[2]]), FIT),
    "front too long": (vectors(lambda v: [torch.ones(57), *v[1:]]), "(57,), expected finite torch.float32 (56,)"),
    "front as a matrix": (vectors(lambda v: [v[0][None], *v[1:]]), "(1, 56), expected finite"),
    "front of doubles": (vectors(lambda v: [v[0].double(), *v[1:]]), "torch.float64 (56,), expected finite"),
    "counters of floats": (vectors(lambda v: [*v[:2], v[2].float()]), "torch.float32 (1,), expected finite"),
    "a tensor more": (vectors(lambda v: [*v, v[0]]), "a Plan of 4 tensors, expected 3"),
    "forgets what was kept": (
        lambda said, v: [said.update(start=0, keeps_half=True, confirmed=0)][1:],
        "a plan without a front, where none has been kept",
    ),
    "asks for the front that is kept": (
        lambda said, v: [said.update(start=0, keeps_memory=True, confirmed=3)][1:],
        "the front this client keeps to itself",
    ),
    "another optimizer than was kept": (
        put(keeps_memory=True, confirmed=3, optimizer={"name": "adam", "numbers": {}}),
        "1 moments, where Adam has 2",
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_hostile_plan(tmp_path: Path, name: str) -> None:
    change, match = PLANS[name]
    leaves(tmp_path, planned(change), match)


def test_a_round_that_was_never_kept(tmp_path: Path) -> None:
    leaves(tmp_path, planned(put(keeps_half=True, confirmed=7)), "own-7.safetensors", of=StoreError)


@pytest.mark.parametrize("moment", [torch.full((56,), math.nan), torch.ones(55), torch.ones(56).double()], ids=str)
def test_a_hostile_memory(tmp_path: Path, moment: Tensor) -> None:
    base = replace(plan(), memory=memory_of(plan()))
    leaves(tmp_path, planned(vectors(lambda v: [*v[:3], moment]), base), FIT)


def answered(kind: str, *tensors: Tensor, base: Plan | None = None, **said: Any) -> Script:
    """A good plan (which keeps half and memory), and this in answer to the first message of the client."""
    base = replace(base or plan(), keeps_half=True, keeps_memory=True, confirmed=3, memory=None)

    def script(session: Connection, frame: Frame) -> None:
        if frame.kind == "Ready":
            session.send(encode(base).kind, *encode(base)[1:])
        elif frame.kind in ("Smashed", "Momentum"):
            at = {} if said.get("address", 0) is None else {"address": frame.words["address"]}
            due = kind if frame.kind == "Momentum" or not base.fuses else "CutGrad"
            given = tensors if due == kind else (G,)
            words = {
                "CutGrad": {"grad": 1, "square": int(base.local is not None and len(given) > 1)},
                "Adopt": {"m": len(given)},
            }
            others = {k: v for k, v in said.items() if v is not None}
            session.send(due, {**at, **words.get(due, {}), **others}, given)
        else:
            raise AssertionError(f"the client went on, with a {frame.kind}")

    return script


G = torch.full((4, 8), 0.1)
SQUARE = torch.tensor(0.5, dtype=torch.float64)
stays, joint = functools.partial(plan, "stay"), functools.partial(plan, local=cl.FedNAR(max_norm=0.5))
ANSWERS: dict[str, tuple[Callable[[], Script], str]] = {
    "gradient with NaN": (lambda: answered("CutGrad", nan(G)), FIT),
    "gradient infinite": (lambda: answered("CutGrad", nan(G, math.inf)), FIT),
    "gradient of another shape": (lambda: answered("CutGrad", torch.ones(8, 4)), FIT),
    "gradient of another batch": (lambda: answered("CutGrad", torch.ones(3, 8)), FIT),
    "gradient of doubles": (lambda: answered("CutGrad", G.double()), FIT),
    "no gradient": (lambda: answered("CutGrad"), "a CutGrad of 0 tensors"),
    "two gradients": (lambda: answered("CutGrad", G, G), "a CutGrad of 2 tensors"),
    "gradient without an address": (lambda: answered("CutGrad", G, address=None), "without an address"),
    "gradient to half an address": (lambda: answered("CutGrad", G, address=[3, 1]), "without an address"),
    "gradient that breaks the half": (
        lambda: answered("CutGrad", torch.full((4, 8), 3e38)),
        "keeps after round 3 not finite",
    ),
    "gradient above the limit": (lambda: answered("CutGrad", torch.ones(99_999)), "a frame of more than"),
    "features, though labels are sent": (lambda: answered("Features", G), "features, where labels are sent"),
    "moments nobody asked for": (lambda: answered("Adopt", torch.ones(56)), "moments that nobody asked for"),
    "a kind nobody knows": (lambda: answered("Exec", G), "which no server sends"),
    "a client's kind": (lambda: answered("Smashed", G), "which no server sends"),
    "no norm": (lambda: answered("CutGrad", G, base=joint()), "a CutGrad without its squared norm"),
    "norm NaN": (lambda: answered("CutGrad", G, nan(SQUARE), base=joint()), FIT),
    "norm below 0": (lambda: answered("CutGrad", G, -SQUARE, base=joint()), "below 0"),
    "norm of floats": (lambda: answered("CutGrad", G, SQUARE.float(), base=joint()), FIT),
    "norm of many": (lambda: answered("CutGrad", G, SQUARE.view(1), base=joint()), FIT),
    "fused NaN": (lambda: answered("Adopt", nan(torch.ones(56)), base=plan(fuses=True)), FIT),
    "fused too long": (lambda: answered("Adopt", torch.ones(57), base=plan(fuses=True)), FIT),
    "fused twice": (lambda: answered("Adopt", torch.ones(56), torch.ones(56), base=plan(fuses=True)), "2 moments"),
}
STAYS: dict[str, tuple[Callable[[], Script], str]] = {
    "features with NaN": (lambda: answered("Features", nan(G), base=stays()), FIT),
    "features of another shape": (lambda: answered("Features", torch.ones(4, 9), base=stays()), FIT),
    "features of another batch": (lambda: answered("Features", torch.ones(5, 8), base=stays()), FIT),
    "features of doubles": (lambda: answered("Features", G.double(), base=stays()), FIT),
    "gradient before its features": (lambda: answered("CutGrad", G, base=stays()), "a gradient before its features"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_hostile_answer(tmp_path: Path, name: str) -> None:
    script, match = ANSWERS[name]
    leaves(tmp_path, script(), match)


@pytest.mark.parametrize("name", STAYS)
def test_a_hostile_answer_where_labels_stay(tmp_path: Path, name: str) -> None:
    script, match = STAYS[name]
    leaves(tmp_path, script(), match, words(welcome("stay")))
