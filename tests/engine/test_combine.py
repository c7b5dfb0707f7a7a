"""Every scheme with every local rule, update, optimizer and protocol: it trains, or it is refused for a reason."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import cutlayer as cl
from cutlayer.data.tasks import load_task
from cutlayer.experiment import config as text
from cutlayer.registry import LOCALS, OPTIMIZERS, SCHEMES, UPDATES
from tests.thorough import chosen

Spec = dict[str, Any]
LOCAL: dict[str, tuple[Any, Spec | None]] = {
    "none": (None, None),
    "fedprox": ("fedprox", {"name": "fedprox"}),
    "fednar-joint": (cl.FedNAR(max_norm=1.0), {"name": "fednar", "max_norm": 1.0}),
    "fednar-half": (cl.FedNAR(max_norm=1.0, norm="half"), {"name": "fednar", "max_norm": 1.0, "norm": "half"}),
    "clip-joint": (cl.Clip(1.0, "joint"), {"name": "clip", "max_norm": 1.0, "norm": "joint"}),
    "fednar-prox": (
        (cl.FedProx(), cl.FedNAR(max_norm=1.0, norm="half")),
        {"name": "fedprox+fednar", "max_norm": 1.0, "norm": "half"},
    ),
}
UPDATE: dict[str, tuple[Any, Spec]] = {
    **{name: (name, {"name": name}) for name in UPDATES},
    "slowmo-average": (cl.SlowMo(buffers="average"), {"name": "slowmo", "buffers": "average"}),
}
OPTIMIZER: dict[str, tuple[Any, Spec]] = {
    **{name: (name, {"name": name}) for name in OPTIMIZERS if name != "adamw"},
    "adamw": (cl.AdamW(weight_decay=0.01), {"name": "adamw", "weight_decay": 0.01}),
}
PROTOCOLS = ("smofi", "cyclesl")

# Who is refused, and a phrase of what is said; written down from what the methods are, not from the library.
ONE_GRADIENT_FOR_MANY = {"mergesfl", "sglr", "cyclepsl", "cyclesfl", "cyclesglr", "cyclessl"}
JOINT = "a joint norm needs a server gradient that belongs to one client"
DECOUPLED = "keeps its decay out of the gradient"
STAYS = "leaves each client its own"
NOT_EACH = "does not keep one for each client from the round's start to its end"
NO_MOMENTUM = "there is no momentum to fuse on the clients"


def reasons(scheme: str, local: str, update: str, optimizer: str, protocol: str) -> list[str]:
    """Why a combination makes no sense; none: it does."""
    found = []
    if local in ("fednar-joint", "clip-joint") and scheme in ONE_GRADIENT_FOR_MANY:
        found.append(JOINT)
    if local.startswith("fednar") and optimizer == "adamw":
        found.append(DECOUPLED)
    if update in ("fednag", "slowmo-average"):
        if protocol == "cyclesl":
            found.append(STAYS)
        if scheme != "fedavg":
            found.append(NOT_EACH)
    return found


def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Four clients with forty digits each, every fourth pixel of them."""
    digits = load_task("digits", None, None, 0)
    x, y = digits.x[:160].flatten(1)[:, ::4].contiguous(), digits.y[:160]
    return [(x[j::4], y[j::4]) for j in range(4)]


def model() -> nn.Sequential:
    torch.default_generator.manual_seed(5)
    return nn.Sequential(nn.Linear(16, 8), nn.Sequential(nn.Tanh(), nn.Linear(8, 10)))


CLIENTS, MODEL = data(), model()


def begun(protocol: str = "smofi", **parts: Any) -> cl.Run:
    """A small run of these parts: two steps of each client a round, or the other protocol's one."""
    steps = 2 if protocol == "smofi" else 1
    return cl.rounds(MODEL, CLIENTS, rounds=2, batch_size=8, local_steps=steps, protocol=protocol, **parts)


