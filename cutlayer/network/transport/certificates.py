"""Make and sign certificates, and find out who signed one. Nothing here reads files or the clock."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import NameOID

from cutlayer.errors import AuthError, ContractError

Span = tuple[datetime.datetime, datetime.datetime]
"""(valid from, valid until)"""


@dataclass(frozen=True)
class Authority:
    """An authority, which signs certificates: its key, and its own certificate."""

    key: ec.EllipticCurvePrivateKey
    cert: x509.Certificate


def self_signed(key: ec.EllipticCurvePrivateKey, name: x509.Name, span: Span) -> x509.Certificate:
    """Return an authority's own certificate. It may sign servers' and clients', but no further authority's."""
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    return (
        _begun(name, name, key.public_key(), key.public_key(), span)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def signed(
    ca: Authority, name: x509.Name, public: CertificatePublicKeyTypes, more: Sequence[x509.ExtensionType], span: Span
) -> x509.Certificate:
    """Return a certificate for this key. It ends no later than the authority's own."""
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    since, until = span[0], min(span[1], ca.cert.not_valid_after_utc)
    if until <= since:
        raise AuthError(f"the authority's certificate has expired on {until:%Y-%m-%d}: expected `certs renew ca` first")
    begun = (
        _begun(name, ca.cert.subject, public, ca.key.public_key(), (since, until))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
    )
    for one in more:
        begun = begun.add_extension(one, critical=False)
    return begun.sign(ca.key, hashes.SHA256())


def signer(cert: bytes, believed: bytes) -> x509.Certificate | None:
    """Return the trusted authority that signed a certificate, directly or through those after it in its file."""
    chain = x509.load_pem_x509_certificates(cert)
    authorities = x509.load_pem_x509_certificates(believed)
    for i, one in enumerate(chain):
        if i and not _has_signed(one, chain[i - 1]):
            return None
        if found := [ca for ca in authorities if _has_signed(ca, one)]:
            return max(found, key=lambda ca: ca.not_valid_after_utc)  # its old and its renewed one may both be there
    return None


def left(until: datetime.datetime, soon: datetime.timedelta, now: datetime.datetime) -> str:
    """Say when a certificate ends ("ends in 9 days, on 2026-11-26") or has expired; "" if it does not end soon."""
    rest = until - now
    if rest > soon:
        return ""
    if rest < datetime.timedelta():
        return f"has expired on {until:%Y-%m-%d}"
    number, unit = (rest.days, "day") if rest.days else (rest.seconds // 3600, "hour")
    return f"ends in {number} {unit}{'s' * (number != 1)}, on {until:%Y-%m-%d}"


def common_name(cert: x509.Certificate) -> str:
    found = cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def reached(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    """The part of a certificate that lists a server's names and addresses."""
    return x509.SubjectAlternativeName([_host(host) for host in hosts])


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def pem(item: ec.EllipticCurvePrivateKey | x509.Certificate) -> bytes:
    if isinstance(item, x509.Certificate):
        return item.public_bytes(serialization.Encoding.PEM)
    plain = serialization.NoEncryption()
    return item.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _begun(
    name: x509.Name,
    issuer: x509.Name,
    public: CertificatePublicKeyTypes,
    signer: ec.EllipticCurvePublicKey,
    span: Span,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(span[0])
        .not_valid_after(span[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _has_signed(ca: x509.Certificate, cert: x509.Certificate) -> bool:
    try:
        cert.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9*]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
            raise ContractError(f"host = {host!r}: expected a host name or an IP address") from None
        return x509.DNSName(host)
