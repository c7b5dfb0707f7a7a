"""Who is who: an authority of one's own, certificates for the server and for each client, and who has been revoked.

FOLDER/ca/        ca.pem, ca.key           the authority; the key signs, and need not be on the server
FOLDER/server/    ca.pem, cert.pem, key.pem, revoked.txt
FOLDER/NAME/      ca.pem, cert.pem, key.pem          one folder for each client, to be carried to it
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cutlayer.errors import AuthError, ContractError, StoreError, expect
from cutlayer.files import write_aside

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
RESERVED = ("ca", "server")
REVOKED = "revoked.txt"
YEARS = {"ca": 10, "server": 2, "client": 2}
SKEW = datetime.timedelta(minutes=5)  # clocks differ


@dataclass(frozen=True)
class Identity:
    """What one end of a connection shows, and whom it believes."""

    key: bytes
    cert: bytes
    ca: bytes

    @property
    def name(self) -> str:
        return common_name(x509.load_pem_x509_certificate(self.cert))

    @property
    def serves(self) -> bool:
        """Whether clients would believe it."""
        try:
            uses = x509.load_pem_x509_certificate(self.cert).extensions.get_extension_for_class(x509.ExtendedKeyUsage)
        except x509.ExtensionNotFound:
            return True
        return ExtendedKeyUsageOID.SERVER_AUTH in uses.value


def read(folder: Path, name: str = "") -> Identity:
    """The identity in a folder of `cutlayer certs`, or in the one of this name in it."""
    folder = place(folder, name)
    try:
        key, cert, ca = ((folder / name).read_bytes() for name in ("key.pem", "cert.pem", "ca.pem"))
    except OSError as error:
        inside = sorted(path.parent.name for path in folder.glob("*/key.pem"))
        hint = f"; there are folders of {', '.join(inside)}: expected one of them, or its name" if inside else ""
        raise StoreError(f"{folder}: expected key.pem, cert.pem and ca.pem in it; {error}{hint}") from error
    try:
        mine = x509.load_pem_x509_certificate(cert)
        fits = serialization.load_pem_private_key(key, None).public_key() == mine.public_key()
        x509.load_pem_x509_certificates(ca)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise StoreError(f"{folder}: a damaged certificate or key: {error}") from error
    if not fits:
        raise StoreError(f"{folder}: key.pem is not the key of cert.pem")
    until = mine.not_valid_after_utc
    if until < datetime.datetime.now(datetime.UTC):
        raise AuthError(f"{folder}: its certificate has expired on {until:%Y-%m-%d}; expected a new one")
    return Identity(key, cert, ca)


def place(folder: Path, name: str) -> Path:
    """The folder itself, or the one of this name in it."""
    within = bool(name) and not (folder / "key.pem").exists() and (folder / name / "key.pem").exists()
    return folder / name if within else folder


def create(folder: Path, hosts: Sequence[str]) -> list[Path]:
    """A new authority, and a certificate for a server that is reached by these names and addresses."""
    if (folder / "ca" / "ca.key").exists():
        raise StoreError(f"{folder / 'ca'}: there is an authority already; clients of a new one would not be believed")
    expect(len(hosts) > 0, "hosts", list(hosts), "a name or address by which clients reach the server")
    if (folder / "server" / "key.pem").exists():
        raise StoreError(f"{folder / 'server'}: there is a certificate already, of an authority that is not here")
    for host in hosts:
        _host(host)  # before anything is written
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named("cutlayer authority")
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    cert = (
        _begun(name, name, key, key, YEARS["ca"])
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    made = [_write(folder / "ca" / "ca.key", _pem(key)), _write(folder / "ca" / "ca.pem", _pem(cert))]
    return [*made, *_issue(folder, "server", hosts, ExtendedKeyUsageOID.SERVER_AUTH, YEARS["server"])]


def issue(folder: Path, *names: str) -> list[Path]:
    """A certificate for each of these clients; for none of them where one cannot be."""
    for name in names:
        check_name(name)
        if (folder / name / "key.pem").exists():
            raise StoreError(f"{folder / name}: there is a certificate already; delete the folder for a new one")
    use, years = ExtendedKeyUsageOID.CLIENT_AUTH, YEARS["client"]
    return [path for name in dict.fromkeys(names) for path in _issue(folder, name, [], use, years)]


def revoke(folder: Path, *names: str) -> Path:
    """From now on the server refuses these clients, whatever certificates of their names they show."""
    for name in names:
        check_name(name)
    server = place(folder, "server")
    if not (server / "key.pem").exists():
        raise StoreError(f"{folder}: no server in it; expected the folder of `cutlayer certs init`, or its server")
    everybody = revoked(server) | set(names)
    path = server / REVOKED
    write_aside(path, "".join(f"{one}\n" for one in sorted(everybody)).encode())  # a server may be reading it
    return path


def revoked(server: Path) -> set[str]:
    path = server / REVOKED
    return set(path.read_text(encoding="utf-8").split()) if path.exists() else set()


def known(folder: Path) -> list[tuple[str, datetime.datetime]]:
    """Whose certificates are in the folder, and until when they are valid."""
    certs = sorted(folder.glob("*/cert.pem"))
    if not certs:
        raise StoreError(f"{folder}: no certificates in it; expected `cutlayer certs init` first")
    found = []
    for path in certs:
        try:
            cert = x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError as error:
            raise StoreError(f"{path}: a damaged certificate: {error}") from error
        found.append((common_name(cert), cert.not_valid_after_utc))
    return found


def check_name(name: str) -> None:
    good = NAME.fullmatch(name) is not None and name not in RESERVED
    expect(good, "client name", name, f"letters, digits, '.', '_' or '-', up to 63, and not {' or '.join(RESERVED)}")


def common_name(cert: x509.Certificate) -> str:
    found = cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _issue(folder: Path, name: str, hosts: Sequence[str], use: x509.ObjectIdentifier, years: int) -> list[Path]:
    target = folder / name
    try:
        ca_key = serialization.load_pem_private_key((folder / "ca" / "ca.key").read_bytes(), None)
        ca_pem = (folder / "ca" / "ca.pem").read_bytes()
    except FileNotFoundError as error:
        raise StoreError(f"{folder}: no authority in it; expected `cutlayer certs init` first") from error
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    ca = x509.load_pem_x509_certificate(ca_pem)
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    begun = (
        _begun(_named(name), ca.subject, key, ca_key, years)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    )
    if hosts:
        begun = begun.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    cert = begun.sign(ca_key, hashes.SHA256())
    files = (("key.pem", _pem(key)), ("cert.pem", _pem(cert)), ("ca.pem", ca_pem))
    return [_write(target / file, content) for file, content in files]


def _begun(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey, years: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + datetime.timedelta(days=365 * years))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(authority, critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9*]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
            raise ContractError(f"host = {host!r}: expected a host name or an IP address") from None
        return x509.DNSName(host)


def _pem(item: ec.EllipticCurvePrivateKey | x509.Certificate) -> bytes:
    if isinstance(item, x509.Certificate):
        return item.public_bytes(serialization.Encoding.PEM)
    plain = serialization.NoEncryption()
    return item.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _write(path: Path, content: bytes) -> Path:
    """Keys are for their owner's eyes from the first byte."""
    path.parent.mkdir(parents=True, exist_ok=True)
    secret = path.suffix == ".key" or path.name == "key.pem"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    return path
