"""Whoever is not who they should be."""

from __future__ import annotations

import datetime
import functools
import socket
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from cutlayer.network.protocol.handshake import Hello, words
from cutlayer.network.transport import identity
from cutlayer.network.transport.dial import GrpcLine
from cutlayer.network.transport.frames import Reader, written
from cutlayer.network.transport.grpc_hub import METHOD, OPTIONS
from cutlayer.network.transport.hub import GREETING
from cutlayer.network.transport.identity import Identity
from tests.network.harness import NAMES, SOON, certs, scratch

HOSTS = ["localhost", "127.0.0.1"]
Stranger = Callable[[int], str]
"""Dials this port; who it came in as, if it did."""


@functools.cache
def others() -> Path:
    """Another authority, with a client of the same name as one of ours."""
    folder = scratch("others")
    identity.create(folder, HOSTS)
    identity.issue(folder, NAMES[3])
    return folder


def expired(folder: Path, name: str, hosts: list[str] | None = None) -> Identity:
    """Of this authority, but of last year. It is left in the folder, and read without a look at its date."""
    use = x509.ExtendedKeyUsageOID.SERVER_AUTH if hosts else x509.ExtendedKeyUsageOID.CLIENT_AUTH
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "SKEW", datetime.timedelta(days=1000))
        identity._issue(folder, name, hosts or [], use, -1)
    return Identity(*((folder / name / file).read_bytes() for file in ("key.pem", "cert.pem", "ca.pem")))


def dials(who: Identity | None, name: str = "") -> Stranger:
    """Greets like any client."""

    def stranger(port: int) -> str:
        line = GrpcLine(f"127.0.0.1:{port}", who)
        try:
            line.greet(words(Hello(name=name)))
            return name or "somebody"
        finally:
            line.close()

    return stranger


def nameless(port: int) -> str:
    """TLS, but no certificate of its own."""
    trust = grpc.ssl_channel_credentials(identity.read(certs(), NAMES[0]).ca)
    with grpc.secure_channel(f"127.0.0.1:{port}", trust, OPTIONS) as channel:
        reader = Reader(GREETING)
        hello = iter(list(written("Hello", words(Hello(name=NAMES[0])))))
        found = [reader.read(piece) for piece in channel.stream_stream(METHOD)(hello, timeout=SOON)]
    return str(found)


def shouts(port: int) -> str:
    """Bytes that are neither TLS nor gRPC."""
    with socket.create_connection(("127.0.0.1", port), timeout=SOON) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(range(256)))
        found = b""
        while piece := plain.recv(4096):
            found += piece
    if b"Welcome" not in found:
        raise ConnectionError("closed")
    return str(found)
