"""What one's own certificate must be before it is shown, when its end is near, and who may read its key."""

from __future__ import annotations

import datetime
import os
import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from cutlayer.errors import AuthError, ContractError, StoreError
from cutlayer.network.transport import identity, keys
from cutlayer.network.transport.certificates import left, named, new_key, pem
from cutlayer.network.transport.identity import Identity
from tests.network.unknown_peers import HOSTS, expired, others

DAY = datetime.timedelta(days=1)
posix = pytest.mark.skipif(os.name != "posix", reason="modes")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    identity.create(tmp_path / "certs", HOSTS)
    identity.issue(tmp_path / "certs", "ward-3")
    return tmp_path / "certs"


def test_of_another_authority(folder: Path) -> None:
    home = folder / "ward-3"
    shutil.copy(others() / "ca" / "ca.pem", home / "ca.pem")
    with pytest.raises(AuthError, match=r"ward-3/cert\.pem: not signed by the authority in .*ward-3/ca\.pem; expected"):
        identity.read(home)


def test_of_another_authority_with_the_same_name_and_key_identifier(folder: Path) -> None:
    """It is the signature that counts."""
    home, ours = folder / "ward-3", identity.authority(folder)
    key = new_key()
    forged = x509.CertificateBuilder().subject_name(named("ward-3")).issuer_name(ours.cert.subject)
    forged = forged.public_key(key.public_key()).serial_number(1).not_valid_before(ours.cert.not_valid_before_utc)
    forged = forged.not_valid_after(ours.cert.not_valid_after_utc)
    (home / "cert.pem").write_bytes(pem(forged.sign(new_key(), hashes.SHA256())))
    (home / "key.pem").write_bytes(pem(key))
    with pytest.raises(AuthError, match="not signed by the authority"):
        identity.read(home)


def test_with_several_authorities(folder: Path) -> None:
    """One of those believed has to have signed it."""
    home = folder / "ward-3"
    both = (others() / "ca" / "ca.pem").read_bytes() + (home / "ca.pem").read_bytes()
    (home / "ca.pem").write_bytes(both)
    assert identity.read(home).ca == both


def test_through_an_authority_between(tmp_path: Path) -> None:
    """A chain in cert.pem leads to ca.pem, each link signed by the next."""
    now = datetime.datetime.now(datetime.UTC)

    def made(name: str, key: ec.EllipticCurvePrivateKey, by: str, signer: ec.EllipticCurvePrivateKey) -> bytes:
        begun = x509.CertificateBuilder().subject_name(named(name)).issuer_name(named(by)).public_key(key.public_key())
        begun = begun.serial_number(x509.random_serial_number()).not_valid_before(now - DAY).not_valid_after(now + DAY)
        return pem(begun.sign(signer, hashes.SHA256()))

    root, middle, own = new_key(), new_key(), new_key()
    leaf, between = made("ward-3", own, "middle", middle), made("middle", middle, "root", root)
    top = made("root", root, "root", root)
    identity.prove(Identity(pem(own), leaf + between, top))
    for chain in (leaf, leaf + top, leaf + made("middle", new_key(), "root", root)):
        with pytest.raises(AuthError, match="not signed by"):
            identity.prove(Identity(pem(own), chain, top))


def test_expired_and_not_yet_valid(folder: Path) -> None:
    expired(folder, "old")
    with pytest.raises(
        AuthError, match=r"old/cert\.pem: this certificate has expired on 20\d\d-\d\d-\d\d; .*renew old`"
    ):
        identity.read(folder, "old")
    who = identity.read(folder, "ward-3")
    with pytest.raises(AuthError, match=r"ward-3/cert\.pem: this certificate is not valid before .*expected a clock"):
        identity.prove(who, datetime.datetime.now(datetime.UTC) - DAY)
    identity.prove(who, identity.ends(who) - DAY)


