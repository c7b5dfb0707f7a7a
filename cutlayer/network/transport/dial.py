"""A client's end of gRPC, and how long it waits before it dials again."""

from __future__ import annotations

import queue
import random
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import grpc

from cutlayer.errors import AuthError
from cutlayer.network.transport.frames import Frame
from cutlayer.network.transport.grpc_hub import METHOD, OPTIONS
from cutlayer.network.transport.identity import Identity
from cutlayer.network.transport.line import Gone, Line

FIRST, LONGEST = 0.5, 30.0  # seconds: the back-off's first bound, and its last
UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification")  # errors of grpc that dialing again would not mend
SOON = 5.0  # seconds to find out whether a server speaks TLS


class GrpcLine(Line):
    """A client's end of a gRPC stream."""

    def __init__(self, server: str, identity: Identity | None) -> None:
        super().__init__(check=identity is None)
        if identity is None:
            self._channel = grpc.insecure_channel(server, OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.cert)
            self._channel = grpc.secure_channel(server, credentials, OPTIONS)
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call: Any = self._channel.stream_stream(METHOD)(iter(self._out.get, None))

    def _put(self, piece: bytes) -> None:
        self._out.put(piece)

    def receive(self) -> Frame:
        try:
            for piece in self._call:
                self.down += len(piece)
                frame = self.reader.read(piece)
                if frame is not None:
                    return frame
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else None
            details = str(error.details() if isinstance(error, grpc.Call) else error)
            told = re.sub("^(UNKNOWN|UNAVAILABLE): ", "", details.rpartition("last error: ")[2])
            if any(word in details for word in UNTRUSTED):
                raise AuthError(f"the server is not who it should be: {told}") from error
            raise Gone(f"{code.name if code else 'error'}: {told}") from error
        raise Gone("the server has closed the stream")

    def close(self) -> None:
        self._out.put(None)
        self._channel.close()


def speaks_tls(server: str) -> bool:
    """Whether the server at this address shows a certificate."""
    host, _, port = server.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # no need to verify: nothing is sent
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=SOON) as bare,
            context.wrap_socket(bare, server_hostname=host.strip("[]")) as secured,
        ):
            return secured.getpeercert(binary_form=True) is not None
    except OSError:
        return False


def waits(seed: int | None = None) -> Iterator[float]:
    """Yield the seconds before each new try: random, up to a bound that doubles (full jitter), so that not all clients
    dial a restarted server at once."""
    dice, bound = random.Random(seed), FIRST  # noqa: S311  # nothing secret
    while True:
        yield dice.uniform(0, bound)
        bound = min(2 * bound, LONGEST)
