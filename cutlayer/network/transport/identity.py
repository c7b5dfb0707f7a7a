"""Identities: an authority of your own, certificates for the server and for each client, and revoked clients.

FOLDER/ca/        ca.pem, ca.key           the authority; the key signs, and need not be on the server
FOLDER/server/    ca.pem, cert.pem, key.pem, revoked.txt
FOLDER/NAME/      ca.pem, cert.pem, key.pem          one folder for each client, to be copied to it
"""

from __future__ import annotations

import datetime
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from cutlayer.core.files import write_aside
from cutlayer.errors import AuthError, StoreError, expect
from cutlayer.network.transport import keys, plain
from cutlayer.network.transport.certificates import (
    Authority,
    Span,
    common_name,
    left,
    named,
    new_key,
    pem,
    reached,
    self_signed,
    signed,
    signer,
)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
RESERVED = ("ca", "server")
REVOKED = "revoked.txt"
DAYS = {"ca": 3650, "server": 730, "client": 730}
LONGEST = 36500  # days
SKEW = datetime.timedelta(minutes=5)  # clocks may differ by this much
SOON = datetime.timedelta(days=14)  # warn of certificates that end by then
TRIES, NAP = 3, 0.1  # how often to read a key that does not match its certificate, and seconds between


@dataclass(frozen=True)
class Identity:
    """One end's key and certificate, and the authorities it trusts. `folder`: where it was read from, if it was."""

    key: bytes
    cert: bytes
    ca: bytes
    folder: Path | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return common_name(x509.load_pem_x509_certificate(self.cert))

    @property
    def serves(self) -> bool:
        """Whether the certificate is good for a server."""
        try:
            uses = x509.load_pem_x509_certificate(self.cert).extensions.get_extension_for_class(x509.ExtendedKeyUsage)
        except x509.ExtensionNotFound:
            return True
        return ExtendedKeyUsageOID.SERVER_AUTH in uses.value


def read(folder: Path, name: str = "") -> Identity:
    """Read the identity in a folder of `cutlayer certs`, or in its subfolder of this name, and `prove` it."""
    folder = place(folder, name)
    for attempt in range(TRIES):  # the files may just now be renewed or copied
        time.sleep(NAP if attempt else 0)
        if (who := _read(folder)) is not None:
            break
    else:
        raise AuthError(
            f"{folder / 'key.pem'}: not the key of {folder / 'cert.pem'}; expected both as they were made together: "
            "carry the folder over again"
        )
    prove(who)
    return who


def _read(folder: Path) -> Identity | None:
    """Read an identity; None if key and certificate do not belong together."""
    try:
        secret = keys.read(folder / "key.pem")
        cert, ca = ((folder / name).read_bytes() for name in ("cert.pem", "ca.pem"))
    except OSError as error:
        inside = sorted(path.parent.name for path in folder.glob("*/key.pem"))
        hint = f"; there are folders of {', '.join(inside)}: expected one of them, or its name" if inside else ""
        raise StoreError(f"{folder}: expected key.pem, cert.pem and ca.pem in it; {error}{hint}") from error
    try:
        key = keys.fitting(secret, x509.load_pem_x509_certificate(cert))
        x509.load_pem_x509_certificates(cert)
        x509.load_pem_x509_certificates(ca)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise StoreError(f"{folder}: a damaged certificate or key: {error}") from error
    return None if key is None else Identity(key, cert, ca, folder)


def prove(who: Identity, now: datetime.datetime | None = None) -> None:
    """Refuse a certificate that the other end would refuse: not signed by its authority, expired, or not valid yet."""
    folder, now = who.folder or Path(), now or _now()
    file, name = folder / "cert.pem", plain(who.name)
    ca = signer(who.cert, who.ca)
    if ca is None:
        raise AuthError(
            f"{file}: not signed by the authority in {folder / 'ca.pem'}; expected certificate and authority as "
            f"`cutlayer certs` wrote them together: carry the folder of {name} over again"
        )
    own = x509.load_pem_x509_certificates(who.cert)
    for cert, path, renewed in (*((one, file, name) for one in own), (ca, folder / "ca.pem", "ca")):
        since, until = cert.not_valid_before_utc, cert.not_valid_after_utc
        if until < now:
            raise AuthError(
                f"{path}: this certificate has expired on {until:%Y-%m-%d}; expected a new one: "
                f"`cutlayer certs renew {renewed}` where the authority's key is, then carry it here"
            )
        if since > now:
            raise AuthError(
                f"{path}: this certificate is not valid before {since:%Y-%m-%d %H:%M} UTC, and here it is "
                f"{now:%Y-%m-%d %H:%M}; expected a clock that is right"
            )


def ends(who: Identity) -> datetime.datetime:
    """When its certificate ends."""
    return x509.load_pem_x509_certificate(who.cert).not_valid_after_utc


def warning(who: Identity, now: datetime.datetime | None = None) -> str | None:
    """Return a warning if its certificate, or its authority's, ends soon."""
    where, name, ca = str(who.folder or who.name), who.name, signer(who.cert, who.ca)
    said = [_warning(f"{where}: its certificate", ends(who), name, now)]
    if ca is not None:
        said.append(_warning(f"{where}: its authority's certificate", ca.not_valid_after_utc, "ca", now))
    return "; ".join(one for one in said if one) or None


