"""Whoever is not who they should be is refused, by servers and by clients; those who are train on, to the bit."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

import cutlayer as cl
from cutlayer.clients.codec import Encoded
from cutlayer.clients.messages import CutGrad
from cutlayer.errors import AuthError, ContractError, CutlayerError, TransportError
from cutlayer.network.client.loop import Joined
from cutlayer.network.protocol.handshake import Hello, Welcome, read, words
from cutlayer.network.transport import dial, identity
from cutlayer.network.transport.dial import GrpcLine
from cutlayer.network.transport.grpc_hub import GrpcHub
from cutlayer.network.transport.identity import Identity
from cutlayer.network.transport.line import Gone, Refused
from tests.clients.faulty import Fault
from tests.network.harness import NAMES, SOON, certs, network, play, rows
from tests.network.hostile_client import at, simulated, unhurried
from tests.network.test_bits import same
from tests.network.unknown_peers import HOSTS, Stranger, dials, expired, nameless, others, shouts

DATA = rows((8, 12, 9))
BASE: dict[str, Any] = {"cut": 0, "rounds": 3, "batch_size": 4, "local_epochs": 1, "scheme": "smofi"}


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    unhurried(monkeypatch)
    monkeypatch.setattr(dial, "FIRST", 0.02)
    monkeypatch.setattr(dial, "LONGEST", 0.05)


def copied(tmp_path: Path) -> Path:
    """All of our certificates, the authority's too, where a test may add to them."""
    return shutil.copytree(certs(), tmp_path / "certs")


def simulator(**more: Any) -> Any:
    return cl.train(network(), DATA, test=DATA[0], backend="loop", **(BASE | more)).model


def strangers(folder: Path) -> dict[str, tuple[Stranger, type[BaseException], str]]:
    """Who tries to come in, and how that ends."""
    theirs, ours = identity.read(others(), NAMES[3]), identity.read(folder, NAMES[3])
    gone = "UNAVAILABLE"
    return {
        "another authority": (dials(Identity(theirs.key, theirs.cert, ours.ca), NAMES[0]), Gone, gone),
        "expired": (dials(expired(folder, "late")), Gone, gone),
        "server as a client": (dials(identity.read(folder, "server")), Gone, gone),
        "no certificate": (nameless, grpc.RpcError, gone),
        "plain text": (dials(None, NAMES[0]), Gone, gone),
        "no gRPC at all": (shouts, ConnectionError, "closed"),
        "key of another": (dials(Identity(theirs.key, ours.cert, ours.ca)), Gone, ""),
        "revoked": (dials(ours), Refused, "ward-3: its certificate has been revoked"),
        "who does not believe us": (dials(Identity(ours.key, ours.cert, theirs.ca)), AuthError, "not who it should be"),
    }


def test_strangers_while_others_train(tmp_path: Path) -> None:
    """Each of them, in every round: nobody comes in, and the others' bits are the simulator's."""
    folder = copied(tmp_path)
    known = strangers(folder)
    identity.revoke(folder, NAMES[3])
    came: list[str] = []
    ended: dict[str, list[Any]] = {name: [] for name in known}

    def watch(service: Any) -> None:
        available = service.cohort.available

        def intrude() -> None:
            for name, (stranger, _, _) in known.items():
                try:
                    came.append(stranger(service.hub.port))
                except BaseException as error:
                    ended[name].append(error)

        def waits(n: int, everybody: Any) -> Any:
            thread = threading.Thread(target=intrude, daemon=True)
            thread.start()
            while thread.is_alive():
                service.cohort.poll()
                thread.join(0.01)
            return available(n, everybody)

        service.cohort.available = waits

    played = play(tmp_path, DATA, {"certs": folder}, watch=watch, **BASE)
    for name, (_, kind, match) in known.items():
        assert len(ended[name]) == 3, name
        assert all(isinstance(error, kind) and match in str(error) for error in ended[name]), (name, ended[name])
    assert came == [] and played.service.roster.names == list(NAMES[:3])
    assert all(record.faults == () for record in played.result.history)
    assert same(played.result.model, simulator())


