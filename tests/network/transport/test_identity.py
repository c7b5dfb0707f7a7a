"""Certificates, keys, names and revocation, from Python and from the command line; and what goes without them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.errors import AuthError, ContractError, StoreError
from cutlayer.network.protocol.settings import Net
from cutlayer.network.transport import identity
from tests.network.harness import NAMES, network, rows
from tests.network.unknown_peers import HOSTS, expired


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An authority, its server, and one client."""
    identity.create(tmp_path / "certs", HOSTS)
    identity.issue(tmp_path / "certs", NAMES[3])
    return tmp_path / "certs"


def test_files_and_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is for its owner's eyes from the moment it exists: its mode is not changed later."""
    modes: dict[str, int] = {}
    plain, before = os.open, os.umask(0)

    def opened(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_CREAT:
            assert not Path(path).exists()
            modes[Path(path).name] = mode
        return plain(path, flags, mode, **more)

    def never(*_: Any) -> None:
        raise AssertionError("a mode is changed")

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "chmod", never)
    try:
        made = [*identity.create(tmp_path, HOSTS), *identity.issue(tmp_path, "ward-7")]
    finally:
        os.umask(before)
    assert sorted(str(path.relative_to(tmp_path)) for path in made) == [
        *("ca/ca.key", "ca/ca.pem", "server/ca.pem", "server/cert.pem", "server/key.pem"),
        *("ward-7/ca.pem", "ward-7/cert.pem", "ward-7/key.pem"),
    ]
    for path in made:
        secret = path.name in ("ca.key", "key.pem")
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if secret else 0o644)
        assert (b"PRIVATE KEY" in path.read_bytes()) == secret
    assert modes[".key.pem.tmp"] == modes[".ca.key.tmp"] == 0o600


