"""Every message there and back, between ranks and between machines; and every way a header can lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import cutlayer as cl
from cutlayer.clients import codec
from cutlayer.clients.codec import KINDS, Encoded
from cutlayer.clients.messages import (
    Address,
    Adopt,
    CutGrad,
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
from cutlayer.clients.state import ClientState
from cutlayer.data.schedule import BatchSchedule
from cutlayer.errors import FrameError
from cutlayer.network.protocol.codec import NamedParts
from cutlayer.nn.flat import Vectors
from cutlayer.optim.memory import Moments
from cutlayer.processes.cohort import OwnParts, read, write

AT = Address(3, 1, 2, 1)
LOSS = functional.cross_entropy
FRONT = Vectors(torch.arange(5.0), torch.arange(2.0), torch.tensor([7]))
MEMORY = Moments((torch.full((5,), 0.5), torch.full((5,), 2.0)), 4)
PLAN = Plan(
    Address(3, 1, -1, 1),
    cut=2,
    start=FRONT,
    schedule=BatchSchedule(batch_size=4, epochs=2, seed=9),
    optimizer=cl.Adam(lr=0.25),
    eta=0.125,
    local=cl.FedProx(mu=0.5),
    noise=0.25,
    loss=LOSS,
    memory=MEMORY,
    shares_memory=True,
    keeps_half=True,
    keeps_memory=True,
    fuses=True,
    confirmed=2,
)
NUMBER = torch.tensor(0.5, dtype=torch.float64)
MESSAGES: dict[str, Any] = {
    "plan": PLAN,
    "plan without a front": dataclasses.replace(PLAN, start=None, memory=None, loss=None, local=None),
    "smashed": Smashed(AT, torch.randn(4, 2), torch.tensor([0, 1, 2, 1])),
    "smashed without labels": Smashed(AT, torch.randn(4, 2), None),
    "smashed images": Smashed(AT, torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last), None),
    "features": Features(AT, torch.randn(4, 2)),
    "feature gradient": FeatureGrad(AT, torch.randn(4, 2)),
    "gradient": CutGrad(AT, torch.randn(4, 2)),
    "gradient and norm": CutGrad(AT, torch.randn(4, 2), square=NUMBER),
    "norm": Square(AT, NUMBER),
    "momentum": Momentum(AT, (torch.randn(5),)),
    "two moments": Adopt(AT, (torch.randn(5), torch.randn(5))),
    "next step": NextStep(AT),
    "finish": Finish(AT),
    "report": Report(PLAN.address, FRONT, 40, MEMORY, 12, 10, 3, True, True),
    "report of nothing": Report(PLAN.address, None, 40, None),
}
CPU = torch.device("cpu")
OWN = OwnParts(PLAN.optimizer, PLAN.local, LOSS, CPU)


def same(a: Any, b: Any) -> bool:
    """Equal, tensors bit by bit and in their order of memory."""
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def over_the_wire(message: Any, parts: codec.Parts) -> Any:
    kind, words, tensors = codec.encode(message, parts)
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(words))
    return codec.decode(kind, arrived, tensors, parts)


def test_every_message_is_tried_here() -> None:
    assert {type(message) for message in MESSAGES.values()} == set(KINDS.values())


@pytest.mark.parametrize("name", MESSAGES)
def test_there_and_back_between_machines(name: str) -> None:
    assert same(over_the_wire(MESSAGES[name], NamedParts(LOSS)), MESSAGES[name])


@pytest.mark.parametrize("name", MESSAGES)
def test_there_and_back_between_ranks(name: str) -> None:
    parts = (
        OWN if PLAN.local == getattr(MESSAGES[name], "local", PLAN.local) else OwnParts(PLAN.optimizer, None, None, CPU)
    )
    words, (message,) = read(write([MESSAGES[name]], parts, "ask"), parts)
    assert words == ["ask"] and same(message, MESSAGES[name])


def test_what_a_client_keeps_stays_within_the_run() -> None:
    """Its state and its row go from rank to rank, and never to another machine."""
    own = ClientState(FRONT, MEMORY, 5)
    plan = dataclasses.replace(PLAN, start=None, own=own, row=3)
    _, (found,) = read(write([plan], OWN), OWN)
    assert same(found.own, own) and found.row == 3
    kind, words, tensors = codec.encode(plan, NamedParts())
    assert not {"own", "row"} & words.keys() and len(tensors) == len(MEMORY.m)
    back = codec.decode(kind, words, tensors, NamedParts(LOSS))
    assert not back.own and back.row == 0


def test_the_servers_own_numbers_never_travel() -> None:
    reply = CutGrad(AT, torch.ones(2), loss=torch.tensor(0.3), flowed=8)
    for within in (False, True):
        assert codec.encode(reply, OWN, within).words.keys() == {"address", "grad", "square"}


def test_a_report_leaves_the_machine_without_what_is_kept() -> None:
    whole = MESSAGES["report"]
    assert whole.sent.end is None and same(whole.sent.memory, MEMORY)
    assert dataclasses.replace(whole, keeps_half=False, shares_memory=False).sent.memory is None
    assert whole.sent.nbytes == whole.nbytes == sum(m.nbytes for m in MEMORY.m)


def test_a_tensor_of_several_messages_travels_once() -> None:
    """The front that all clients start with; and they still share it on the other side."""
    plans = [
        dataclasses.replace(PLAN, address=dataclasses.replace(PLAN.address, client=j), memory=None) for j in range(9)
    ]
    _, found = read(write(plans, OWN), OWN)
    assert all(plan.start.w is found[0].start.w for plan in found)
    front = sum(tensor.nbytes for tensor in FRONT)
    assert len(write(plans, OWN)) - len(write(plans[:1], OWN)) < 8 * 600 and front < len(write(plans[:1], OWN))


def lied(name: str, **words: Any) -> Encoded:
    kind, said, tensors = codec.encode(MESSAGES[name], NamedParts())
    return Encoded(kind, {k: v for k, v in {**said, **words}.items() if v is not ...}, tensors)


LIES: dict[str, tuple[Encoded, str]] = {
    "unknown kind": (lied("norm")._replace(kind="x" * 99), "a 'xxxxxxxxxxxxxxxxxxxx', which nobody sends"),
    "a class of ours": (lied("norm")._replace(kind="Attached"), "a 'Attached', which nobody sends"),
    "no address": (lied("norm", address=...), "a 'Square' without an address"),
    "an address of flags": (lied("norm", address=[True, 1, 2, 1]), "a 'Square' without an address"),
    "an address beyond counting": (lied("norm", address=[2**53, 1, 2, 1]), "a 'Square' without an address"),
    "a word less": (lied("report", samples=...), "a Report without samples"),
    "a word more": (lied("report", hook="x"), "a Report with an unknown hook"),
    "a count in words": (lied("report", samples="40"), "a Report with samples = '40': expected a count"),
    "a count that is a flag": (lied("report", samples=True), "a Report with samples = True: expected a count"),
    "a count of fractions": (lied("report", position=1.5), "a Report with position = 1.5: expected a count"),
    "a flag in numbers": (lied("report", keeps_half=1), "a Report with keeps_half = 1: expected true or false"),
    "a number in words": (lied("plan", eta="0.1"), "a Plan with eta = '0.1': expected a number"),
    "half a front": (lied("report", end=2), "a Report with end = 2: expected 0 or 3 tensors"),
    "moments beyond counting": (lied("report", memory=[2**53, 1]), "expected a count"),
    "many moments": (lied("report", memory=[2**40, 1]), "a Report of 5 tensors, expected 1099511627779"),
    "moments without an age": (lied("report", memory=[2]), "a Report with memory = [2]"),
    "a schedule of nothing": (lied("plan", schedule=None), "a Plan with schedule = None"),
    "a schedule with a hook": (lied("plan", schedule={"batch_size": 4, "hook": 1}), "a Plan with schedule = "),
    "an optimizer of nothing": (lied("plan", optimizer=[]), "a Plan with optimizer = []"),
    "a tensor less": (lied("smashed")._replace(tensors=[NUMBER]), "a Smashed of 1 tensors, expected 2"),
    "a tensor more": (lied("smashed")._replace(tensors=[NUMBER] * 3), "a Smashed of 3 tensors, expected 2"),
    "no tensor": (lied("features")._replace(tensors=[]), "a Features of 0 tensors, expected 1"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_header_that_lies(name: str) -> None:
    (kind, words, tensors), said = LIES[name]
    with pytest.raises(FrameError) as caught:
        codec.decode(kind, words, tensors, NamedParts(LOSS))
    assert said in str(caught.value)


def test_a_new_field_travels_by_its_type() -> None:
    """All that a new number of a report needs is its line in the class."""

    @dataclasses.dataclass(frozen=True)
    class Longer(Report):
        energy: float = 0.0

    before: Mapping[str, Any] = dict(KINDS)
    try:
        KINDS["Longer"] = Longer  # type: ignore[assignment]
        message = Longer(AT, FRONT, 40, None, energy=1.5)
        assert same(over_the_wire(message, NamedParts()), message)
    finally:
        KINDS.clear()
        KINDS.update(before)
        codec._fields.cache_clear()
