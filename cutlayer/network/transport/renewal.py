"""Renew certificates: the same name, a new validity, and a new key unless the old one is kept."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from cutlayer.errors import StoreError, expect, unknown
from cutlayer.network.transport import keys
from cutlayer.network.transport.certificates import Authority, new_key, pem, reached, self_signed, signed
from cutlayer.network.transport.identity import DAYS, authority, check_days, revoked, shown, span

WITHIN = datetime.timedelta(days=30)  # certificates that end by then are due


@dataclass(frozen=True)
class Renewed:
    """A certificate that has been renewed: its name, when it ends, and the files that were written."""

    name: str
    until: datetime.datetime
    files: list[Path]


@dataclass(frozen=True)
class Terms:
    """How to renew certificates.

    `days`: how long they are valid (None: `DAYS`); if others are renewed too, the authority always gets `DAYS`, so that
    it outlives them. `hosts`: the server's new names (empty: it keeps the old ones).
    """

    days: int | None = None
    keep_key: bool = False
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.days is not None:
            check_days(self.days)


def everybody(folder: Path) -> list[str]:
    """List whose certificates can be renewed: the authority, the server, and the clients that are not revoked."""
    there = sorted(path.parent.name for path in folder.glob("*/cert.pem"))
    if not there:
        raise StoreError(f"{folder}: no certificates in it; expected `cutlayer certs init` first")
    refused = _refused(folder)
    return ["ca", *(name for name in there if name not in refused)]


def due(folder: Path, now: datetime.datetime | None = None) -> list[str]:
    """List those of `everybody` whose certificates end soon."""
    until = (now or datetime.datetime.now(datetime.UTC)) + WITHIN
    return [name for name in everybody(folder) if shown(_path(folder, name)).not_valid_after_utc < until]


def renew(folder: Path, names: Sequence[str], terms: Terms | None = None) -> list[Renewed]:
    """Renew the certificates of clients, "server" or "ca": all of these names, or none if one of them is refused.

    The authority keeps its name and key, so what it has signed stays valid; its new certificate goes into every folder.
    """
    terms, signing, refused = terms or Terms(), authority(folder), _refused(folder)
    there = {path.parent.name for path in folder.glob("*/cert.pem")} | {"ca"}
    for name in names:
        if name not in there:
            raise unknown("certificate", name, there)
        expect(name not in refused, "client name", name, "one that is not revoked: it would be refused all the same")
        if (key := folder / name / "key.pem").exists():
            keys.read(key)  # raises, before anything is written, if others may read it
    expect(not terms.hosts or "server" in names, "hosts", list(terms.hosts), "the server among those renewed")
    more = {name: _kept(shown(_path(folder, name)), terms.hosts if name == "server" else ()) for name in names}
    for path in sorted(folder.glob("*/ca.pem")):
        _authorities(path)  # likewise if it is damaged
    done = []
    if "ca" in names:
        days = terms.days if set(names) == {"ca"} else None
        cert = self_signed(signing.key, signing.cert.subject, span(days or DAYS["ca"]))
        signing = Authority(signing.key, cert)
        files = [file for path in sorted(folder.glob("*/ca.pem")) for file in _believe(path, cert)]
        done.append(Renewed("ca", cert.not_valid_after_utc, files))
    return done + [_renew(folder, name, signing, terms, more[name]) for name in dict.fromkeys(names) if name != "ca"]


def _renew(folder: Path, name: str, ca: Authority, terms: Terms, more: list[x509.ExtensionType]) -> Renewed:
    home, key = folder / name, None if terms.keep_key else new_key()
    old = shown(home / "cert.pem")
    public = old.public_key() if key is None else key.public_key()
    cert = signed(ca, old.subject, public, more, span(terms.days or DAYS.get(name, DAYS["client"])))
    files = _believe(home / "ca.pem", ca.cert)
    if key is None:
        files.append(keys.write(home / "cert.pem", pem(cert)))
    else:
        files += keys.replace(home, pem(key), pem(cert))
    return Renewed(name, cert.not_valid_after_utc, files)


def _kept(old: x509.Certificate, hosts: Sequence[str]) -> list[x509.ExtensionType]:
    """What a new certificate takes over from the old one: its use, and (unless `hosts`) its names and addresses."""
    found: list[x509.ExtensionType] = [reached(hosts)] if hosts else []
    for kind in (x509.ExtendedKeyUsage, *(() if hosts else (x509.SubjectAlternativeName,))):
        try:
            found.append(old.extensions.get_extension_for_class(kind).value)
        except x509.ExtensionNotFound:
            continue
    return found


def _believe(path: Path, ca: x509.Certificate) -> list[Path]:
    """Put an authority's certificate into a file, in place of its older ones; return the files that were written."""
    there = _authorities(path)
    if ca in there:
        return []
    others = [one for one in there if one.public_key() != ca.public_key()]
    return [keys.write(path, b"".join(pem(one) for one in (ca, *others)))]


def _authorities(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be read, or damaged: {error}; expected an authority's certificate") from error


def _refused(folder: Path) -> set[str]:
    return revoked(folder / "server") if (folder / "server").exists() else set()


def _path(folder: Path, name: str) -> Path:
    return folder / name / ("ca.pem" if name == "ca" else "cert.pem")
