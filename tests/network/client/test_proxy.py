"""A proxy that fails for a while: no client gives up, and the bits are the simulator's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cutlayer as cl
from cutlayer.errors import FrameError, Garbled
from cutlayer.network.client.loop import ClientLoop, Joined, Peer, Workplace
from cutlayer.network.transport import dial
from cutlayer.network.transport.line import Gone, Line
from tests.network.harness import NAMES, SOON, certs, network, play, rows
from tests.network.hostile_client import unhurried
from tests.network.proxy import FAULTS, Proxy
from tests.network.test_bits import same

DATA = rows((8, 12, 9))
BASE: dict[str, Any] = {"cut": 0, "rounds": 2, "batch_size": 4, "local_epochs": 1, "scheme": "smofi"}


def test_a_frame_that_was_damaged_on_its_way_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "FIRST", 0.02)
    met: list[Exception] = [Garbled("damaged on its way"), Gone("closed"), FrameError("nonsense")]

    class Bad(Line):
        def __init__(self, server: str, who: Any) -> None:
            super().__init__(check=True)

        def greet(self, words: dict[str, Any]) -> Any:
            raise met.pop(0)

        def receive(self) -> Any: ...
        def close(self) -> None: ...
        def _put(self, piece: bytes) -> None: ...

    said: list[str] = []
    peer = Peer("127.0.0.1:9", name="a", patience=SOON, dial=Bad)
    with pytest.raises(FrameError, match="it sent nonsense"):
        ClientLoop(peer, Workplace(lambda welcome: (network(), rows()[0]), tmp_path), said.append)()  # type: ignore
    assert met == [] and [line.rpartition(";")[0] for line in said] == [
        "127.0.0.1:9: damaged on its way",
        "127.0.0.1:9: closed",
    ]


@pytest.mark.parametrize("name", FAULTS)
def test_no_client_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Four times the same fault, and then none."""
    unhurried(monkeypatch)
    monkeypatch.setattr("cutlayer.network.server.service.LINGER", SOON)  # all of them come back, however late
    monkeypatch.setattr(dial, "FIRST", 0.02)
    monkeypatch.setattr(dial, "LONGEST", 0.05)
    proxies: list[Proxy] = []

    def guest(port: int) -> Any:
        proxies.append(Proxy(port, [FAULTS[name]] * 4))
        how: dict[str, Any] = {"certs": certs() / NAMES[0], "out": tmp_path / "guest", "patience": SOON}
        return cl.join(f"127.0.0.1:{proxies[0].port}", DATA[0], model=network(), **how)

    played = play(tmp_path, DATA, guests={0: guest}, **BASE)
    proxies[0].close()
    assert isinstance(played.clients[0], Joined), played.clients[0]
    assert proxies[0].met > (1 if name == "ends on the way" else 4)
    if name != "ends on the way":
        assert same(played.result.model, cl.train(network(), DATA, test=DATA[0], backend="loop", **BASE).model)
