"""A client's end: it dials out, greets, and then frames go both ways. When the stream breaks it dials again."""

from __future__ import annotations

import queue
import random
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from torch import Tensor

from cutlayer.errors import AuthError, FrameError
from cutlayer.network.transport import Code, plain
from cutlayer.network.transport.frames import Frame, Reader, written
from cutlayer.network.transport.hub import GREETING, METHOD, OPTIONS
from cutlayer.network.transport.identity import Identity

FIRST, LONGEST = 0.5, 30.0  # seconds: the back-off's first bound, and its last
UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification")  # in what grpc says: proven, and for good
SOON = 5.0  # seconds for a look at how a server speaks


class Refused(AuthError):
    """The server does not want this client; trying again would not help."""


class Gone(Exception):
    """The stream has broken; the server may be back later."""


class Line:
    """One stream to the server."""

    def __init__(self, server: str, identity: Identity | None) -> None:
        if identity is None:
            self._channel = grpc.insecure_channel(server, OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.cert)
            self._channel = grpc.secure_channel(server, credentials, OPTIONS)
        self.check = identity is None
        self.reader = Reader(GREETING)
        self.up = self.down = 0
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call: Any = self._channel.stream_stream(METHOD)(iter(self._out.get, None))

    def greet(self, words: dict[str, Any]) -> dict[str, Any]:
        """Say who we are; what the server answers."""
        self.send("Hello", words)
        frame = self.receive()
        if frame.kind == "Refused":
            raise Refused(f"the server refuses: {plain(frame.words.get('why'))}")
        if frame.kind != "Welcome":
            raise FrameError(f"a {frame.kind!r} instead of a welcome")
        return frame.words

    def send(
        self, kind: str, words: dict[str, Any], tensors: Sequence[Tensor] = (), code: Code = "raw", zstd: bool = False
    ) -> None:
        for piece in written(kind, words, tensors, code, zstd, self.check):
            self.up += len(piece)
            self._out.put(piece)

    def receive(self) -> Frame:
        """The next frame; waits for it as long as the stream lives."""
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
        """After what has been sent."""
        self._out.put(None)
        self._channel.close()


def speaks_tls(server: str) -> bool:
    """Whether whoever listens there shows a certificate."""
    host, _, port = server.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is said: a look at how it speaks
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
    """Seconds before each new try: anything up to a bound that doubles (full jitter), so that clients of a server that
    comes back do not all come at once."""
    dice, bound = random.Random(seed), FIRST  # noqa: S311  # nothing secret
    while True:
        yield dice.uniform(0, bound)
        bound = min(2 * bound, LONGEST)