def said_at_once(protocol: str = "smofi", **parts: Any) -> str:
    """What is said before training."""
    with pytest.raises(cl.ContractError) as caught:
        begun(protocol, **parts)
    return str(caught.value)


def said_by_config(**specs: Any) -> str:
    """What is said of the same in an experiment's text."""
    with pytest.raises(cl.ContractError) as caught:
        text.parse(specs)
    return str(caught.value)


def trains(run: cl.Run) -> None:
    """Two rounds in which every client takes its steps, every loss is finite, and so is the model that has moved."""
    before = run.model.state_dict()
    for record in run:
        assert record.participants == 4 and record.steps == 4 * (run.setup.schedule.steps or 0)
        assert record.train_loss is not None and math.isfinite(record.train_loss)
        assert math.isfinite(record.drift_client) and math.isfinite(record.drift_server)
    after = run.model.state_dict()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in after.values())
    assert all(not torch.equal(tensor, before[name]) for name, tensor in after.items())
    assert run.state.n == 2


COMBINATIONS = chosen(itertools.product(SCHEMES, LOCAL, UPDATE, OPTIMIZER, PROTOCOLS))


@pytest.mark.parametrize(("scheme", "local", "update", "optimizer", "protocol"), COMBINATIONS)
def test_a_combination_trains_or_is_refused(
    scheme: str, local: str, update: str, optimizer: str, protocol: str
) -> None:
    parts = {"local": LOCAL[local][0], "update": UPDATE[update][0], "optimizer": OPTIMIZER[optimizer][0]}
    specs: dict[str, Any] = {"scheme": scheme, "protocol": protocol}
    specs |= {"local": LOCAL[local][1], "update": UPDATE[update][1], "optimizer": OPTIMIZER[optimizer][1]}
    why = reasons(scheme, local, update, optimizer, protocol)
    if not why:
        text.parse(specs)
        trains(begun(protocol, scheme=scheme, **parts))
        return
    said = said_at_once(protocol, scheme=scheme, **parts)
    assert any(reason in said for reason in why)
    assert said_by_config(**specs) == said


def test_every_part_is_combined() -> None:
    """The tables above name every part there is, and each reason stands alone somewhere."""
    assert {spec["name"] for _, spec in LOCAL.values() if spec} == set(LOCALS)
    assert {spec["name"] for _, spec in UPDATE.values()} == set(UPDATES)
    assert {spec["name"] for _, spec in OPTIMIZER.values()} == set(OPTIMIZERS)
    alone = Counter(found[0] for each in COMBINATIONS if len(found := reasons(*each)) == 1)
    assert set(alone) == {JOINT, DECOUPLED, STAYS, NOT_EACH}
    assert sum(not reasons(*each) for each in COMBINATIONS) > len(COMBINATIONS) / 3


@pytest.mark.parametrize(
    ("parts", "specs"),
    [
        ({"optimizer": cl.AdamW(), "local": "fednar"}, {"optimizer": "adamw", "local": "fednar"}),
        (
            {"scheme": "cyclesfl", "local": cl.FedNAR(max_norm=math.inf)},
            {"scheme": "cyclesfl", "local": {"name": "fednar", "max_norm": math.inf}},
        ),
        (
            {"scheme": cl.SFLV1(every="round"), "update": "fednag"},
            {"scheme": {"name": "sflv1", "every": "round"}, "update": "fednag"},
        ),
        (
            {"scheme": "fedavg", "update": "fednag", "optimizer": "sgd", "server_optimizer": "nag"},
            {"scheme": "fedavg", "update": "fednag", "optimizer": "sgd", "server_optimizer": "nag"},
        ),
        (
            {"scheme": cl.SMoFi(fuse_clients=True), "server_optimizer": cl.SGD(momentum=0.0)},
            {"scheme": {"name": "smofi", "fuse_clients": True}, "server_optimizer": {"name": "sgd", "momentum": 0.0}},
        ),
        (
            {"scheme": cl.SMoFi(fuse_clients=True), "optimizer": "adam", "server_optimizer": "sgd"},
            {"scheme": {"name": "smofi", "fuse_clients": True}, "optimizer": "adam", "server_optimizer": "sgd"},
        ),
        (
            {"scheme": cl.SMoFi(fuse_clients=True), "optimizer": "sgd", "server_optimizer": "adam"},
            {"scheme": {"name": "smofi", "fuse_clients": True}, "optimizer": "sgd", "server_optimizer": "adam"},
        ),
        ({"scheme": "ssl", "cut": (0, 0)}, {"scheme": "ssl", "cut": (0, 0)}),
    ],
    ids=["no-decay", "no-clip", "every-round", "nag-and-sgd", "server-momentum", "adam-sgd", "sgd-adam", "one-cut"],
)
def test_at_the_edge_of_a_refusal(parts: Spec, specs: Spec) -> None:
    """What looks like a refused combination and is none."""
    text.parse(specs)
    trains(begun(**parts))


