"""A proxy that fails for a while: no client gives up, and the bits are the simulator's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cutlayer as cl
from cutlayer.network.client.loop import Joined
from cutlayer.network.transport import dial
from tests.network.harness import NAMES, SOON, certs, network, play, rows
from tests.network.hostile_client import unhurried
from tests.network.proxy import FAULTS, Proxy
from tests.network.test_bits import same

DATA = rows((8, 12, 9))
BASE: dict[str, Any] = {"cut": 0, "rounds": 2, "batch_size": 4, "local_epochs": 1, "scheme": "smofi"}


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
