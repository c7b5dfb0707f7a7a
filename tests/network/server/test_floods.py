"""Clients that send too much, take nothing, do not end what they begin, or change their story."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cutlayer as cl
from cutlayer.clients.codec import Encoded
from cutlayer.clients.messages import Plan
from cutlayer.network.protocol.handshake import Hello, read
from cutlayer.network.transport import identity
from cutlayer.network.transport.dial import GrpcLine
from cutlayer.network.transport.frames import MORE
from cutlayer.network.transport.grpc_hub import OPTIONS, GrpcHub
from cutlayer.network.transport.line import Gone, Refused
from tests.clients.faulty import Fault
from tests.network.harness import SOON, certs, play, rows
from tests.network.hostile_client import at, bent, dialled, like, simulated, unhurried
from tests.network.test_bits import same

DATA = rows((8, 12, 9))  # 2, 3 and 2 steps of 4
BAD = 1  # who it is: ward-1
BASE: dict[str, Any] = {"cut": 0, "batch_size": 4, "local_epochs": 1, "scheme": "smofi"}


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    unhurried(monkeypatch)


def test_a_late_frame_may_be_longer_than_those_of_now(tmp_path: Path) -> None:
    """Each round has a cut of its own; a frame of the round before is late, and not above the limit."""
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3000), nn.Sequential(nn.Tanh(), nn.Linear(3000, 3)))
    past: list[Encoded] = []
    late: list[tuple[int, int]] = []

    def bend(answer: Encoded) -> Iterable[Encoded]:
        before = past[-1:] if at(answer)[2] == 0 and past and at(past[-1])[1] < at(answer)[1] else []
        late.extend((one[2][0].numel(), answer[2][0].numel()) for one in before)
        if answer[0] == "Smashed":
            past.append(answer)
        return [*before, answer]

    training = BASE | {"rounds": 6, "cut": (0, 1)}
    guests = {BAD: bent(BAD, DATA, bend, tmp_path, model=wide)}
    played = play(tmp_path, DATA, guests=guests, model=wide, **training)
    assert any(was > 100 * now for was, now in late), late
    assert [record.faults for record in played.result.history] == [()] * 6
    assert same(played.result.model, cl.train(wide, DATA, test=DATA[0], backend="loop", **training).model)


def test_flooding(tmp_path: Path) -> None:
    """More than it is asked for: its step still counts, and then it is out."""
    out = threading.Event()

    def watch(service: Any) -> None:
        drop = service.cohort._drop

        def dropped(j: int, why: str, fault: bool = True) -> None:
            drop(j, why, fault)
            if j == BAD:
                out.set()

        service.cohort._drop = dropped

    def floods(answer: Encoded) -> Iterable[Encoded]:
        return [answer] * (50 if at(answer) == ("Smashed", 2, 1) else 1)

    def waits(answer: Encoded) -> Iterable[Encoded]:
        if at(answer) == ("Smashed", 2, 1):
            assert out.wait(SOON)
        return [answer]

    training = BASE | {"rounds": 2}
    guests = {1: bent(1, DATA, floods, tmp_path), 2: bent(2, DATA, waits, tmp_path)}
    played = play(tmp_path, DATA, guests=guests, watch=watch, **training)
    assert [record.faults for record in played.result.history] == [(), ("ward-1: it sends more than it is asked for",)]
    assert same(played.result.model, simulated(DATA, [Fault("drop", 2, BAD, 2)], **training))


@pytest.mark.parametrize(("kib", "pieces"), [(8, "one"), (4000, "several")])
def test_a_frame_above_the_limit(tmp_path: Path, kib: int, pieces: str) -> None:
    """Its stream is closed before the frame is whole."""

    def bend(answer: Encoded) -> Iterable[Encoded]:
        if at(answer) != ("Smashed", 2, 1):
            return [answer]
        return [like(answer, torch.zeros(kib * 256), answer[2][1])]

    log: list[str] = []
    training = BASE | {"rounds": 2}
    guests = {BAD: bent(BAD, DATA, bend, tmp_path, log)}
    played = play(tmp_path, DATA, guests=guests, **training)
    (fault,) = played.result.history[1].faults
    assert fault.startswith("ward-1: it sent a frame of more than") and len(log) == 1
    assert same(played.result.model, simulated(DATA, [Fault("drop", 2, BAD, 1)], **training))


def test_another_number_of_samples_on_the_way(tmp_path: Path) -> None:
    """Once the run has begun its data are what they were: whoever says otherwise is refused."""

    def guest(port: int) -> str:
        line, _ = dialled(port, "ward-1")
        line.reader.limit = 2**20
        line.send("Ready", {"samples": 12})
        while line.receive().kind != "Plan":
            pass
        line.close()
        line, _ = dialled(port, "ward-1")
        line.send("Ready", {"samples": 13})
        try:
            while (frame := line.receive()).kind != "Refused":
                pass
            return str(frame.words["why"])
        except Gone as error:
            return str(error)
        finally:
            line.close()

    training = BASE | {"rounds": 1}
    played = play(tmp_path, DATA, guests={BAD: guest}, **training)
    assert "13 samples, where it had 12" in str(played.clients[BAD])
    (fault,) = played.result.history[0].faults
    assert fault in ("ward-1: it has left", "ward-1: it has come anew", "ward-1: CancelledError")
    assert same(played.result.model, simulated(DATA, [Fault("drop", 1, BAD, 0)], **training))


def test_ready_again_and_again(tmp_path: Path) -> None:
    """One is heard: the second ends the stream, and the others notice nothing."""
    heard: list[str] = []

    def watch(service: Any) -> None:
        handle = service.cohort._handle

        def counted(event: Any) -> int:
            if event is not None and event.frame is not None and event.session.name == "ward-1":
                heard.append(event.frame.kind)
            return int(handle(event))

        service.cohort._handle = counted

    def guest(port: int) -> str:
        line, _ = dialled(port, "ward-1")
        line.reader.limit = 2**20
        try:
            line.send("Ready", {"samples": 12})
            while line.receive().kind != "Plan":
                pass
            for _ in range(5000):
                line.send("Ready", {"samples": 12})
            while True:
                line.receive()
        except Gone as error:
            return str(error)
        finally:
            line.close()

    training = BASE | {"rounds": 1}
    played = play(tmp_path, DATA, guests={BAD: guest}, watch=watch, **training)
    assert heard == ["Ready"]
    assert played.result.history[0].faults == ("ward-1: it sent a second 'Ready'",)
    assert same(played.result.model, simulated(DATA, [Fault("drop", 1, BAD, 0)], **training))


def test_a_client_that_comes_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is put off, not refused for good; others are not."""
    monkeypatch.setattr("cutlayer.network.transport.hub.VISITS", 5)
    hub = GrpcHub("127.0.0.1:0", None, lambda name, words: {}, set)
    hub.start()

    def comes(name: str) -> str:
        line = GrpcLine(f"127.0.0.1:{hub.port}", None)
        try:
            line.greet({"name": name})
            return "welcome"
        except Gone as error:
            return str(error)
        finally:
            line.close()

    said = [comes("ward-1") for _ in range(8)]
    assert said[:5] == ["welcome"] * 5
    assert all("5 streams in" in why and "come back later" in why for why in said[5:])
    assert comes("ward-2") == "welcome" and hub.counts["refused: rate"] == 3
    hub.stop(0.1)


