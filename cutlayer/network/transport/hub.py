"""The server's end of a transport: clients dial in, each has one stream, and frames go both ways.

The cohort sends through a `Connection` and takes events, one after another, from `Hub.next`. How the bytes travel is up
to the subclasses: `grpc_hub.GrpcHub` between machines, `memory.MemoryHub` inside one process.
"""

from __future__ import annotations

import collections
import logging
import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from cutlayer.errors import ContractError, FrameError, StoreError
from cutlayer.network.transport import Code
from cutlayer.network.transport.frames import Frame, Reader, written
from cutlayer.network.transport.identity import check_name

GREETING = 2**16  # bytes of a frame, at most, before a client is known
VISITS, MINUTE = 30, 60.0  # a client may open so many streams in so many seconds
NAMES = 10_000  # clients whose streams are counted, at most
UNREAD = 4  # frames of a client that may wait to be handled; it can send no more until one is taken
GRANT = 4  # frames that a client may send for each one it is sent: its answers, and repeats
SAVED = 8  # frames that it may send in a row, at most
log = logging.getLogger(__name__)
Admit = Callable[[str, dict[str, Any]], dict[str, Any]]
"""(name, words of its greeting) -> words of the answer. A ContractError refuses the client; its text is the reason."""


@dataclass
class Event:
    """What happened: a client came, went, or sent a frame."""

    kind: Literal["came", "went", "frame"]
    session: Connection
    frame: Frame | None = None
    why: str = ""
    at: float = field(default_factory=time.monotonic)


class Connection(ABC):
    """One client's stream, from its greeting to its end.

    limit    bytes of the longest frame that has been asked of it; a late one may still come
    behind   bytes sent that it has not taken yet
    check    frames carry a checksum: no TLS guards them
    """

    def __init__(self, name: str, reader: Reader, check: bool) -> None:
        self.name, self.reader, self.check = name, reader, check
        self.limit = self.behind = self.up = self.down = 0
        self.alive, self.ready = True, False
        self.credit = GRANT  # frames it may still send

    def send(
        self, kind: str, words: dict[str, Any], tensors: Sequence[Tensor] = (), code: Code = "raw", zstd: bool = False
    ) -> None:
        """Send a frame, from any thread. If the stream has ended, the frame is lost; an event reports the end."""
        self._soon(self._grant)  # first, because the answer may arrive before the last piece is sent
        for piece in written(kind, words, tensors, code, zstd, self.check):
            self.down += len(piece)
            self._put(piece)

    def heard(self, piece: bytes) -> Frame | None:
        """Return the frame that a piece completes, or None; raise a FrameError if the client sends too many."""
        self.up += len(piece)
        frame = self.reader.read(piece)
        if frame is None or not self.alive:
            return None
        if frame.kind == "Ready":
            if self.ready:
                raise FrameError("a second 'Ready'")
            self.ready = True
            return frame
        self.credit -= 1
        if self.credit < 0:
            raise FrameError(f"a {frame.kind[:20]!r}, more than it was asked for")
        return frame

    def close(self) -> None:
        """End the stream, after everything that was sent."""
        self._put(None)

    @abstractmethod
    def taken(self) -> None:
        """Note that one of its waiting frames has been taken."""

    @abstractmethod
    def _put(self, piece: bytes | None) -> None:
        """Send a piece, or None to end the stream."""

    @abstractmethod
    def _soon(self, act: Callable[[], None]) -> None:
        """Call `act` soon, where the stream's counters may be changed."""

    def _grant(self) -> None:
        self.credit = min(self.credit + GRANT, SAVED)


class Later(Exception):
    """A client is put off: it is not admitted, and tries again by itself."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class Hub(ABC):
    """The connected clients and the events of their streams. `revoked`: returns the names of revoked clients."""

    port = 0

    def __init__(self, admit: Admit, revoked: Callable[[], set[str]]) -> None:
        self.admit, self.revoked = admit, revoked
        self.sessions: dict[str, Connection] = {}
        self.counts: collections.Counter[str] = collections.Counter()  # streams, and refusals by kind
        self.up = self.down = 0  # bytes of streams that have ended
        self._visits: collections.OrderedDict[str, collections.deque[float]] = collections.OrderedDict()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    @abstractmethod
    def start(self) -> None:
        """Start to accept clients."""

    @abstractmethod
    def stop(self, grace: float = 2.0) -> None:
        """Deliver what was sent, then end all streams."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it still listens."""

    def look(self) -> int:
        """Log and return how many more connections ended before a greeting, where the transport can know it."""
        return 0

    def next(self, timeout: float) -> Event | None:
        """Return the next event, or None after `timeout` seconds."""
        try:
            event = self._events.get(timeout=timeout) if timeout else self._events.get_nowait()
        except queue.Empty:
            return None
        if event.kind == "frame":
            event.session.taken()
        return event

    def _admitted(self, name: str, greeting: Frame) -> dict[str, Any]:
        """Return the answer to a greeting; raise a ContractError to refuse the client, `Later` to put it off."""
        check_name(name)
        self._visited(name)
        try:
            revoked = self.revoked()
        except StoreError as error:
            raise Later("admission", f"nobody is admitted: {error}") from error
        if name in revoked:
            raise ContractError(f"client {name}: its certificate has been revoked")
        return self.admit(name, greeting.words)

    def _visited(self, name: str) -> None:
        """Put off a client that opens too many streams."""
        visits = self._visits.setdefault(name, collections.deque(maxlen=VISITS))
        self._visits.move_to_end(name)
        if len(self._visits) > NAMES:
            self._visits.popitem(last=False)
        now = time.monotonic()
        if len(visits) == VISITS and now - visits[0] < MINUTE:
            raise Later("rate", f"client {name}: {VISITS} streams in {now - visits[0]:.0f} seconds; come back later")
        visits.append(now)

    def _begun(self, session: Connection) -> None:
        """Register a welcomed client's stream. Its earlier stream, if any, must have broken, so end that one."""
        before = self.sessions.get(session.name)
        if before is not None:
            self._ended(before, "it has come anew")
            before.close()
        self.sessions[session.name] = session

    def _ended(self, session: Connection, why: str) -> None:
        if session.alive:
            session.alive = False
            self.up, self.down = self.up + session.up, self.down + session.down
            if self.sessions.get(session.name) is session:
                del self.sessions[session.name]
            self._events.put(Event("went", session, why=why))


def hello_of(frame: Frame) -> Frame:
    """Return the first frame of a stream; raise a FrameError if it is not a greeting."""
    if frame.kind != "Hello":
        raise FrameError(f"a {frame.kind[:20]!r} before a greeting")
    return frame
