"""A client's end of a transport: it dials the server and greets it, and then frames go both ways."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from cutlayer.errors import AuthError, FrameError
from cutlayer.network.transport import Code, plain
from cutlayer.network.transport.frames import Frame, Reader, written
from cutlayer.network.transport.hub import GREETING
from cutlayer.network.transport.identity import Identity


class Refused(AuthError):
    """The server refuses this client; trying again would not help."""


class Gone(Exception):
    """The stream has broken; the server may be back later."""


class Line(ABC):
    """One stream to the server. `check`: frames carry a checksum, because no TLS guards them."""

    def __init__(self, check: bool) -> None:
        self.check = check
        self.reader = Reader(GREETING)
        self.up = self.down = 0

    def greet(self, words: dict[str, Any]) -> dict[str, Any]:
        """Greet the server, and return its answer."""
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
            self._put(piece)

    @abstractmethod
    def receive(self) -> Frame:
        """Wait for the next frame and return it; raise `Gone` when the stream breaks."""

    @abstractmethod
    def close(self) -> None:
        """End the stream, after everything that was sent."""

    @abstractmethod
    def _put(self, piece: bytes) -> None:
        """Send a piece of a frame."""


Dial = Callable[[str, Identity | None], Line]
"""(server, our identity) -> a new stream."""
