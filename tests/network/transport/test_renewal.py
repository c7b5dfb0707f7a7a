"""New certificates for old: what stays, what changes, and that there is a good one at every moment."""

from __future__ import annotations

import datetime
import os
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from cutlayer.cli.main import main
from cutlayer.core import files
from cutlayer.errors import AuthError, ContractError, StoreError
from cutlayer.network.transport import identity, keys, renewal
from cutlayer.network.transport.certificates import pem
from cutlayer.network.transport.renewal import Terms, renew
from tests.network.unknown_peers import HOSTS, expired, others

DAY = datetime.timedelta(days=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    identity.create(tmp_path / "certs", HOSTS)
    identity.issue(tmp_path / "certs", "ward-3", "ward-4")
    return tmp_path / "certs"


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def changed(folder: Path, before: dict[Path, bytes]) -> set[str]:
    now = content(folder)
    assert set(now) == set(before), "nothing is left lying"
    return {str(path.relative_to(folder)) for path in now if now[path] != before[path]}


def test_a_client(folder: Path) -> None:
    before, old = content(folder), identity.read(folder, "ward-3")
    (one,) = renew(folder, ["ward-3"], Terms(days=100))
    new = identity.read(folder, "ward-3")
    assert changed(folder, before) == {"ward-3/key.pem", "ward-3/cert.pem"}
    assert one.name == new.name == "ward-3" and one.until == identity.ends(new)
    assert 99 * DAY < one.until - datetime.datetime.now(datetime.UTC) < 100 * DAY
    assert sorted(one.files) == [folder / "ward-3" / "cert.pem", folder / "ward-3" / "key.pem"]
    assert new.key != old.key and new.ca == old.ca and not new.serves
    assert stat.S_IMODE((folder / "ward-3" / "key.pem").stat().st_mode) == 0o600 or os.name != "posix"
    assert new.key.count(b"BEGIN") == 1, "the old key does not stay"
    certs = [x509.load_pem_x509_certificate(who.cert) for who in (old, new)]
    assert certs[0].serial_number != certs[1].serial_number and certs[0].subject == certs[1].subject


def test_with_the_key_it_has(folder: Path) -> None:
    """Which need not be here: it may have been carried away."""
    before, old = content(folder), identity.read(folder, "ward-3")
    (one,) = renew(folder, ["ward-3"], Terms(keep_key=True))
    assert changed(folder, before) == {"ward-3/cert.pem"} and one.files == [folder / "ward-3" / "cert.pem"]
    assert identity.read(folder, "ward-3").key == old.key
    (folder / "ward-3" / "key.pem").unlink()
    renew(folder, ["ward-3"], Terms(keep_key=True))
    assert not (folder / "ward-3" / "key.pem").exists()
    renew(folder, ["ward-3"])
    assert identity.read(folder, "ward-3").key != old.key


def test_the_server(folder: Path) -> None:
    """It keeps its names, or gets others."""

    def names() -> list[str]:
        cert = identity.shown(folder / "server" / "cert.pem")
        found = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(one.value) for one in found]

    renew(folder, ["server"])
    assert names() == HOSTS and identity.read(folder, "server").serves
    renew(folder, ["server", "ward-3"], Terms(hosts=("train.example.org", "10.0.0.7")))
    assert names() == ["train.example.org", "10.0.0.7"] and identity.read(folder, "server").serves
    assert not identity.read(folder, "ward-3").serves
    before = content(folder)
    with pytest.raises(ContractError, match="host = 'a b'"):
        renew(folder, ["ward-3", "server"], Terms(hosts=("a b",)))
    with pytest.raises(ContractError, match=r"hosts = \['a'\]: expected the server among those renewed"):
        renew(folder, ["ward-3"], Terms(hosts=("a",)))
    assert changed(folder, before) == set()


def test_the_authority(folder: Path) -> None:
    """Its key and name stay: what it has signed is good with the new certificate and with the old one."""
    old = identity.read(folder, "ward-3")
    (folder / "ward-4" / "ca.pem").write_bytes((others() / "ca" / "ca.pem").read_bytes() + old.ca)
    before = content(folder)
    (one,) = renew(folder, ["ca"])
    assert changed(folder, before) == {f"{name}/ca.pem" for name in ("ca", "server", "ward-3", "ward-4")}
    assert one.until - datetime.datetime.now(datetime.UTC) > 3649 * DAY and len(one.files) == 4
    new = identity.read(folder, "ward-3")
    assert (new.key, new.cert) == (old.key, old.cert) and new.ca == (folder / "ca" / "ca.pem").read_bytes() != old.ca
    both = x509.load_pem_x509_certificates((folder / "ward-4" / "ca.pem").read_bytes())
    assert [pem(cert) for cert in both] == [new.ca, (others() / "ca" / "ca.pem").read_bytes()]
    renew(folder, ["ward-3"])
    late = identity.read(folder, "ward-3")
    identity.prove(identity.Identity(late.key, late.cert, old.ca))


