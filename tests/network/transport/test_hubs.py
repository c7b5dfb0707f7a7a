"""What every transport does, over sockets and in memory. A new one goes into `HUBS`, and is done when this passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from cutlayer.errors import ContractError, StoreError
from cutlayer.network.transport import hub as hubs
from cutlayer.network.transport.dial import GrpcLine
from cutlayer.network.transport.grpc_hub import GrpcHub
from cutlayer.network.transport.hub import GRANT, Connection, Event, Hub
from cutlayer.network.transport.line import Gone, Line, Refused
from cutlayer.network.transport.memory import MemoryHub
from tests.network.harness import SOON

Make = Callable[..., tuple[Hub, Callable[[], Line]]]


def admit(name: str, words: dict[str, Any]) -> dict[str, Any]:
    if words.get("version") == 0:
        raise ContractError("version = 0: expected 2")
    return {"hello": name}


def over_sockets(revoked: Any) -> tuple[Hub, Callable[[], Line]]:
    hub = GrpcHub("127.0.0.1:0", None, admit, revoked)
    return hub, lambda: GrpcLine(f"127.0.0.1:{hub.port}", None)


def in_memory(revoked: Any) -> tuple[Hub, Callable[[], Line]]:
    hub = MemoryHub(admit, revoked)
    return hub, hub.dial


HUBS = {"sockets": over_sockets, "memory": in_memory}


@pytest.fixture(params=HUBS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """A server that listens, and how to dial it."""
    made: list[Hub] = []

    def start(revoked: Any = set) -> tuple[Hub, Callable[[], Line]]:
        hub, dial = HUBS[request.param](revoked)
        made.append(hub)
        hub.start()
        return hub, dial

    yield start
    for hub in made:
        hub.stop(0.1)


def greeted(dial: Callable[[], Line], name: str = "ward-1", **words: Any) -> Line:
    line = dial()
    assert line.greet({"name": name, **words}) == {"hello": name}
    line.reader.limit = 2**20
    return line


def event(hub: Hub, kind: str) -> Event:
    found = hub.next(SOON)
    assert found is not None and found.kind == kind, found
    return found


def came(hub: Hub) -> Connection:
    session = event(hub, "came").session
    session.limit = session.reader.limit = 2**20
    return session


def test_frames_go_both_ways(make: Make) -> None:
    """Words, tensors and their order; both sides count the same bytes."""
    hub, dial = make()
    line = greeted(dial)
    session = came(hub)
    assert session.name == "ward-1" and hub.sessions == {"ward-1": session} and hub.alive
    for n in range(3):
        x = torch.randn(4, 3)
        session.send("Down", {"n": n}, [x])
        frame = line.receive()
        assert (frame.kind, frame.words) == ("Down", {"n": n}) and frame.tensors[0].equal(x)
        line.send("Up", {"n": n}, [2 * x])
        heard = event(hub, "frame")
        assert heard.session is session and heard.frame is not None
        assert (heard.frame.kind, heard.frame.words) == ("Up", {"n": n}) and heard.frame.tensors[0].equal(2 * x)
    line.close()
    assert event(hub, "went").session is session
    assert not session.alive and hub.sessions == {} and (hub.up, hub.down) == (session.up, session.down)


def test_a_frame_of_many_pieces(make: Make) -> None:
    hub, dial = make()
    line = greeted(dial)
    session = came(hub)
    line.reader.limit = session.reader.limit = 2**24
    x = torch.randn(3 * 2**18 + 1)
    session.send("Down", {}, [x])
    assert line.receive().tensors[0].equal(x)
    line.send("Up", {}, [x])
    found = event(hub, "frame").frame
    assert found is not None and found.tensors[0].equal(x)
    line.close()


def test_what_a_client_has_not_taken_is_counted(make: Make) -> None:
    hub, dial = make()
    line = greeted(dial)
    session = came(hub)
    session.send("Down", {}, [torch.ones(2**16)])
    line.receive()
    until = time.monotonic() + SOON
    while session.behind and time.monotonic() < until:
        time.sleep(0.01)
    assert session.behind == 0
    line.close()


def test_who_is_refused_hears_why(make: Make) -> None:
    hub, dial = make(lambda: {"ward-9"})
    with pytest.raises(Refused, match=r"the server refuses: version = 0: expected 2$"):
        dial().greet({"name": "ward-1", "version": 0})
    with pytest.raises(Refused, match="the server refuses: client ward-9: its certificate has been revoked"):
        dial().greet({"name": "ward-9"})
    with pytest.raises(Refused, match="client name"):
        dial().greet({"name": "../ward"})
    assert hub.next(0.0) is None and hub.sessions == {}
    assert (hub.counts["refused: client"], hub.counts["streams"]) == (3, 3)


def test_the_first_frame_is_a_greeting(make: Make) -> None:
    hub, dial = make()
    line = dial()
    line.send("Smashed", {"name": "ward-1"})
    assert line.receive().kind == "Refused" and hub.counts["refused: greeting"] == 1


def test_who_is_put_off_may_come_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is admitted while the list of revoked names cannot be read, and nobody comes too often."""

    def damaged() -> set[str]:
        raise StoreError("revoked.txt: cannot be read")

    hub, dial = make(damaged)
    with pytest.raises(Gone):
        dial().greet({"name": "ward-1"})
    assert hub.counts["refused: admission"] == 1
    monkeypatch.setattr(hubs, "VISITS", 2)
    hub, dial = make()
    for _ in range(2):
        greeted(dial).close()
    with pytest.raises(Gone):
        dial().greet({"name": "ward-1"})
    greeted(dial, "ward-2").close()
    assert hub.counts["refused: rate"] == 1