def servers(folder: Path) -> dict[str, tuple[Identity | None, type[CutlayerError], str]]:
    """Who waits for our clients, and how these end: at once where a certificate proves it, or out of patience."""
    theirs, ours = identity.read(others(), "server"), identity.read(folder, "server")
    shutil.move(folder / "server", folder / "kept")
    late = expired(folder, "server", HOSTS)
    shutil.rmtree(folder / "server")
    identity._issue(folder, "server", ["example.org", "10.0.0.7"], identity.ExtendedKeyUsageOID.SERVER_AUTH, 1)
    wrong = "the server is not who it should be"
    return {
        "another authority": (Identity(theirs.key, theirs.cert, ours.ca), AuthError, wrong),
        "expired": (late, AuthError, wrong),
        "client as a server": (replace(identity.read(folder, NAMES[1]), folder=None), AuthError, wrong),
        "another name": (identity.read(folder, "server"), AuthError, wrong),
        "plain text": (None, TransportError, "WRONG_VERSION_NUMBER"),
        "who does not believe us": (
            Identity(ours.key, ours.cert, theirs.ca),
            TransportError,
            "Socket closed; so does a server that does not accept a client's certificate",
        ),
    }


def test_servers_that_are_not_who_they_should_be(tmp_path: Path) -> None:
    """A client leaves before it has said a word."""
    said: list[Any] = []
    for name, (who, kind, match) in servers(copied(tmp_path)).items():
        hub = GrpcHub("127.0.0.1:0", who, lambda *words: said.append(words) or {}, set)
        hub.start()
        how = {"certs": certs() / NAMES[0], "out": tmp_path / name, "patience": 0.5}
        with pytest.raises(kind, match=match):
            cl.join(f"127.0.0.1:{hub.port}", DATA[0], model=network(), **how)
        hub.stop(0.1)
        assert not (tmp_path / name).exists(), name
    assert said == []


def test_clients_that_a_server_does_not_believe(tmp_path: Path) -> None:
    """They are told what may be wrong, and do not try for ever."""
    errors: dict[str, Any] = {}
    folder = copied(tmp_path)
    identity.revoke(folder, NAMES[3])
    expired(folder, "late")
    stranger = shutil.copytree(others() / NAMES[3], tmp_path / "stranger")
    shutil.copy(folder / "ca" / "ca.pem", stranger / "ca.pem")

    def tries(case: str, port: int, **how: Any) -> None:
        try:
            cl.join(f"localhost:{port}", DATA[0], model=network(), out=tmp_path / case, patience=SOON, **how)
        except BaseException as error:
            errors[case] = error

    def watch(service: Any) -> None:
        port = service.hub.port
        tries("another authority", port, certs=stranger)
        tries("revoked", port, certs=folder / NAMES[3])
        tries("expired", port, certs=folder / "late")
        tries("server as a client", port, certs=folder / "server")
        tries("plain text", port, name=NAMES[3])

    played = play(tmp_path, DATA, {"certs": folder}, watch=watch, **BASE)
    found = {name: (type(error), str(error)) for name, error in errors.items()}
    for name, kind, match in (
        ("another authority", AuthError, "not signed by the authority in"),
        ("revoked", Refused, "its certificate has been revoked"),
        ("expired", AuthError, "has expired on"),
        ("server as a client", ContractError, "client name = 'server'"),
        ("plain text", AuthError, "it shows a certificate; expected certs, to show ours"),
    ):
        assert issubclass(found[name][0], kind) and match in found[name][1], (name, found[name])
        assert not (tmp_path / name).exists()
    assert same(played.result.model, simulator())


def test_a_name_is_in_the_certificate(tmp_path: Path) -> None:
    """Whatever else a client says: nobody comes in as another, or drives another out."""
    sessions: list[list[str]] = []

    def watch(service: Any) -> None:
        available = service.cohort.available

        def waits(n: int, everybody: Any) -> Any:
            if n == 2:
                line = GrpcLine(f"127.0.0.1:{service.hub.port}", identity.read(certs(), NAMES[3]))
                read(line.greet(words(Hello(name=NAMES[0]))), Welcome)
                sessions.append(sorted(service.hub.sessions))
                line.close()
            return available(n, everybody)

        service.cohort.available = waits

    played = play(tmp_path, DATA, watch=watch, **BASE)
    assert sessions == [list(NAMES)]
    assert all(record.faults == () and record.lost == 0 for record in played.result.history)
    assert same(played.result.model, simulator())