def test_an_authority_that_has_expired(folder: Path) -> None:
    """Then nothing that it has signed is good, and it signs nothing more."""
    authority = identity.authority(folder)
    now = datetime.datetime.now(datetime.UTC)
    late = identity.self_signed(authority.key, authority.cert.subject, (now - 9 * DAY, now - DAY))
    for place in ("ca", "ward-3"):
        (folder / place / "ca.pem").write_bytes(pem(late))
    with pytest.raises(AuthError, match=r"ward-3/ca\.pem: this certificate has expired on .*certs renew ca`"):
        identity.read(folder, "ward-3")
    with pytest.raises(AuthError, match="authority's certificate has expired on"):
        identity.issue(folder, "ward-4")
    assert not (folder / "ward-4").exists()


def test_nothing_outlives_its_authority(folder: Path) -> None:
    identity.issue(folder, "ward-4", days=identity.LONGEST)
    assert identity.ends(identity.read(folder, "ward-4")) == identity.authority(folder).cert.not_valid_after_utc
    identity.issue(folder, "ward-5", days=7)
    assert left(identity.ends(identity.read(folder, "ward-5")), 9 * DAY, datetime.datetime.now(datetime.UTC))
    for days in (0, -1, identity.LONGEST + 1):
        with pytest.raises(ContractError, match=f"days = {days}: expected 1 to"):
            identity.issue(folder, "ward-6", days=days)


def test_warnings(folder: Path) -> None:
    who = identity.read(folder, "ward-3")
    ends = identity.ends(who)
    place, hour = f"{folder}/ward-3", datetime.timedelta(hours=1)
    for rest, said in (
        (15 * DAY, None),
        (14 * DAY + hour, None),
        (9 * DAY + hour, f"ends in 9 days, on {ends:%Y-%m-%d}"),
        (DAY + hour, f"ends in 1 day, on {ends:%Y-%m-%d}"),
        (5 * hour, f"ends in 5 hours, on {ends:%Y-%m-%d}"),
        (0 * hour, f"ends in 0 hours, on {ends:%Y-%m-%d}"),
        (-hour, f"has expired on {ends:%Y-%m-%d}"),
    ):
        wanted = None if said is None else f"{place}: its certificate {said}; `cutlayer certs renew ward-3`"
        assert identity.warning(who, ends - rest) == wanted
        theirs = None if said is None else f"client ward-3: its certificate {said}; `cutlayer certs renew ward-3`"
        assert identity.client_warning(who.cert, ends - rest) == theirs
    assert identity.warning(who) is None
    unread = Identity(who.key, who.cert, who.ca)
    assert unread == who and str(identity.warning(unread, ends)).startswith("ward-3: its certificate ends")


def test_warnings_of_the_authority(folder: Path) -> None:
    authority = identity.authority(folder)
    now = datetime.datetime.now(datetime.UTC)
    soon = pem(identity.self_signed(authority.key, authority.cert.subject, (now - DAY, now + 3.5 * DAY)))
    (folder / "server" / "ca.pem").write_bytes(soon)
    who = identity.read(folder, "server")
    assert identity.warning(who, now) == (
        f"{folder}/server: its authority's certificate ends in 3 days, on {now + 3.5 * DAY:%Y-%m-%d}; "
        "`cutlayer certs renew ca`"
    )
    assert str(identity.warning(who, identity.ends(who))).count("cutlayer certs renew") == 2
    with (folder / "server" / "ca.pem").open("ab") as file:  # it has been renewed, and the old one is still there
        file.write(pem(authority.cert))
    assert identity.warning(identity.read(folder, "server"), now) is None


