"""Clients that vanish, fall silent, come back or come late."""

from __future__ import annotations

import copy
import dataclasses
import random
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cutlayer as cl
from cutlayer.network.client.loop import Joined
from cutlayer.network.transport import dial
from cutlayer.network.transport.dial import GrpcLine
from cutlayer.network.transport.frames import Frame
from cutlayer.network.transport.line import Gone
from cutlayer.network.transport.memory import MemoryHub, MemoryLine
from tests.clients.faulty import Fault, FaultyCohort
from tests.network.harness import NAMES, SOON, in_memory, network, play, rows
from tests.network.hostile_client import dialled
from tests.network.test_bits import SCHEMES, same

ARGUMENTS: dict[str, Any] = {"cut": 0, "rounds": 2, "batch_size": 4, "local_epochs": 1}
TWO = "expected finite torch.float32 2 to 4 rows of (8,)"
Decide = Callable[[str, int, int], bool]
"""(client, round, step) -> whether its connection breaks instead of this step."""


class Breaking:
    """Lines that break; `fired` is what really happened, `begun` how many rounds clients began."""

    def __init__(self, patch: pytest.MonkeyPatch, decide: Decide) -> None:
        self.fired: list[tuple[str, int, int]] = []
        self.begun = 0
        lock, test = threading.Lock(), self

        class Broken(GrpcLine):
            def __init__(self, server: str, identity: Any) -> None:
                super().__init__(server, identity)
                self.name = identity.name

            def send(self, kind: str, words: dict[str, Any], *rest: Any) -> None:
                if kind == "Smashed":
                    n, _, step, _ = words["address"]
                    with lock:
                        test.begun += step == 0
                        broken = decide(self.name, n, step)
                        if broken:
                            test.fired.append((self.name, n, step))
                    if broken:
                        self._channel.close()
                        raise Gone("broken on purpose")
                super().send(kind, words, *rest)

        patch.setattr("cutlayer.network.client.loop.GrpcLine", Broken)
        patch.setattr(dial, "FIRST", 0.05)
        patch.setattr(dial, "LONGEST", 0.2)
        patch.setattr("cutlayer.network.server.service.LINGER", SOON)  # whoever was lost comes back before the end


def once(*wanted: tuple[str, int, int]) -> Decide:
    """Each of these breaks the first time it is reached."""
    left = set(wanted)

    def decide(name: str, n: int, step: int) -> bool:
        found = (name, n, step) in left
        left.discard((name, n, step))
        return found

    return decide


def simulated(fault: Fault | None, **training: Any) -> nn.Module:
    """The simulator's weights when this fault happens."""
    plain = cl.rounds(network(), rows(), rows()[0], backend="loop", **(ARGUMENTS | training))
    cohort = FaultyCohort(plain.setup.cohort, [] if fault is None else [fault])
    run = cl.Run(copy.deepcopy(network()), dataclasses.replace(plain.setup, cohort=cohort), plain.state, None)
    assert len(list(run)) == plain.setup.rounds and cohort.unfired == []
    return run.model


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="clients keep their fronts")
        yield


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_client_that_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """It has finished for this round: the others end as in a simulation that loses it there."""
    broken = Breaking(monkeypatch, once(("ward-1", 2, 2)))
    played = play(tmp_path, rows(), scheme=scheme, **ARGUMENTS)
    assert broken.fired == [("ward-1", 2, 2)]
    record = played.result.history[1]
    assert record.lost == 1 and len(record.faults) == 1 and record.faults[0].startswith("ward-1: ")
    expected = simulated(Fault("drop", 2, 1, 2), scheme=scheme)
    keeps = scheme in ("psl", "sglr", "cyclepsl", "cyclesglr")
    assert same(played.result.model[keeps:], expected[keeps:])
    assert all(isinstance(client, Joined) for client in played.clients), "it came back, and heard of the end"