def test_a_client_that_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers without reading: what waits for it stays within bounds, and it is passed over."""
    small = [*OPTIONS, ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 2**14)]
    monkeypatch.setattr("cutlayer.network.transport.dial.OPTIONS", small)
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Sequential(nn.Linear(4, 4000), nn.Tanh()), nn.Linear(4000, 3))
    opened: queue.SimpleQueue[int] = queue.SimpleQueue()
    behind: list[float] = []

    def guest(port: int) -> None:
        line, _ = dialled(port, "ward-1")
        line.send("Ready", {"samples": 12})
        while (n := opened.get(timeout=SOON)) > 0:
            line.send("Smashed", {"address": [n, BAD, 0, 0]}, [torch.ones(1)])
        line.close()

    def watch(service: Any) -> None:
        plain, ends = service.cohort.ask, service._farewell

        def ask(messages: Any) -> Any:
            answers = plain(messages)
            if isinstance(messages[0], Plan):
                opened.put(messages[0].address.round)
                session = service.roster.sessions[BAD]
                behind.append(session.behind / session.limit)
            return answers

        def end(run: Any) -> None:
            opened.put(0)
            ends(run)

        service.cohort.ask, service._farewell = ask, end

    training = BASE | {"rounds": 12, "local_steps": 1, "scheme": "fedavg"}
    played = play(tmp_path, DATA, guests={BAD: guest}, watch=watch, model=wide, **training)
    assert 1 < max(behind) < 2.5
    faults = [fault for record in played.result.history for fault in record.faults]
    assert len(faults) == 12 and faults[-1] == "ward-1: it has not taken what it was sent before"
    assert same(
        played.result.model, simulated(DATA, [Fault("drop", n, BAD, 0) for n in range(1, 13)], wide, **training)
    )


def test_greetings_that_do_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop by drop, or too much to repeat: refused in time, and in few words."""
    monkeypatch.setattr("cutlayer.network.transport.grpc_hub.PATIENCE", 0.3)
    hub = GrpcHub("127.0.0.1:0", identity.read(certs(), "server"), lambda name, said: read(said, Hello), set)
    hub.start()
    who, over = identity.read(certs(), "ward-1"), threading.Event()
    slow = GrpcLine(f"127.0.0.1:{hub.port}", who)

    def drips() -> None:
        while not over.wait(0.02):
            slow._out.put(MORE)

    threading.Thread(target=drips, daemon=True).start()
    with pytest.raises(Gone, match="no greeting in time"):  # it may come again
        slow.receive()
    over.set()
    monkeypatch.setattr("cutlayer.network.transport.grpc_hub.PATIENCE", SOON)
    long = GrpcLine(f"127.0.0.1:{hub.port}", who)
    with pytest.raises(Refused, match="protocol version 'xxx"):
        long.greet({"version": "x" * 60_000})
    for line in (slow, long):
        line.close()
    hub.stop(0.1)
