"""Who is let in, and what the log says of it: refusals, certificates that end, and those that are renewed meanwhile."""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import ssl
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import cutlayer as cl
from cutlayer.clients.cohort import Availability
from cutlayer.errors import StoreError
from cutlayer.network.client.loop import Joined
from cutlayer.network.server.cohort import NetCohort, Patience, Rules
from cutlayer.network.server.roster import Entry
from cutlayer.network.transport import identity, renewal
from cutlayer.network.transport.dial import GrpcLine
from cutlayer.network.transport.grpc_hub import GrpcHub, log
from cutlayer.network.transport.hub import Hub
from cutlayer.network.transport.line import Gone, Refused
from cutlayer.network.transport.reload import Reminders
from tests.network.harness import NAMES, SOON, certs, network, play, rows

BASE = {"cut": 0, "rounds": 1, "batch_size": 4, "local_epochs": 1, "scheme": "smofi"}


def greeted(hub: Hub, who: identity.Identity | None, name: str = "a") -> str:
    """What a client that dials hears."""
    line = GrpcLine(f"127.0.0.1:{hub.port}", who)
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

    hub = GrpcHub("127.0.0.1:0", None, lambda name, words: {}, revoked)
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


def test_a_standing_stream_is_warned_of_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = shutil.copytree(certs(), tmp_path / "certs")
    renewal.renew(folder, [NAMES[0]], renewal.Terms(days=5))
    hub = GrpcHub("127.0.0.1:0", identity.read(certs(), "server"), lambda name, words: {}, set)
    hub.start()
    line = GrpcLine(f"127.0.0.1:{hub.port}", identity.read(folder, NAMES[0]))
    line.greet({"version": "1"})
    caplog.clear()
    hub._remind = Reminders(log.warning)  # as on the next day
    with caplog.at_level(logging.WARNING):
        hub.look()
    assert f"client {NAMES[0]}: its certificate ends in" in caplog.text
    line.close()
    hub.stop(0.1)


class Waited(Exception):
    """The cohort waits for somebody."""


def cohort(names: Sequence[str], there: Sequence[int], revoked: set[str]) -> NetCohort:
    """Whoever is known, and whoever is there; nothing ever happens."""

    def nothing(timeout: float) -> None:
        if timeout:
            raise Waited

    hub: Any = SimpleNamespace(next=nothing, look=lambda: 0, revoked=lambda: revoked, counts=Counter())
    sessions = {j: Mock(name=names[j]) for j in there}
    for j, session in sessions.items():
        session.name = names[j]
    roster: Any = SimpleNamespace(
        **{"fixed": True, "entries": [Entry(name, 9) for name in names], "sessions": sessions},
        **{"connected": list(there), "went": lambda session: None},
    )
    rules = Rules(2, lambda n: n)
    return NetCohort(hub, roster, None, Patience(), rules, grace=60.0)  # type: ignore[arg-type]


def test_after_a_restart_nobody_waits_for_the_revoked() -> None:
    everybody = Availability([0, 1, 2], 3, 1)
    with pytest.raises(Waited):
        cohort("abc", (0, 1), set()).available(1, everybody)
    assert cohort("abc", (0, 1), {"c"}).available(1, everybody).clients == [0, 1]


def test_who_is_revoked_in_a_run_is_counted_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    one = cohort("abc", (0, 1, 2), {"c"})
    one.available(1, Availability([0, 1, 2], 3, 1))
    assert one.hub.counts == {"refused: revoked": 1} and "client c: its certificate has been revoked" in caplog.text


def test_a_server_shows_its_new_certificate_without_a_restart(tmp_path: Path) -> None:
    folder = shutil.copytree(certs(), tmp_path / "certs")
    hub = GrpcHub("127.0.0.1:0", identity.read(folder, "server"), lambda name, words: {}, set)
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


def test_connections_without_an_accepted_certificate_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Silent ones, and those that fail the handshake; not a client that is let in, nor one that is still dialling."""
    hub = GrpcHub("127.0.0.1:0", identity.read(certs(), "server"), lambda name, words: {}, set)
    hub.start()
    try:
        assert greeted(hub, identity.read(certs() / "ward-0")) == "welcome"
        hub.look()
        hub.look()
        assert "refused: connection" not in hub.counts
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        for _ in range(3):  # without a certificate: the server ends the stream after the handshake
            bare = socket.create_connection(("127.0.0.1", hub.port))
            with contextlib.suppress(OSError), context.wrap_socket(bare) as secured:
                secured.recv(1)
        with socket.create_connection(("127.0.0.1", hub.port)) as silent:
            until = time.monotonic() + SOON
            while hub._connections < 5 and time.monotonic() < until:
                time.sleep(0.01)
            hub.look()
            assert hub.counts["refused: connection"] == 0, "they may still be dialling"
            silent.close()
        hub.look()
        hub.look()
        assert hub.counts["refused: connection"] == 4
        assert caplog.text.count("4 connections ended before a greeting") == 1
    finally:
        hub.stop(0.1)