def test_who_comes_anew_takes_the_place_of_its_old_stream(make: Make) -> None:
    hub, dial = make()
    first = greeted(dial)
    old = came(hub)
    second = greeted(dial)
    went = event(hub, "went")
    assert went.session is old and went.why == "it has come anew"
    new = came(hub)
    assert hub.sessions == {"ward-1": new} and new is not old
    with pytest.raises(Gone):
        first.receive()
    new.send("Down", {"n": 1})
    assert second.receive().words == {"n": 1}
    first.close()
    second.close()


def broken(make: Make, send: Callable[[Line], None]) -> tuple[Hub, str]:
    """Why the server ends this client's stream."""
    hub, dial = make()
    line = greeted(dial)
    came(hub)
    send(line)
    while (found := hub.next(SOON)) is not None and found.kind == "frame":
        pass
    assert found is not None and found.kind == "went" and hub.sessions == {}
    with pytest.raises(Gone):
        line.receive()
    line.close()
    return hub, found.why


def test_more_than_it_was_asked_for(make: Make) -> None:
    def flood(line: Line) -> None:
        for n in range(GRANT + 1):
            line.send("Smashed", {"n": n})

    hub, why = broken(make, flood)
    assert why == "it sent a 'Smashed', more than it was asked for" and hub.counts["refused: frame"] == 1


def test_a_second_ready(make: Make) -> None:
    def twice(line: Line) -> None:
        line.send("Ready", {"samples": 1})
        line.send("Ready", {"samples": 1})

    assert broken(make, twice)[1] == "it sent a second 'Ready'"


def test_a_frame_above_the_limit(make: Make) -> None:
    _, why = broken(make, lambda line: line.send("Smashed", {}, [torch.ones(2**19)]))
    assert why.startswith("it sent a frame of more than 1,048,576 bytes")


def test_bytes_that_are_no_frame(make: Make) -> None:
    assert broken(make, lambda line: line._put(b"\x07noise"))[1] == "it sent a message that is no piece of a frame"


def test_a_server_that_ends(make: Make) -> None:
    """What was sent before still arrives; then the stream is over."""
    hub, dial = make()
    line = greeted(dial)
    came(hub).send("Bye", {"n": 1})
    hub.stop()
    assert line.receive().words == {"n": 1}
    with pytest.raises(Gone):
        line.receive()
    with pytest.raises(Gone):
        dial().greet({"name": "ward-1"})
    assert not hub.alive
    line.close()


def test_a_client_waits_until_its_frames_are_taken(make: Make) -> None:
    """The server holds a few; nothing is lost."""
    hub, dial = make()
    line = greeted(dial)
    session = came(hub)
    for _ in range(2):
        session.send("Down", {})
    for n in range(hubs.SAVED // 2):
        line.send("Up", {"n": n})
    frames = [event(hub, "frame").frame for _ in range(hubs.SAVED // 2)]
    assert [frame.words["n"] for frame in frames if frame is not None] == list(range(hubs.SAVED // 2))
    line.close()