def test_an_authority_that_has_expired_is_renewed_before_what_it_signs(folder: Path) -> None:
    authority, now = identity.authority(folder), datetime.datetime.now(datetime.UTC)
    late = identity.self_signed(authority.key, authority.cert.subject, (now - 9 * DAY, now - DAY))
    for path in folder.glob("*/ca.pem"):
        path.write_bytes(pem(late))
    before = content(folder)
    with pytest.raises(AuthError, match="expected `certs renew ca` first"):
        renew(folder, ["ward-3"])
    assert changed(folder, before) == set()
    renew(folder, ["ward-3", "ca"])
    assert identity.read(folder, "ward-3").name == "ward-3"


def test_what_is_due(folder: Path) -> None:
    assert renewal.everybody(folder) == ["ca", "server", "ward-3", "ward-4"] and renewal.due(folder) == []
    identity.issue(folder, "soon", days=29)
    identity.issue(folder, "later", days=31)
    identity.issue(folder, "revoked", days=3)
    identity.revoke(folder, "revoked")
    expired(folder, "over")
    assert renewal.due(folder) == ["over", "soon"]
    assert len(renewal.due(folder, datetime.datetime.now(datetime.UTC) + 4000 * DAY)) == 7
    renew(folder, renewal.due(folder))
    assert renewal.due(folder) == [] and identity.read(folder, "over").name == "over"


def test_what_cannot_be_renewed(folder: Path, tmp_path: Path) -> None:
    identity.revoke(folder, "ward-4")
    before = content(folder)
    for names, kind, match in (
        (["ward-3", "wrad-3"], ContractError, "unknown certificate 'wrad-3': did you mean 'ward-3'"),
        (["../x"], ContractError, "unknown certificate"),
        ([""], ContractError, "unknown certificate"),
        (["ward-3", "ward-4"], ContractError, "client name = 'ward-4': expected one that is not revoked"),
    ):
        with pytest.raises(kind, match=match):
            renew(folder, names)
    for days in (0, -3):
        with pytest.raises(ContractError, match=f"days = {days}: expected 1 to"):
            Terms(days=days)
    if os.name == "posix":
        (folder / "server" / "key.pem").chmod(0o644)
        with pytest.raises(AuthError, match=r"server/key\.pem: a key that others may read, mode = 0644"):
            renew(folder, ["ward-3", "server"])
    assert changed(folder, before) == set()
    (folder / "server" / "ca.pem").write_text("nonsense")
    with pytest.raises(StoreError, match=r"server/ca\.pem: cannot be read, or damaged"):
        renew(folder, ["ward-3", "ca"])
    shutil.move(folder / "ca", tmp_path / "safe")
    with pytest.raises(StoreError, match="no authority in it"):
        renew(folder, ["ward-3"])
    (folder / "server" / "ca.pem").write_bytes(before[folder / "server" / "ca.pem"])
    assert {path.read_bytes() for path in folder.rglob("*.pem")} <= set(before.values())


@pytest.mark.parametrize("stop", range(1, 7))
def test_a_power_cut_at_any_moment(folder: Path, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    """Before each rename, and after it: there is always a certificate with its key, and the next renewal tidies up."""
    plain, calls = files.move, 0

    def cut(aside: Path, path: Path) -> None:
        nonlocal calls
        calls += 2
        if calls == stop + 1:
            raise KeyboardInterrupt
        plain(aside, path)
        if calls == stop:
            raise KeyboardInterrupt

    old = identity.read(folder, "ward-3")
    with monkeypatch.context() as patch:
        patch.setattr(files, "move", cut)
        with pytest.raises(KeyboardInterrupt):
            renew(folder, ["ward-3"])
    there = identity.read(folder, "ward-3")
    assert there.key.count(b"BEGIN") == 1 and (there.cert == old.cert) == (stop < 4)
    for path in (folder / "ward-3").iterdir():
        assert "key" not in path.name or os.name != "posix" or stat.S_IMODE(path.stat().st_mode) == 0o600
    renew(folder, ["ward-3"])
    assert sorted(path.name for path in (folder / "ward-3").iterdir()) == ["ca.pem", "cert.pem", "key.pem"]
    assert (folder / "ward-3" / "key.pem").read_bytes().count(b"BEGIN") == 1


def test_readers_while_it_is_renewed(folder: Path) -> None:
    """Again and again, as fast as can be: whoever reads finds a pair."""
    over, found, wrong = threading.Event(), set(), []

    def reads() -> None:
        while not over.is_set():
            try:
                found.add(identity.read(folder, "ward-3").cert)
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=reads) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            renew(folder, ["ward-3"])
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert wrong == [] and len(found) > 1