@pytest.mark.parametrize("when", ["between rounds", "in a round"])
def test_revoked_while_connected(tmp_path: Path, when: str) -> None:
    """It finishes the round it is in, and is out from the next; it cannot come back."""
    folder, again = copied(tmp_path), []

    def watch(service: Any) -> None:
        available, plain = service.cohort.available, service.cohort.ask

        def waits(n: int, everybody: Any) -> Any:
            if n == 2 and when == "between rounds":
                identity.revoke(folder, NAMES[1])
            found = available(n, everybody)
            if n == 3:
                with pytest.raises(Refused, match="its certificate has been revoked"):
                    dials(identity.read(certs(), NAMES[1]))(service.hub.port)
                again.append(n)
            return found

        def ask(messages: Any) -> Any:
            if when == "in a round" and isinstance(messages[0], CutGrad) and messages[0].address.round == 1:
                identity.revoke(folder, NAMES[1])
            return plain(messages)

        service.cohort.available, service.cohort.ask = waits, ask

    played = play(tmp_path, DATA, {"certs": folder}, watch=watch, **BASE)
    assert [record.clients for record in played.result.history] == [(0, 1, 2), (0, 2), (0, 2)] and again == [3]
    assert isinstance(played.clients[1], ContractError) and "has been revoked" in str(played.clients[1])
    assert all(isinstance(played.clients[j], Joined) for j in (0, 2))
    lost = [Fault("drop", n, 1, 0) for n in (2, 3)]
    assert same(played.result.model, simulated(DATA, lost, **BASE))


def plainly(tmp_path: Path, **more: Any) -> Any:
    """A run on this machine without certificates."""
    model = network()

    def guest(j: int) -> Any:
        def joins(port: int) -> Any:
            where = f"127.0.0.1:{port}"
            return cl.join(where, DATA[j], model=model, name=NAMES[j], out=tmp_path, patience=SOON)

        return joins

    return play(tmp_path, DATA, {"certs": None}, guests={j: guest(j) for j in range(3)}, **(BASE | more))


def test_without_certificates(tmp_path: Path) -> None:
    """On one machine: the same bits, and a checksum on every frame."""
    checks: set[bool] = set()

    def watch(service: Any) -> None:
        plain = service.cohort.ask

        def ask(messages: Any) -> Any:
            checks.update(session.check for session in service.hub.sessions.values())
            return plain(messages)

        service.cohort.ask = ask

    played = plainly(tmp_path, watch=watch)
    assert checks == {True} and same(played.result.model, simulator())


def test_damage_on_the_way_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TLS, one flipped bit: the frame is not used, and its client has finished for this round."""
    damaged: list[Encoded] = []

    class Noisy(GrpcLine):
        def send(self, kind: str, said: dict[str, Any], tensors: Iterable[Any] = (), *how: Any) -> None:
            put = self._out.put
            if kind == "Smashed" and at((kind, said, [])) == (kind, 2, 1) and said["address"][1] == 1:
                damaged.append((kind, said, []))

                def flipped(piece: bytes) -> None:
                    put(piece[:-9] + bytes([piece[-9] ^ 4]) + piece[-8:])

                with monkeypatch.context() as patch:
                    patch.setattr(self, "_out", type("", (), {"put": staticmethod(flipped)}))
                    super().send(kind, said, tensors, *how)
            else:
                super().send(kind, said, tensors, *how)

    monkeypatch.setattr("cutlayer.network.client.loop.GrpcLine", Noisy)
    played = plainly(tmp_path, rounds=2)
    assert len(damaged) == 1
    assert played.result.history[1].faults == ("ward-1: it sent damaged on its way: the checksum differs",)
    assert same(played.result.model, simulated(DATA, [Fault("drop", 2, 1, 1)], **(BASE | {"rounds": 2})))