@pytest.mark.parametrize("labels", ["send", "stay"])
def test_a_client_that_falls_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: str) -> None:
    """The round ends by its deadline; what it says later changes nothing."""
    release, fired = threading.Event(), []

    class Silent(GrpcLine):
        def send(self, kind: str, words: dict[str, Any], *rest: Any) -> None:
            if kind == "Smashed" and words["address"] == [2, 1, 2, 0]:
                fired.append(words["address"])
                assert release.wait(SOON)
            super().send(kind, words, *rest)

    monkeypatch.setattr("cutlayer.network.client.loop.GrpcLine", Silent)

    def watch(service: Any) -> None:
        drop = service.cohort._drop

        def dropped(j: int, why: str, fault: bool = True) -> None:
            drop(j, why, fault)
            release.set()

        service.cohort._drop = dropped

    expected = simulated(Fault("drop", 2, 1, 2), scheme="smofi", labels=labels)  # first, so that torch is warm
    played = play(tmp_path, rows(), {"deadline": 3.0}, watch=watch, scheme="smofi", labels=labels, **ARGUMENTS)
    assert fired == [[2, 1, 2, 0]]
    assert played.result.history[1].faults == ("ward-1: silent for 3 seconds when a Smashed was due",)
    assert same(played.result.model, expected)


@pytest.mark.parametrize("scheme", ["smofi", "sflv2", "psl", "cyclesfl"])
def test_a_round_below_its_quorum_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """With the weights it began with: once everybody is back, the bits are those of an undisturbed run."""
    broken = Breaking(monkeypatch, once(("ward-1", 1, 2), ("ward-3", 2, 3)))
    played = play(tmp_path, rows(), {"quorum": 1.0}, scheme=scheme, **ARGUMENTS)
    assert len(broken.fired) == 2
    for record, name in zip(played.result.history, ("ward-1", "ward-3"), strict=True):
        who, attempt = record.faults
        assert who.startswith(f"{name}: ") and attempt.startswith(f"attempt 1: round {record.n}: 3 of its 4 clients")
        assert record.lost == 0
    keeps = scheme == "psl"
    whole = cl.train(network(), rows(), test=rows()[0], backend="loop", scheme=scheme, **ARGUMENTS)
    assert same(played.result.model[keeps:], whole.model[keeps:])
    if keeps:
        fronts = [client.front for client in played.clients if isinstance(client, Joined)]
        assert all(same(front, whole.clients[j][:1]) for j, front in enumerate(fronts)) and len(fronts) == 4


def test_after_so_many_attempts_it_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Breaking(monkeypatch, lambda name, n, step: name == "ward-1" and n == 2)
    with pytest.raises(cl.RoundAbandoned, match=r"round 2: 3 of its 4 clients finished, 4 must.*\(3 attempts\)"):
        play(tmp_path, rows(), {"quorum": 1.0, "attempts": 3}, scheme="smofi", **ARGUMENTS)
    assert len(broken.fired) == 3


def test_clients_without_a_full_batch(tmp_path: Path) -> None:
    """A run in which nobody could train does not count its rounds."""
    with pytest.raises(cl.RoundAbandoned, match=r"round 1: none of its 4 clients has a full batch \(2 attempts\)"):
        play(tmp_path, rows(), {"attempts": 2}, scheme="smofi", **(ARGUMENTS | {"batch_size": 64}))


def test_a_batch_that_batch_norm_cannot_take(tmp_path: Path) -> None:
    """One row is no breach by intent, but it must not end the others' run."""
    torch.manual_seed(0)
    back = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), back)
    one = {"batch_size": 4, "local_steps": 2, "rounds": 2, "cut": 0}
    played = play(tmp_path, rows((12, 20, 1, 16)), model=model, scheme="smofi", **one)
    for record in played.result.history:
        assert record.clients == (0, 1, 3)
        assert record.faults == (f"ward-2: it sent smashed data of torch.float32 (1, 8), {TWO}",)


@pytest.mark.parametrize("participation", [0, -1, True, 1.5, 0.0])
def test_nobody_cannot_be_selected(participation: Any) -> None:
    with pytest.raises(cl.ContractError, match=r"^participation = "):
        cl.serve(network(), rows()[0], participation=participation, listen="127.0.0.1:0")


def test_more_are_asked_than_needed(tmp_path: Path) -> None:
    played = play(tmp_path, rows(), {"over_selection": 1.5}, participation=2, scheme="smofi", **ARGUMENTS)
    assert [record.participants for record in played.result.history] == [3, 3]