@pytest.mark.parametrize(
    ("why", "parts", "specs"),
    [
        (
            DECOUPLED,
            {"local": "fednar", "server_optimizer": cl.AdamW(weight_decay=0.1)},
            {"local": "fednar", "server_optimizer": {"name": "adamw", "weight_decay": 0.1}},
        ),
        (
            NO_MOMENTUM,
            {"scheme": cl.SMoFi(fuse_clients=True), "optimizer": cl.SGD(momentum=0.0)},
            {"scheme": {"name": "smofi", "fuse_clients": True}, "optimizer": {"momentum": 0.0}},
        ),
        (
            "averages momentum",
            {"scheme": "fedavg", "update": "fednag", "optimizer": cl.SGD(momentum=0.0)},
            {"scheme": "fedavg", "update": "fednag", "optimizer": {"momentum": 0.0}},
        ),
        (
            "one kind of optimizer on both sides",
            {"scheme": "fedavg", "update": "fednag", "optimizer": "adam", "server_optimizer": "sgd"},
            {"scheme": "fedavg", "update": "fednag", "optimizer": "adam", "server_optimizer": "sgd"},
        ),
        (
            NOT_EACH,
            {"scheme": cl.SFLV1(every="step"), "update": "fednag"},
            {"scheme": {"name": "sflv1", "every": "step"}, "update": "fednag"},
        ),
    ],
    ids=["server-decay", "fuse", "fednag", "kinds", "every-step"],
)
def test_single_settings_are_refused_too(why: str, parts: Spec, specs: Spec) -> None:
    said = said_at_once(**parts)
    assert why in said
    assert said_by_config(**specs) == said


def keeps_between_rounds(scheme: Spec, protocol: str) -> str | None:
    """Why the cut has to stay where it is, if it has to."""
    if scheme["name"] in ("psl", "sglr", "cyclepsl", "cyclesglr"):
        return "clients keep their half"
    if protocol == "cyclesl":
        return "keeps optimizer memory"
    return "keeps the server's momentum" if scheme.get("reset") == "never" else None


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "scheme",
    [*({"name": name} for name in SCHEMES), {"name": "sflv2", "reset": "never"}],
    ids=lambda s: "-".join(s.values()),
)
def test_a_cut_that_is_redrawn(scheme: Spec, protocol: str) -> None:
    why = keeps_between_rounds(scheme, protocol)
    blocks = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 10))
    specs = {"scheme": scheme, "protocol": protocol, "cut": (0, 2)}
    given: Any = cl.SFLV2(reset="never") if "reset" in scheme else scheme["name"]
    fast: dict[str, Any] = {"rounds": 5, "batch_size": 8, "local_steps": 1, "cut": (0, 2), "protocol": protocol}
    if why is None:
        text.parse(specs)
        assert len({record.cut for record in cl.train(blocks, CLIENTS, scheme=given, **fast).history}) > 1
        return
    with pytest.raises(cl.ContractError, match=why) as caught:
        cl.train(blocks, CLIENTS, scheme=given, **fast)
    assert said_by_config(**specs) == str(caught.value)