@pytest.mark.parametrize("pem", [b"", b"x", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_warns_of_nothing(pem: bytes) -> None:
    assert identity.client_warning(pem) is None


@posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644, 0o660, 0o777])
def test_keys_that_others_may_read(folder: Path, mode: int) -> None:
    key, authority = folder / "ward-3" / "key.pem", folder / "ca" / "ca.key"
    for path in (key, authority):
        path.chmod(mode)
    with pytest.raises(AuthError) as caught:
        identity.read(folder, "ward-3")
    assert (
        str(caught.value) == f"{key}: a key that others may read, mode = {mode:04o}: expected 0600; `chmod 600 {key}`"
    )
    with pytest.raises(AuthError, match=rf"ca\.key: a key that others may read, mode = {mode:04o}: .*`chmod 600"):
        identity.issue(folder, "ward-4")
    assert not (folder / "ward-4").exists()
    for path in (key, authority):
        path.chmod(0o400)
    assert identity.read(folder, "ward-3").name == "ward-3"
    identity.issue(folder, "ward-4")


@posix
def test_whose_key_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours or root's is looked at; root's has to change hands. Of another's we cannot say what its bits mean."""
    key = folder / "ward-3" / "key.pem"
    key.chmod(0o640)
    owner = key.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1000)
    if owner == 0:
        with pytest.raises(AuthError, match=rf"mode = 0640: expected 0600; `chown 1000 {key}; chmod 600 {key}`"):
            identity.read(folder, "ward-3")
    else:
        identity.read(folder, "ward-3")
    monkeypatch.setattr(keys, "MODES", False)  # as on Windows
    identity.read(folder, "ward-3")


@posix
def test_a_key_is_secret_whatever_lay_in_its_way(folder: Path) -> None:
    """Not even of a writer that was killed."""
    aside = folder / "ward-4" / ".key.pem.tmp"
    aside.parent.mkdir()
    aside.touch(0o666)
    aside.chmod(0o666)
    identity.issue(folder, "ward-4")
    assert (folder / "ward-4" / "key.pem").stat().st_mode & 0o777 == 0o600 and not aside.exists()


def test_nobody_is_revoked_only_where_no_file_says_so(folder: Path) -> None:
    server = folder / "server"
    assert identity.revoked(server) == set()
    path = server / "revoked.txt"
    for content in (b"\xff\xfe", b"ward-3\n\xc3", b"\0\0\0\0", b"ward-3\n../x\n", "ward\u20113".encode(), b"a" * 64):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"revoked\.txt: .*expected names of clients, one a line"):
            identity.revoked(server)
        with pytest.raises(StoreError, match=r"revoked\.txt"):
            identity.revoke(folder, "ward-4")
        assert path.read_bytes() == content, "what is damaged is not overwritten"
    path.write_bytes(b"")
    assert identity.revoked(server) == set()
    path.write_bytes(b"ward-3\r\n\r\nward-4")
    assert identity.revoked(server) == {"ward-3", "ward-4"}


def test_a_list_of_the_revoked_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = folder / "server"
    path = server / "revoked.txt"
    path.mkdir()
    with pytest.raises(StoreError, match=r"revoked\.txt: cannot be read"):
        identity.revoked(server)
    path.rmdir()
    path.symlink_to("nowhere")
    with pytest.raises(StoreError, match=r"revoked\.txt: cannot be read"):
        identity.revoked(server)
    path.unlink()
    path.write_text("ward-3\n")
    plain = Path.read_text

    def denied(self: Path, *args: object, **more: object) -> str:
        if self == path:
            raise PermissionError(13, "Permission denied", str(path))
        return plain(self, *args, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", denied)
        with pytest.raises(StoreError, match=r"revoked\.txt: cannot be read: .*Permission denied"):
            identity.revoked(server)
    assert identity.revoked(server) == {"ward-3"}


def test_a_server_folder_that_has_gone(folder: Path, tmp_path: Path) -> None:
    """A disk that is not mounted is no empty list."""
    server = folder / "server"
    shutil.move(server, tmp_path / "away")
    with pytest.raises(StoreError, match="expected the server's folder, as it was"):
        identity.revoked(server)
    server.mkdir()
    with pytest.raises(StoreError, match="expected the server's folder, as it was"):
        identity.revoked(server)