def client_warning(pem: bytes, now: datetime.datetime | None = None) -> str | None:
    """Return a warning if the certificate that a client has shown (grpc's `x509_pem_cert`) ends soon."""
    try:
        cert = x509.load_pem_x509_certificate(pem)
        name = plain(common_name(cert))
    except ValueError:  # grpc accepted it, and may be less strict
        return None
    return _warning(f"client {name}: its certificate", cert.not_valid_after_utc, name, now)


def _warning(what: str, until: datetime.datetime, name: str, now: datetime.datetime | None) -> str | None:
    said = left(until, SOON, now or _now())
    return f"{what} {said}; `cutlayer certs renew {name}`" if said else None


def place(folder: Path, name: str) -> Path:
    """Return the folder itself, or its subfolder of this name if only that one holds a key."""
    there = os.path.exists  # False, not an error, where we may not look
    within = bool(name) and not there(folder / "key.pem") and there(folder / name / "key.pem")
    return folder / name if within else folder


def create(folder: Path, hosts: Sequence[str], days: int = DAYS["server"]) -> list[Path]:
    """Create an authority, and a certificate for a server that is reached by these names and addresses."""
    if (folder / "ca" / "ca.key").exists():
        raise StoreError(f"{folder / 'ca'}: there is an authority already; a new one would not accept its clients")
    expect(len(hosts) > 0, "hosts", list(hosts), "a name or address by which clients reach the server")
    if (folder / "server" / "key.pem").exists():
        raise StoreError(f"{folder / 'server'}: there is a certificate already, of an authority that is not here")
    check_days(days)
    reached(hosts)  # raises before anything is written
    key = new_key()
    cert = self_signed(key, named("cutlayer authority"), span(DAYS["ca"]))
    made = [keys.write(folder / "ca" / "ca.key", pem(key)), keys.write(folder / "ca" / "ca.pem", pem(cert))]
    return [*made, *_issue(folder, "server", hosts, ExtendedKeyUsageOID.SERVER_AUTH, days)]


def issue(folder: Path, *names: str, days: int = DAYS["client"]) -> list[Path]:
    """Create a certificate for each of these clients, or for none of them if one is refused."""
    check_days(days)
    for name in names:
        check_name(name)
        if (folder / name / "key.pem").exists():
            raise StoreError(f"{folder / name}: there is a certificate already; delete the folder for a new one")
    use = ExtendedKeyUsageOID.CLIENT_AUTH
    return [path for name in dict.fromkeys(names) for path in _issue(folder, name, [], use, days)]


def revoke(folder: Path, *names: str) -> Path:
    """Make the server refuse all certificates with these clients' names from now on."""
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
    """Return the names of revoked clients: none if the server's folder has no such file.

    A file that cannot be read or is damaged raises an error, so that no revoked client is admitted.
    """
    path = server / REVOKED
    try:
        names = path.read_text(encoding="utf-8").split()
    except FileNotFoundError as error:
        if os.path.exists(server / "cert.pem") and not path.is_symlink():
            return set()
        raise StoreError(f"{path}: cannot be read: {error}; expected the server's folder, as it was") from error
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: cannot be read: {error}; expected names of clients, one a line") from error
    for name in names:
        if not NAME.fullmatch(name):
            raise StoreError(f"{path}: damaged: {plain(name, 70)!r}; expected names of clients, one a line")
    return set(names)


def known(folder: Path) -> list[tuple[str, datetime.datetime]]:
    """List whose certificates are in the folder, and when each ends."""
    certs = sorted(folder.glob("*/cert.pem"))
    if not certs:
        raise StoreError(f"{folder}: no certificates in it; expected `cutlayer certs init` first")
    return [(common_name(cert), cert.not_valid_after_utc) for cert in map(shown, certs)]


def shown(path: Path) -> x509.Certificate:
    """Read the certificate in a file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error}; expected a certificate") from error
    except ValueError as error:
        raise StoreError(f"{path}: a damaged certificate: {error}") from error


def check_name(name: str) -> None:
    good = NAME.fullmatch(name) is not None and name not in RESERVED
    expect(good, "client name", name, f"letters, digits, '.', '_' or '-', up to 63, and not {' or '.join(RESERVED)}")


def check_days(days: int) -> None:
    expect(0 < days <= LONGEST, "days", days, f"1 to {LONGEST}")


def authority(folder: Path) -> Authority:
    """Read the authority of a folder."""
    path = folder / "ca" / "ca.key"
    try:
        key = serialization.load_pem_private_key(keys.read(path), None)
    except FileNotFoundError as error:
        raise StoreError(f"{folder}: no authority in it; expected `cutlayer certs init` first") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error}; expected the authority's key") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise StoreError(f"{path}: a damaged key: {error}") from error
    cert = shown(folder / "ca" / "ca.pem")
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != cert.public_key():
        raise StoreError(f"{path}: not the key of ca.pem; expected both as `cutlayer certs init` made them")
    return Authority(key, cert)


def span(days: int) -> Span:
    """The validity of a certificate made now for so many days."""
    now = _now()
    return now - SKEW, now + datetime.timedelta(days=days)


def _issue(folder: Path, name: str, hosts: Sequence[str], use: x509.ObjectIdentifier, days: int) -> list[Path]:
    ca, key = authority(folder), new_key()
    more = [x509.ExtendedKeyUsage([use]), *([reached(hosts)] if hosts else [])]
    cert = signed(ca, named(name), key.public_key(), more, span(days))
    believed = (folder / "ca" / "ca.pem").read_bytes()
    files = (("key.pem", pem(key)), ("cert.pem", pem(cert)), ("ca.pem", believed))
    return [keys.write(folder / name / file, content) for file, content in files]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
