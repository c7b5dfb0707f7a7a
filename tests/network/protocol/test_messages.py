"""What travels, counted on the wire."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import cutlayer as cl
from cutlayer.network.transport.hub import Connection, Event, Hub
from tests.network.harness import SIZES, play, rows

ROUND = ("Plan", "Smashed", "Features", "FeatureGrad", "CutGrad", "Square", "Momentum", "Adopt", "Report")
STEPS = [size // 4 for size in SIZES]


class Counted:
    """Frames each way, by client and kind."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.down: dict[str, Counter[str]] = {}
        self.up: dict[str, Counter[str]] = {}
        send, take = Connection.send, Hub.next

        def sends(session: Connection, kind: str, *rest: Any, **more: Any) -> None:
            self.down.setdefault(session.name, Counter())[kind] += 1
            send(session, kind, *rest, **more)

        def takes(hub: Hub, timeout: float) -> Event | None:
            event = take(hub, timeout)
            if event is not None and event.frame is not None:
                self.up.setdefault(event.session.name, Counter())[event.frame.kind] += 1
            return event

        patch.setattr(Connection, "send", sends)
        patch.setattr(Hub, "next", takes)

    def of(self, name: str) -> dict[str, int]:
        found = self.down[name] + self.up[name]
        return {kind: found[kind] for kind in ROUND if found[kind]}


@pytest.mark.parametrize(
    ("more", "a_step", "messages"),
    [
        ({}, ("Smashed", "CutGrad"), 2),
        ({"scheme": "sflv2"}, ("Smashed", "CutGrad"), 2),
        ({"scheme": "ssl"}, ("Smashed", "CutGrad"), 2),
        ({"scheme": "psl"}, ("Smashed", "CutGrad"), 2),
        ({"scheme": "cyclesfl"}, ("Smashed", "CutGrad"), 2),
        ({"labels": "stay"}, ("Smashed", "Features", "FeatureGrad", "CutGrad"), 4),
        ({"local": cl.FedNAR(max_norm=1.0, norm="joint")}, ("Smashed", "CutGrad", "Square"), 3),
        ({"local": cl.FedNAR(max_norm=1.0, norm="half")}, ("Smashed", "CutGrad"), 2),
        ({"scheme": cl.SMoFi(fuse_clients=True)}, ("Smashed", "CutGrad", "Momentum", "Adopt"), 4),
    ],
    ids=["smofi", "sflv2", "ssl", "psl", "cyclesfl", "stay", "joint", "half", "fused"],
)
@pytest.mark.filterwarnings("ignore:clients keep their fronts")
def test_messages_of_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], a_step: tuple[str, ...], messages: int
) -> None:
    """A client with T steps costs 2T + 2 of them; 4T + 2 where labels stay, 3T + 2 with a joint norm."""
    counted, rounds = Counted(monkeypatch), 2
    play(tmp_path, rows(), cut=0, batch_size=4, local_epochs=1, rounds=rounds, **({"scheme": "smofi"} | more))
    for j, T in enumerate(STEPS):
        found = counted.of(f"ward-{j}")
        assert found == {"Plan": rounds, "Report": rounds, **dict.fromkeys(a_step, rounds * T)}
        assert sum(found.values()) == rounds * (messages * T + 2)


@pytest.mark.parametrize("code", ["raw", "float16", "int8"])
@pytest.mark.parametrize("zstd", [False, True])
def test_shorter_numbers(tmp_path: Path, code: str, zstd: bool) -> None:
    """Shortened, activations and gradients train nearly the same; compression alone changes no bit."""
    arguments: dict[str, Any] = {"cut": 0, "rounds": 1, "batch_size": 32, "local_steps": 3, "scheme": "smofi"}
    data = rows((64, 64))
    played = play(tmp_path, data, {"code": code, "zstd": zstd}, **arguments)
    plain = cl.train(played.service.model, data, backend="loop", **arguments).model.state_dict()
    far = max(float((a - plain[name]).abs().max()) for name, a in played.result.model.state_dict().items())
    assert far == 0 if code == "raw" else 0 < far < {"float16": 1e-3, "int8": 0.03}[code]