def test_what_certificates_say(folder: Path) -> None:
    """An authority that signs nothing but leaves; a server that is none but a server; a client that is none but one."""
    ca, server, client = (
        x509.load_pem_x509_certificate((folder / path).read_bytes())
        for path in ("ca/ca.pem", "server/cert.pem", f"{NAMES[3]}/cert.pem")
    )
    kind = x509.BasicConstraints
    assert ca.extensions.get_extension_for_class(kind).value == kind(ca=True, path_length=0)
    uses = [
        list(one.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        for one in (server, client)
        if not one.extensions.get_extension_for_class(kind).value.ca
    ]
    assert uses == [[x509.ExtendedKeyUsageOID.SERVER_AUTH], [x509.ExtendedKeyUsageOID.CLIENT_AUTH]]
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    with pytest.raises(x509.ExtensionNotFound):
        client.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert identity.read(folder, NAMES[3]).name == NAMES[3] and identity.common_name(server) == "server"


NO_NAMES = (
    *(
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc",
        "a\\b",
        "-x",
        ".x",
        "_x",
        "a b",
        "a\n",
        "ä",
        "a:b",
        "a*",
        "x" * 64,
        "a\x00",
    ),
    *("server", "ca"),
)


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_that_are_none(folder: Path, name: str) -> None:
    before = sorted(folder.rglob("*"))
    for act in (identity.issue, identity.revoke):
        with pytest.raises(ContractError, match="client name"):
            act(folder, name)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", ["a", "ward_3", "a-", "a.", "A.b_c-9", "10.0.0.7", "x" * 63])
def test_names_that_are_some(folder: Path, name: str) -> None:
    identity.issue(folder, name)
    assert identity.read(folder, name).name == name


def test_nothing_is_overwritten(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    with pytest.raises(StoreError, match="there is an authority already"):
        identity.create(folder, HOSTS)
    with pytest.raises(StoreError, match="there is a certificate already"):
        identity.issue(folder, NAMES[3])
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


@pytest.mark.parametrize("hosts", [[], ["a b"], [""], ["x/y"], ["-x"], ["localhost", "ü"]], ids=str)
def test_hosts_that_are_none(tmp_path: Path, hosts: list[str]) -> None:
    with pytest.raises(ContractError, match="host"):
        identity.create(tmp_path, hosts)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read(folder: Path) -> None:
    home = folder / NAMES[3]
    good = {file: (home / file).read_bytes() for file in ("key.pem", "cert.pem", "ca.pem")}
    other = (folder / "server" / "key.pem").read_bytes()
    for file, content in (*((file, b"x") for file in good), ("key.pem", other), ("key.pem", good["cert.pem"])):
        (home / file).write_bytes(content)
        with pytest.raises(AuthError if content is other else StoreError, match=str(home)):
            identity.read(folder, NAMES[3])
        (home / file).write_bytes(good[file])
    (home / "ca.pem").unlink()
    with pytest.raises(StoreError, match=r"expected key\.pem, cert\.pem and ca\.pem"):
        identity.read(home)
    with pytest.raises(StoreError):
        identity.issue(folder / "nowhere", "a")
    expired(folder, "old")
    with pytest.raises(AuthError, match="has expired on"):
        identity.read(folder, "old")


def test_revocation_is_written_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that reads while it is written never finds fewer names than there were."""
    server = folder / "server"
    for name in ("b", "a", "b"):
        identity.revoke(folder, name)
    assert (server / "revoked.txt").read_text() == "a\nb\n" and identity.revoked(server) == {"a", "b"}
    seen: list[set[str]] = []
    plain = os.fsync

    def synced(descriptor: int) -> None:
        seen.append(identity.revoked(server))
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    identity.revoke(folder, "c")
    assert seen[0] == {"a", "b"} and all({"a", "b"} <= names for names in seen)
    assert identity.revoked(server) == {"a", "b", "c"}


def test_certs_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--folder", str(tmp_path / "certs")]
    assert main(["certs", "init", "--host", "train.example.org", "--host", "10.0.0.7", *at]) == 0
    assert "train.example.org, 10.0.0.7" in capsys.readouterr().out
    for name in ("ward-3", "ward_4"):
        assert main(["certs", "client", name, *at]) == 0
        assert str(tmp_path / "certs" / name / "key.pem") in capsys.readouterr().out.replace("\n", "")
    expired(tmp_path / "certs", "ward-5")
    assert main(["certs", "revoke", "ward-3", *at]) == 0
    assert "ward-3" in capsys.readouterr().out
    assert main(["certs", "list", *at]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("  ward", "  server"))]
    assert [(line[0], line[2:]) for line in lines] == [
        ("server", []),
        ("ward-3", ["revoked"]),
        ("ward-5", ["expired"]),
        ("ward_4", []),
    ]
    assert identity.read(tmp_path / "certs", "ward-3").name == "ward-3"


@pytest.mark.parametrize(
    ("said", "match"),
    [
        (["init"], "there is an authority already"),
        (["client", "../x"], "client name = '../x'"),
        (["client", "server"], "client name = 'server'"),
        (["client", NAMES[3]], "there is a certificate already"),
        (["revoke", "a b"], "client name = 'a b'"),
    ],
)
def test_certs_refused(folder: Path, capsys: pytest.CaptureFixture[str], said: list[str], match: str) -> None:
    assert main(["certs", *said, "--folder", str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cutlayer: error: ") and match in line


def test_certs_without_an_authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for said in (["client", "a"], ["list"]):
        assert main(["certs", *said, "--folder", str(tmp_path)]) == 2
        assert "expected `cutlayer certs init` first" in capsys.readouterr().err
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "cert.pem").write_text("no certificate")
    assert main(["certs", "list", "--folder", str(tmp_path)]) == 2
    assert "a damaged certificate" in capsys.readouterr().err


LOOPBACK = ("127.0.0.1:0", "localhost:7443", "[::1]:7443")
ELSEWHERE = (
    *("0.0.0.0:7443", "[::]:7443", "192.168.0.1:7443", "10.0.0.7:1", "train.example.org:7443", "*:7443", "::1:7443"),
    *("127.0.0.1.example.org:7443", "localhost.example.org:1", "unix:7443", "127.0.0.2:1", "LOCALHOST:1", "dns:///x:1"),
)
NOWHERE = (
    "",
    "7443",
    ":7443",
    "localhost",
    "localhost:",
    "localhost:x",
    "localhost:-1",
    "localhost:65536",
    "localhost:²",
    "[::1]",
)


@pytest.mark.parametrize("listen", ELSEWHERE)
def test_without_certificates_only_this_machine_is_served(listen: str, tmp_path: Path) -> None:
    """Unless it is spelled out; and nothing listens before that is known."""
    with pytest.raises(ContractError, match="without certificates"):
        Net(listen)
    with pytest.raises(ContractError, match="without certificates"):
        cl.serve(network(), rows()[0], listen=listen)
    assert Net(listen, insecure=True).certs is None
    assert Net(listen, tmp_path).insecure is False


@pytest.mark.parametrize("server", ELSEWHERE)
def test_without_certificates_only_this_machine_is_dialled(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutlayer.network.client.loop.GrpcLine", lambda *_: pytest.fail("it dials"))
    with pytest.raises(ContractError, match="without certificates"):
        cl.join(server, rows()[0], model=network(), name="a", out=tmp_path)
    with pytest.raises(pytest.fail.Exception, match="it dials"):
        cl.join(server, rows()[0], model=network(), name="a", out=tmp_path, insecure=True)


@pytest.mark.parametrize("server", LOOPBACK)
def test_this_machine_needs_no_certificates(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Net(server).insecure is False
    monkeypatch.setattr("cutlayer.network.client.loop.GrpcLine", lambda *_: pytest.fail("it dials"))
    with pytest.raises(pytest.fail.Exception, match="it dials"):
        cl.join(server, rows()[0], model=network(), name="a", out=tmp_path)


@pytest.mark.parametrize("address", NOWHERE)
def test_addresses_that_are_none(address: str, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="HOST:PORT"):
        Net(address, insecure=True)
    with pytest.raises(ContractError, match="HOST:PORT"):
        cl.join(address, rows()[0], model=network(), name="a", out=tmp_path, insecure=True)


@pytest.mark.parametrize("name", ["", "../x", "server", "a b"])
def test_without_certificates_a_name_must_be_one(name: str, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="name"):
        cl.join("127.0.0.1:1", rows()[0], model=network(), name=name, out=tmp_path)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    assert main(["serve", "--task", "digits", "--listen", "0.0.0.0:7443", "--out", out]) == 2
    assert "without certificates" in capsys.readouterr().err and not Path(out).exists()
    assert main(["join", "--server", "example.org:7443", "--name", "a", "--data", str(tmp_path), "--out", out]) == 2
    assert "without certificates" in capsys.readouterr().err and not Path(out).exists()
