"""A transport inside one process: the same frames, limits and greetings as between machines, without sockets."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from cutlayer.errors import ContractError, FrameError
from cutlayer.network.transport import plain
from cutlayer.network.transport.frames import Frame, Reader, written
from cutlayer.network.transport.hub import GREETING, UNREAD, Connection, Event, Hub, Later, hello_of
from cutlayer.network.transport.line import Gone, Line

TICK = 0.1  # seconds between checks that a stream is still alive


class MemoryConnection(Connection):
    """The server's end of a stream made of queues; any thread may use it."""

    def __init__(self, name: str) -> None:
        super().__init__(name, Reader(GREETING), check=True)
        self.out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.room = threading.Semaphore(UNREAD)
        self.lock = threading.Lock()

    def taken(self) -> None:
        self.room.release()

    def _put(self, piece: bytes | None) -> None:
        with self.lock:
            self.behind += len(piece or b"")
        self.out.put(piece)

    def _soon(self, act: Callable[[], None]) -> None:
        with self.lock:
            act()


class MemoryHub(Hub):
    """The hub of a transport inside one process. Clients call `dial`, and choose their own names."""

    _open = False

    def start(self) -> None:
        self._open = True

    def stop(self, grace: float = 2.0) -> None:
        self._open = False
        for session in list(self.sessions.values()):
            session.close()

    @property
    def alive(self) -> bool:
        return self._open

    def dial(self, *_: Any) -> MemoryLine:
        """Open a new stream to this server."""
        self.counts["streams"] += 1
        return MemoryLine(self)

    def greeted(self, frame: Frame, reader: Reader) -> MemoryConnection:
        """Admit or refuse the client that sent this greeting."""
        name = str(hello_of(frame).words.get("name", ""))
        answer = self._admitted(name, frame)
        session = MemoryConnection(name)
        session.reader = reader
        self._begun(session)
        for piece in written("Welcome", answer, check=True):
            session.out.put(piece)
        self._events.put(Event("came", session))
        return session

    def incoming(self, session: MemoryConnection, piece: bytes) -> None:
        """Receive a piece from a client; end its stream at the first error."""
        try:
            with session.lock:
                frame = session.heard(piece)
        except FrameError as error:
            self.counts["refused: frame"] += 1
            self.left(session, f"it sent {error}")
            return
        if frame is not None and self._waited(session):
            self._events.put(Event("frame", session, frame))

    def _waited(self, session: MemoryConnection) -> bool:
        """Wait until the server has taken enough of its frames; return whether the stream is still alive."""
        while not session.room.acquire(timeout=TICK):
            if not (session.alive and self.alive):
                return False
        return True

    def left(self, session: Connection, why: str) -> None:
        """End a client's stream."""
        self._ended(session, why)
        session.close()


class MemoryLine(Line):
    """A client's end of a stream made of queues."""

    def __init__(self, hub: MemoryHub) -> None:
        super().__init__(check=True)
        self._hub, self._first = hub, Reader(GREETING)
        self._session: MemoryConnection | None = None
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # used until there is a session

    def _put(self, piece: bytes) -> None:
        if self._session is not None:
            self._hub.incoming(self._session, piece)
        elif self._hub.alive:
            self._greet(piece)

    def _greet(self, piece: bytes) -> None:
        try:
            frame = self._first.read(piece)
            if frame is not None:
                self._session = self._hub.greeted(frame, self._first)
                self._answers = self._session.out
        except (ContractError, FrameError) as error:
            self._hub.counts["refused: greeting" if isinstance(error, FrameError) else "refused: client"] += 1
            for answer in written("Refused", {"why": plain(error, 1000)}, check=True):
                self._answers.put(answer)
        except Later as error:
            self._hub.counts[f"refused: {error.kind}"] += 1
            self._answers.put(None)

    def receive(self) -> Frame:
        if not self._hub.alive and self._session is None:
            raise Gone("nobody listens")
        while (piece := self._answers.get()) is not None:
            self.down += len(piece)
            if self._session is not None:
                with self._session.lock:
                    self._session.behind = max(0, self._session.behind - len(piece))
            frame = self.reader.read(piece)
            if frame is not None:
                return frame
        raise Gone("the server has closed the stream")

    def close(self) -> None:
        if self._session is not None:
            self._hub.left(self._session, "it has left")