@pytest.mark.parametrize(("scheme", "rounds"), [(scheme, 20 if scheme == "smofi" else 5) for scheme in SCHEMES])
def test_three_in_ten_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, rounds: int) -> None:
    """At a random step of their round, again and again: the run finishes, and nothing hangs."""
    doomed: dict[str, int | None] = {}
    times: Counter[tuple[str, int]] = Counter()
    steps = {name: len(y) // 4 for name, (_, y) in zip(NAMES, rows(), strict=True)}

    def decide(name: str, n: int, step: int) -> bool:
        if step == 0:
            times[name, n] += 1
            dice = random.Random(f"{scheme}/{name}/{n}/{times[name, n]}")  # whoever comes when
            doomed[name] = dice.randrange(steps[name]) if dice.random() < 0.3 else None
        return doomed[name] == step

    broken = Breaking(monkeypatch, decide)
    played = play(tmp_path, rows(), {"quorum": 0.25}, scheme=scheme, **(ARGUMENTS | {"rounds": rounds}))
    history = played.result.history
    assert len(history) == rounds and all(isinstance(client, Joined) for client in played.clients)
    named = [fault for record in history for fault in record.faults if not fault.startswith("attempt")]
    assert broken.fired and len(named) >= len(broken.fired)
    assert all(fault.split(":")[0] in NAMES for fault in named)
    if rounds == 20:
        assert 0.15 < len(broken.fired) / broken.begun < 0.45
    assert all(bool(w.isfinite().all()) for w in played.result.model.state_dict().values())


def test_who_comes_late_takes_part_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer is numbered after those who are there."""
    from cutlayer.api.network import join
    from tests.network.harness import certs

    late: list[threading.Thread] = []
    seen = threading.Event()

    def newcomer(port: int) -> None:
        assert seen.wait(SOON)
        join(f"localhost:{port}", rows()[3], model=network(), certs=certs() / NAMES[3], out=tmp_path, patience=SOON)

    def watch(service: Any) -> None:
        late.append(threading.Thread(target=newcomer, args=(service.hub.port,), daemon=True))
        late[0].start()
        available = service.cohort.available

        def waits(n: int, everybody: Any) -> Any:
            if n == 2:
                seen.set()
                service.cohort._wait(4, SOON)
            return available(n, everybody)

        service.cohort.available = waits

    played = play(tmp_path, rows()[:3], {"min_clients": 3}, watch=watch, scheme="smofi", **ARGUMENTS)
    late[0].join(SOON)
    assert [record.clients for record in played.result.history] == [(0, 1, 2), (0, 1, 2, 3)]


def test_who_comes_again_at_the_end_hears_of_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client's stream breaks under its Bye; another is away, so that the server is still there."""
    monkeypatch.setattr("cutlayer.network.server.service.LINGER", SOON)
    monkeypatch.setattr(dial, "FIRST", 0.05)
    broken, told, data = threading.Event(), threading.Event(), rows()[:3]

    class Deaf(MemoryLine):
        def receive(self) -> Frame:
            frame = super().receive()
            if frame.kind == "Bye" and not broken.is_set():
                broken.set()
                self.close()
                raise Gone("broken on purpose")
            return frame

    def deaf(hub: MemoryHub) -> Joined:
        monkeypatch.setattr(hub, "dial", lambda *_: Deaf(hub))
        joined = in_memory(hub, NAMES[1], data[1], network(), tmp_path, {})
        told.set()
        return joined

    def away(hub: MemoryHub) -> None:
        def until(kind: str) -> None:
            line, _ = dialled(hub, NAMES[2])
            line.send("Ready", {"samples": len(data[2][1])})
            line.reader.limit = 2**20
            while line.receive().kind != kind:
                pass
            line.close()

        until("Plan")
        assert told.wait(SOON)
        until("Bye")

    played = play(tmp_path, data, guests={1: deaf, 2: away}, memory=True, **ARGUMENTS)
    assert broken.is_set() and isinstance(played.clients[1], Joined) and played.clients[2] is None