def test_a_pair_that_is_torn_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key read, then both renewed, then the certificate read: once more, and they fit."""
    plain, torn = keys.read, []

    def read(path: Path) -> bytes:
        before = plain(path)
        if not torn:
            torn.append(path)
            renew(folder, ["ward-3"])
        return before

    monkeypatch.setattr(keys, "read", read)
    who = identity.read(folder, "ward-3")
    assert torn == [folder / "ward-3" / "key.pem"] and who.cert == (folder / "ward-3" / "cert.pem").read_bytes()


def certs(folder: Path, capsys: pytest.CaptureFixture[str], *said: str) -> tuple[int, str]:
    code = main(["certs", *said, "--folder", str(folder)])
    both: Any = capsys.readouterr()
    return code, (both.out + both.err).replace("\n", " ")


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("certs")
    assert certs(folder, capsys, "init", "--host", "localhost", "--days", "20")[0] == 0
    assert certs(folder, capsys, "client", "ward-3", "--days", "9")[0] == 0
    assert certs(folder, capsys, "client", "ward-4")[0] == 0
    code, out = certs(folder, capsys, "list")
    assert code == 0 and "ends in 19 days" in out and "ends in 8 days" in out and "next: cutlayer certs renew" in out
    before = content(folder)
    code, out = certs(folder, capsys, "renew")
    assert (
        code == 0 and "carry certs/ward-3 to ward-3" in out and "a server that runs with certs/server takes it" in out
    )
    assert "wrote certs/server/key.pem, certs/server/cert.pem, certs/ward-3/key.pem, certs/ward-3/cert.pem" in out
    assert changed(folder, before) == {
        f"{name}/{file}.pem" for name in ("server", "ward-3") for file in ("key", "cert")
    }
    code, out = certs(folder, capsys, "list")
    assert code == 0 and "ends in" not in out and "renew" not in out
    before = content(folder)
    assert certs(folder, capsys, "renew") == (0, "nothing in certs ends within 30 days ")
    assert changed(folder, before) == set()
    code, out = certs(folder, capsys, "renew", "ward-4", "--keep-key", "--days", "7")
    assert code == 0 and changed(folder, before) == {"ward-4/cert.pem"}
    code, out = certs(folder, capsys, "renew", "server", "--host", "train.example.org")
    assert code == 0 and "train.example.org" in str(identity.shown(folder / "server" / "cert.pem").extensions)
    before = content(folder)
    code, out = certs(folder, capsys, "renew", "--all", "--days", "90")
    assert code == 0 and len(changed(folder, before)) == 6 and "ca: " not in out
    before = content(folder)
    code, out = certs(folder, capsys, "renew", "ca")
    assert code == 0 and "ca: valid until" in out and "carry each folder's ca.pem" in out
    assert len(changed(folder, before)) == 4
    assert certs(folder, capsys, "renew", "ca", "--days", "20")[0] == 0
    code, out = certs(folder, capsys, "renew", "--all", "--days", "90")
    assert code == 0 and "ca: valid until" in out, "it is due: what it signs would end with it"
    assert len({path for path in content(folder) if path.suffix == ".pem"}) == 10
    ends = {name: f"{until - datetime.datetime.now(datetime.UTC)}".split()[0] for name, until in identity.known(folder)}
    assert set(ends.values()) == {"89"}
    assert identity.authority(folder).cert.not_valid_after_utc - datetime.datetime.now(datetime.UTC) > 3649 * DAY
    for said, why in (
        (["ward-9"], "unknown certificate 'ward-9': did you mean"),
        (["--all", "ward-3"], "--all = 'ward-3': expected no names beside it"),
        (["ward-3", "--days", "0"], "days = 0: expected 1 to 36500"),
    ):
        code, out = certs(folder, capsys, "renew", *said)
        assert code == 2 and why in out
