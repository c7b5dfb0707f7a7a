"""The server's end: clients dial in, each has one stream, and frames go both ways.

The streams live in a thread of their own. Whoever drives the training sends through a `Connection` and takes what
happens, one thing after another, from `Hub.next`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc
import grpc.aio
from torch import Tensor

from cutlayer.errors import ContractError, FrameError, StoreError
from cutlayer.network.transport import Code, plain
from cutlayer.network.transport.descriptors import connections
from cutlayer.network.transport.frames import Frame, Reader, written
from cutlayer.network.transport.identity import Identity, check_name, client_warning
from cutlayer.network.transport.reload import Reminders, server_credentials

METHOD = "/cutlayer.Stream/Join"
GREETING = 2**16  # bytes of a frame before a client is known
PATIENCE = 20.0  # seconds for a greeting
HANDSHAKE = 10.0  # seconds for everything before it
IDLE = 60.0  # seconds that a connection may be there without a stream
LEAVING = 2.0  # seconds for what is under way to end, once the server has
VISITS, MINUTE = 30, 60.0  # so many streams of one client in so many seconds
NAMES = 10_000  # clients whose visits are counted
OPTIONS = [
    ("grpc.max_send_message_length", 4 * 2**20),
    ("grpc.max_receive_message_length", 4 * 2**20),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.so_reuseport", 0),
]
UNREAD = 4  # frames of a client that wait to be taken; it can send no more until they are
GRANT = 4  # frames that a client may send for each that it is sent: what was asked for, and some twice
SAVED = 8  # frames that it may send at once, at most
log = logging.getLogger(__name__)
Admit = Callable[[str, dict[str, Any]], dict[str, Any]]
"""(name, words of its greeting) -> words of the answer; a ContractError refuses it, with its text as the reason."""


@dataclass
class Event:
    """What happened: a client came, went, or sent a frame."""

    kind: Literal["came", "went", "frame"]
    session: Connection
    frame: Frame | None = None
    why: str = ""
    at: float = field(default_factory=time.monotonic)


@dataclass
class Connection:
    """One client's stream, from its greeting to its end."""

    name: str
    loop: asyncio.AbstractEventLoop
    reader: Reader
    check: bool  # frames carry a checksum: no TLS guards them
    out: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(UNREAD))
    limit: int = 0  # bytes of the longest frame that has been asked of it; a late one may still come
    behind: int = 0  # bytes sent that it has not taken yet
    up: int = 0  # bytes
    down: int = 0
    alive: bool = True
    ready: bool = False
    credit: int = GRANT  # frames it may still send

    def send(
        self, kind: str, words: dict[str, Any], tensors: Sequence[Tensor] = (), code: Code = "raw", zstd: bool = False
    ) -> None:
        """From any thread. A stream that has ended meanwhile says so by itself."""
        for piece in written(kind, words, tensors, code, zstd, self.check):
            self.down += len(piece)
            self._put(piece)
        self._soon(self._grant)

    def heard(self, frame: Frame) -> None:
        """Count a frame of the client; a FrameError if it was not asked for so many."""
        if frame.kind == "Ready":
            if self.ready:
                raise FrameError("a second 'Ready'")
            self.ready = True
            return
        self.credit -= 1
        if self.credit < 0:
            raise FrameError(f"a {frame.kind[:20]!r}, more than it was asked for")

    def close(self) -> None:
        """After what has been sent."""
        self._put(None)

    def taken(self) -> None:
        """One of its frames is no longer waiting."""
        self._soon(self.room.release)

    def _put(self, piece: bytes | None) -> None:
        self._soon(lambda: self._queue(piece))

    def _grant(self) -> None:
        self.credit = min(self.credit + GRANT, SAVED)

    def _queue(self, piece: bytes | None) -> None:
        self.behind += len(piece or b"")
        self.out.put_nowait(piece)

    def _soon(self, act: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the stream
            self.loop.call_soon_threadsafe(act)


class Later(Exception):
    """A client is put off: it may come again, and does so by itself."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class Hub:
    """Listens, until `stop`. Without an identity nothing is encrypted and clients say themselves who they are."""

    def __init__(self, listen: str, identity: Identity | None, admit: Admit, revoked: Callable[[], set[str]]) -> None:
        self.listen, self.identity, self.admit, self.revoked = listen, identity, admit, revoked
        self.sessions: dict[str, Connection] = {}
        self.counts: collections.Counter[str] = collections.Counter()  # streams, and refusals by kind
        self.up = self.down = 0  # bytes of streams that have ended
        self.port = 0
        self._remind = Reminders(log.warning)
        self._visits: collections.OrderedDict[str, collections.deque[float]] = collections.OrderedDict()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="cutlayer-net", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if (error := self._ready.get()) is not None:
            why = str(error).partition("; set GRPC_VERBOSITY")[0]
            raise ContractError(f"listen = {self.listen!r}: {why}; expected HOST:PORT that is free") from error

    @property
    def alive(self) -> bool:
        """Whether it still listens."""
        return self._thread.is_alive()

    def next(self, timeout: float) -> Event | None:
        """The next thing that happened, or None after `timeout` seconds."""
        try:
            event = self._events.get(timeout=timeout) if timeout else self._events.get_nowait()
        except queue.Empty:
            return None
        if event.kind == "frame":
            event.session.taken()
        return event

    def stop(self, grace: float = 2.0) -> None:
        """Let what has been sent go out, then end all streams."""
        loop = self._loop
        if loop is None or not self._thread.is_alive():
            return
        for session in list(self.sessions.values()):
            session.close()
        with contextlib.suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(self._server.stop(grace), loop)
        self._thread.join(grace + 5)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        try:
            guards = [
                ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE)),
                ("grpc.max_connection_idle_ms", int(1000 * IDLE)),
                ("grpc.max_allowed_incoming_connections", connections()),
            ]
            self._server = grpc.aio.server(options=[*OPTIONS, *guards])
            handler = grpc.stream_stream_rpc_method_handler(self._stream)
            service, method = METHOD.strip("/").split("/")
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
            if self.identity is None:
                self.port = self._server.add_insecure_port(self.listen)
            else:
                credentials = server_credentials(self.identity, log.warning)
                self.port = self._server.add_secure_port(self.listen, credentials)
            await self._server.start()
        except BaseException as error:  # told to whoever called `start`
            self._ready.put(error)
            return
        self._loop = asyncio.get_running_loop()
        self._ready.put(None)
        await self._server.wait_for_termination()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        if rest:  # gRPC's own, which end by themselves; one that is cancelled instead prints a traceback
            await asyncio.wait(rest, timeout=LEAVING)

    async def _stream(self, _: Any, context: Any) -> None:
        """One client, as long as it stays."""
        reader = Reader(GREETING)
        self.counts["streams"] += 1
        try:
            session, answer = await self._greeted(reader, context)
        except (ContractError, FrameError, TimeoutError) as error:
            words = {"why": plain(error, 1000) or "no greeting in time"}
            self._refused(
                context, words["why"], "greeting" if isinstance(error, FrameError | TimeoutError) else "client"
            )
            for piece in written("Refused", words):
                await context.write(piece)
            return
        except Later as error:  # not for good: the client tries again by itself
            self._refused(context, str(error), error.kind)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        before = self.sessions.get(session.name)
        if before is not None:  # it has lost its old stream, whether we have noticed or not
            self._ended(before, "it has come anew")
            before.out.put_nowait(None)
        self.sessions[session.name] = session
        why = "the stream has ended"
        incoming: asyncio.Task[None] | None = None
        try:
            for piece in written("Welcome", answer, check=session.check):
                await context.write(piece)
            self._events.put(Event("came", session))
            incoming = asyncio.create_task(self._incoming(session, context))
            while (going := await session.out.get()) is not None:
                await context.write(going)
                session.behind -= len(going)
            why = "closed"
        except (grpc.RpcError, grpc.aio.UsageError, asyncio.CancelledError) as error:
            why = type(error).__name__
            raise
        finally:
            if incoming is not None:
                incoming.cancel()
            self._ended(session, why)

    def _refused(self, context: Any, why: str, kind: str) -> None:
        self.counts[f"refused: {kind}"] += 1
        names = context.auth_context().get("x509_common_name", [b"?"])
        log.warning("%s (%s) is refused: %s", plain(names[0].decode(errors="replace"), 63), context.peer(), why)

    async def _greeted(self, reader: Reader, context: Any) -> tuple[Connection, dict[str, Any]]:
        frame = None
        async with asyncio.timeout(PATIENCE):
            while frame is None:
                piece = await context.read()
                if piece is grpc.aio.EOF:
                    raise FrameError("the stream ended before a greeting")
                frame = reader.read(piece)
        if frame.kind != "Hello":
            raise FrameError(f"a {frame.kind[:20]!r} before a greeting")
        if self.identity is None:
            name = str(frame.words.get("name", ""))
        else:
            names = context.auth_context().get("x509_common_name", [b""])
            name = names[0].decode(errors="replace")
        check_name(name)
        self._visited(name)
        try:
            revoked = self.revoked()
        except StoreError as error:
            raise Later("admission", f"nobody is admitted: {error}") from error
        if name in revoked:
            raise ContractError(f"client {name}: its certificate has been revoked")
        for pem in context.auth_context().get("x509_pem_cert", [])[:1]:
            self._remind(name, client_warning(pem))
        answer = self.admit(name, frame.words)
        loop = asyncio.get_running_loop()
        return Connection(name, loop, reader, self.identity is None), answer

    def _visited(self, name: str) -> None:
        """Put off a client that comes again and again."""
        visits = self._visits.setdefault(name, collections.deque(maxlen=VISITS))
        self._visits.move_to_end(name)
        if len(self._visits) > NAMES:
            self._visits.popitem(last=False)
        now = time.monotonic()
        if len(visits) == VISITS and now - visits[0] < MINUTE:
            raise Later("rate", f"client {name}: {VISITS} streams in {now - visits[0]:.0f} seconds; come back later")
        visits.append(now)

    async def _incoming(self, session: Connection, context: Any) -> None:
        """What a client sends; the first thing that is wrong with it ends its stream."""
        why = "it has left"
        try:
            while (piece := await context.read()) is not grpc.aio.EOF:
                session.up += len(piece)
                frame = session.reader.read(piece)
                if frame is not None and session.alive:
                    session.heard(frame)
                    await session.room.acquire()
                    self._events.put(Event("frame", session, frame))
        except FrameError as error:
            why = f"it sent {error}"
            self.counts["refused: frame"] += 1
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            why = f"its stream broke: {type(error).__name__}"
        self._ended(session, why)
        session.out.put_nowait(None)

    def _ended(self, session: Connection, why: str) -> None:
        if session.alive:
            session.alive = False
            self.up, self.down = self.up + session.up, self.down + session.down
            if self.sessions.get(session.name) is session:
                del self.sessions[session.name]
            self._events.put(Event("went", session, why=why))
