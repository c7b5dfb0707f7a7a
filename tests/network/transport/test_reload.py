"""Certificates that are renewed while a server and its clients run."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509

from cutlayer.errors import AuthError, ContractError, StoreError
from cutlayer.network.transport import identity, reload
from cutlayer.network.transport.identity import Identity
from cutlayer.network.transport.reload import Reminders, Watched, server_credentials
from cutlayer.network.transport.renewal import Terms, renew
from tests.network.harness import SOON
from tests.network.unknown_peers import HOSTS, expired, others

METHOD = "/test.Echo/Echo"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    identity.create(tmp_path / "certs", HOSTS)
    identity.issue(tmp_path / "certs", "ward-3")
    return tmp_path / "certs"


@dataclass
class EchoServer:
    """A server like ours, that says back what it hears; what it has said itself, and who came."""

    port: int = 0
    said: list[str] = field(default_factory=list)
    came: list[bytes] = field(default_factory=list)

    async def echo(self, _: Any, context: Any) -> None:
        self.came.append(context.auth_context()["x509_pem_cert"][0])
        while (piece := await context.read()) is not grpc.aio.EOF:
            await context.write(piece)


@contextmanager
def serving(where: Path | Identity) -> Iterator[EchoServer]:
    """grpc.aio, in a thread of its own, as the hub has it."""
    echo, ready, over = EchoServer(), threading.Event(), []

    async def serve() -> None:
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(echo.echo)
        service, method = METHOD.strip("/").split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        echo.port = server.add_secure_port("127.0.0.1:0", server_credentials(where, echo.said.append))
        await server.start()
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        over.append(lambda: loop.call_soon_threadsafe(done.set))
        ready.set()
        await done.wait()
        await server.stop(0.1)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(SOON)
    try:
        yield echo
    finally:
        over[0]()
        thread.join(SOON)


@contextmanager
def dialled(port: int, who: Identity) -> Iterator[Callable[[bytes], bytes]]:
    """A stream; what comes back for what is said."""
    out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    credentials = grpc.ssl_channel_credentials(who.ca, who.key, who.cert)
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        call = channel.stream_stream(METHOD)(iter(out.get, None), timeout=SOON)

        def say(piece: bytes) -> bytes:
            out.put(piece)
            return bytes(next(call))

        yield say
        out.put(None)


def shows(port: int, folder: Path) -> bytes:
    """The certificate that the server shows to a new connection."""
    context = ssl.create_default_context(cafile=str(folder / "ward-3" / "ca.pem"))
    context.load_cert_chain(folder / "ward-3" / "cert.pem", folder / "ward-3" / "key.pem")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=SOON) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
    ):
        found = stream.getpeercert(binary_form=True)
    assert found is not None
    return identity.pem(x509.load_der_x509_certificate(found))


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "EVERY", 0.0)


@pytest.mark.usefixtures("_at_once")
def test_a_server_is_renewed_while_it_runs(folder: Path) -> None:
    """A new connection gets the new certificate; an old stream lives on."""
    client, cert = identity.read(folder, "ward-3"), folder / "server" / "cert.pem"
    with serving(folder) as server, dialled(server.port, client) as early:
        assert early(b"1") == b"1" and shows(server.port, folder) == cert.read_bytes()
        before = cert.read_bytes()
        renew(folder, ["server"])
        assert shows(server.port, folder) == cert.read_bytes() != before
        assert early(b"2") == b"2"
        with dialled(server.port, client) as late:
            assert late(b"3") == b"3" and early(b"4") == b"4"
        renew(folder, ["server"], Terms(keep_key=True))
        assert shows(server.port, folder) == cert.read_bytes()
        until = identity.ends(identity.read(folder, "server"))
        assert server.said == 2 * [f"{folder}/server: a new certificate, valid until {until:%Y-%m-%d}"]
        assert server.came == [client.cert, client.cert] and identity.client_warning(server.came[0]) is None


@pytest.mark.usefixtures("_at_once")
def test_damaged_files_leave_the_old_certificate(folder: Path) -> None:
    """That is said once, not once a connection; and when they are mended the new one is used."""
    home = folder / "server"
    good = {path: path.read_bytes() for path in home.iterdir()}
    other = (folder / "ward-3" / "key.pem").read_bytes()
    with serving(identity.read(folder, "server")) as server:
        for file, content, match in (
            ("cert.pem", b"nonsense", "a damaged certificate or key"),
            ("key.pem", b"", "a damaged certificate or key"),
            ("key.pem", other, "not the key of"),
            ("ca.pem", (others() / "ca" / "ca.pem").read_bytes(), "not signed by the authority"),
            ("cert.pem", None, "expected key.pem, cert.pem and ca.pem in it"),
        ):
            server.said.clear()
            (home / file).unlink()
            if content is not None:
                identity.keys.write(home / file, content)
            for _ in range(3):
                assert shows(server.port, folder) == good[home / "cert.pem"]
            (said,) = server.said
            assert match in said and said.endswith("; the certificate of before stays in use") and "\n" not in said
            identity.keys.write(home / file, good[home / file])
            assert shows(server.port, folder) == good[home / "cert.pem"] and len(server.said) == 1
        renew(folder, ["server"])
        assert shows(server.port, folder) == (home / "cert.pem").read_bytes() != good[home / "cert.pem"]
        assert len(server.said) == 2


@pytest.mark.usefixtures("_at_once")
def test_whom_it_believes_is_renewed_too(folder: Path) -> None:
    """Clients of a second authority, once that is in ca.pem; and no longer, once it is not."""
    theirs, ours = identity.read(others(), "ward-3"), (folder / "server" / "ca.pem").read_bytes()
    stranger = Identity(theirs.key, theirs.cert, ours)
    with serving(folder) as server:
        with dialled(server.port, stranger) as say, pytest.raises(grpc.RpcError):
            say(b"1")
        identity.keys.write(folder / "server" / "ca.pem", ours + theirs.ca)
        with dialled(server.port, stranger) as say:
            assert say(b"2") == b"2"
        identity.keys.write(folder / "server" / "ca.pem", ours)
        with dialled(server.port, stranger) as say, pytest.raises(grpc.RpcError):
            say(b"3")


@pytest.mark.usefixtures("_at_once")
def test_an_authority_is_renewed_while_all_of_them_run(folder: Path) -> None:
    """In any order: old and new certificates of one key are believed, by whoever has either."""
    early = identity.read(folder, "ward-3")
    with serving(folder) as server:
        renew(folder, ["ca"])
        late = identity.read(folder, "ward-3")
        assert late.ca != early.ca and late.cert == early.cert
        renewed = Watched(folder, "ward-3", print)
        renew(folder, ["ward-3"])
        new = renewed.proven()
        for who in (early, late, new, Identity(new.key, new.cert, early.ca)):
            with dialled(server.port, who) as say:
                assert say(b"1") == b"1"
        renew(folder, ["server"])
        for who in (early, late, new):
            with dialled(server.port, who) as say:
                assert say(b"2") == b"2"


def test_a_server_looks_once_a_second(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, stamped = [100.0], []
    plain = reload._stamp
    monkeypatch.setattr("cutlayer.network.transport.reload.time.monotonic", lambda: now[0])
    monkeypatch.setattr(reload, "_stamp", lambda path: stamped.append(path) or plain(path))
    watched = Watched(folder, "server", pytest.fail, every=1.0)
    assert len(stamped) == 3
    renew(folder, ["server"])
    for _ in range(5):
        now[0] += 0.1
        assert not watched.look()
    assert len(stamped) == 3
    now[0] += 1.0
    watched.say = lambda _: None
    assert watched.look() and len(stamped) == 6
    assert watched.held == identity.read(folder, "server")


def test_an_identity_of_no_folder_stays(folder: Path) -> None:
    who = identity.read(folder, "server")
    with serving(Identity(who.key, who.cert, who.ca)) as server:
        renew(folder, ["server"])
        assert shows(server.port, folder) == who.cert and server.said == []


def test_what_is_no_server(folder: Path) -> None:
    with pytest.raises(ContractError, match="expected the server's certificate, not a client's"):
        server_credentials(folder / "ward-3", print)
    with pytest.raises(StoreError, match=r"expected key\.pem, cert\.pem and ca\.pem"):
        server_credentials(folder / "ca", print)


def test_a_client_reads_its_folder_when_it_dials(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    watched = Watched(folder, "ward-3", said.append)
    first = watched.proven()
    monkeypatch.setattr(identity, "read", lambda *_: pytest.fail("it reads what has not changed"))
    assert watched.proven() is first and said == []
    monkeypatch.undo()
    os.utime(folder / "ward-3" / "key.pem")
    assert watched.proven() == first and said == []
    renew(folder, ["ward-3"])
    second = watched.proven()
    assert second == identity.read(folder, "ward-3") != first and len(said) == 1
    cert = folder / "ward-3" / "cert.pem"
    cert.rename(cert.with_suffix(".away"))
    assert [watched.proven() for _ in range(3)] == 3 * [second] and len(said) == 2
    cert.with_suffix(".away").rename(cert)
    assert watched.proven() == second and len(said) == 2
    cert.unlink()
    assert watched.proven() == second and len(said) == 3, "it was good in between: that is said anew"


def test_a_client_that_has_expired_does_not_dial(folder: Path) -> None:
    """Unless there is a new certificate."""
    watched = Watched(folder, "ward-3", print)
    watched.held = expired(folder, "old")
    with pytest.raises(AuthError, match="has expired on"):
        watched.proven()
    watched.held = Identity(watched.held.key, watched.held.cert, watched.held.ca, folder / "ward-3")
    with pytest.raises(AuthError, match=r"ward-3/cert\.pem: this certificate has expired on"):
        watched.proven()
    watched.held = identity.read(folder, "ward-3")
    renew(folder, ["ward-3"])
    assert watched.proven() == identity.read(folder, "ward-3")


def test_a_folder_does_not_become_another_s(folder: Path) -> None:
    said: list[str] = []
    watched = Watched(folder, "ward-3", said.append)
    identity.issue(folder, "ward-4")
    for file in reload.FILES:
        (folder / "ward-4" / file).replace(folder / "ward-3" / file)
    assert watched.proven().name == "ward-3"
    assert said == [
        f"{folder}/ward-3: a certificate of 'ward-4': expected one of 'ward-3'; the certificate of before stays in use"
    ]


def test_whoever_is_told_may_fail(folder: Path) -> None:
    watched = Watched(folder, "ward-3", lambda _: 1 / 0)
    renew(folder, ["ward-3"])
    assert watched.look() and watched.held == identity.read(folder, "ward-3")


def test_reminders_once_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [5.0], []
    monkeypatch.setattr("cutlayer.network.transport.reload.time.monotonic", lambda: now[0])
    remind = Reminders(said.append)
    for _ in range(3):
        remind("ward-3", "ends in 9 days")
        remind("ward-4", "ends in 3 days")
        remind("ward-5", None)
    assert said == ["ends in 9 days", "ends in 3 days"]
    now[0] += 86401
    remind("ward-3", "ends in 8 days")
    remind("ward-4", None)
    assert said[2:] == ["ends in 8 days"]
