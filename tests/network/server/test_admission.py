"""Who is let in, and what the log says of it: refusals, certificates that end, and those that are renewed meanwhile."""

from __future__ import annotations

import logging
import shutil
import ssl
from pathlib import Path

import pytest

import cutlayer as cl
from cutlayer.errors import StoreError
from cutlayer.network.client.loop import Joined
from cutlayer.network.transport import identity, renewal
from cutlayer.network.transport.dial import Gone, Line, Refused
from cutlayer.network.transport.hub import Hub
from tests.network.harness import NAMES, certs, network, play, rows

BASE = {"cut": 0, "rounds": 1, "batch_size": 4, "local_epochs": 1, "scheme": "smofi"}


def greeted(hub: Hub, who: identity.Identity | None, name: str = "a") -> str:
    """What a client that dials hears."""
    line = Line(f"127.0.0.1:{hub.port}", who)
    try:
        line.greet({"name": name})
        return "welcome"
    except (Gone, Refused) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        line.close()


def test_a_list_of_the_revoked_that_cannot_be_read_stops_admission(caplog: pytest.LogCaptureFixture) -> None:
    """For as long as it cannot: clients come back by themselves."""
    damaged = [True]

    def revoked() -> set[str]:
        if damaged[0]:
            raise StoreError("revoked.txt: cannot be read: permission denied")
        return {"b"}

    hub = Hub("127.0.0.1:0", None, lambda name, words: {}, revoked)
    hub.start()
    with caplog.at_level(logging.WARNING):
        assert "Gone: RESOURCE_EXHAUSTED: nobody is admitted: revoked.txt" in greeted(hub, None)
    assert "is refused: nobody is admitted: revoked.txt: cannot be read" in caplog.text
    damaged[0] = False
    assert greeted(hub, None) == "welcome"
    with caplog.at_level(logging.WARNING):
        assert greeted(hub, None, "b").startswith("Refused: ")
    assert "(ipv4:127.0.0.1:" in caplog.text and "is refused: client b: its certificate has been revoked" in caplog.text
    assert hub.counts == {"streams": 3, "refused: admission": 1, "refused: client": 1}
    hub.stop(0.1)


def test_a_certificate_that_ends_soon_is_in_the_log_of_both(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = shutil.copytree(certs(), tmp_path / "certs")
    renewal.renew(folder, [NAMES[0], "server"], renewal.Terms(days=5))
    said: list[str] = []

    def guest(port: int) -> Joined:
        how = {"certs": folder / NAMES[0], "out": tmp_path / "guest", "say": said.append}
        return cl.join(f"127.0.0.1:{port}", rows()[0], model=network(), **how)

    with caplog.at_level(logging.WARNING):
        play(tmp_path, rows()[:2], {"certs": folder}, guests={0: guest}, **BASE)
    assert any(f"{folder / NAMES[0]}: its certificate ends in" in line for line in said)
    assert f"client {NAMES[0]}: its certificate ends in" in caplog.text
    assert f"{folder / 'server'}: its certificate ends in" in caplog.text
    assert f"client {NAMES[1]}" not in caplog.text


def test_a_server_shows_its_new_certificate_without_a_restart(tmp_path: Path) -> None:
    folder = shutil.copytree(certs(), tmp_path / "certs")
    hub = Hub("127.0.0.1:0", identity.read(folder, "server"), lambda name, words: {}, set)
    hub.start()
    who = identity.read(folder, NAMES[0])
    before = ssl.get_server_certificate(("127.0.0.1", hub.port))
    assert greeted(hub, who) == "welcome"
    renewal.renew(folder, ["server"])
    shown = before
    while shown == before:  # it looks at its files once a second
        shown = ssl.get_server_certificate(("127.0.0.1", hub.port))
    assert greeted(hub, who) == "welcome"
    hub.stop(0.1)
