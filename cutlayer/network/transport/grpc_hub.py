"""The server's end of gRPC. All streams live in one separate thread; they use TLS if the server has an identity."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from cutlayer.errors import ContractError, FrameError
from cutlayer.network.transport import plain
from cutlayer.network.transport.descriptors import connections
from cutlayer.network.transport.frames import Reader, written
from cutlayer.network.transport.hub import GREETING, UNREAD, Admit, Connection, Event, Hub, Later, hello_of
from cutlayer.network.transport.identity import Identity, client_warning
from cutlayer.network.transport.reload import Reminders, server_credentials

METHOD = "/cutlayer.Stream/Join"
PATIENCE = 20.0  # seconds for a greeting
HANDSHAKE = 10.0  # seconds for the handshake before it
IDLE = 60.0  # seconds that a connection may stay without a stream
LEAVING = 2.0  # seconds for gRPC's own tasks to end after the server has stopped
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
log = logging.getLogger(__name__)


class GrpcConnection(Connection):
    """The server's end of a gRPC stream; it lives in the hub's event loop."""

    def __init__(self, name: str, reader: Reader, check: bool) -> None:
        super().__init__(name, reader, check)
        self.cert: bytes | None = None  # what it has shown
        self.loop = asyncio.get_running_loop()
        self.out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.room = asyncio.Semaphore(UNREAD)

    def taken(self) -> None:
        self._soon(self.room.release)

    def _put(self, piece: bytes | None) -> None:
        self._soon(lambda: self._queue(piece))

    def _queue(self, piece: bytes | None) -> None:
        self.behind += len(piece or b"")
        self.out.put_nowait(piece)

    def _soon(self, act: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the stream
            self.loop.call_soon_threadsafe(act)


class GrpcHub(Hub):
    """Listens until `stop`. Without an identity nothing is encrypted, and clients choose their own names."""

    def __init__(self, listen: str, identity: Identity | None, admit: Admit, revoked: Callable[[], set[str]]) -> None:
        super().__init__(admit, revoked)
        self.listen, self.identity = listen, identity
        self._remind = Reminders(log.warning)
        self._lock = threading.Lock()
        self._connections = self._connections_before = 0  # with TLS: accepted so far, and at the last look
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
        return self._thread.is_alive()

    def stop(self, grace: float = 2.0) -> None:
        loop = self._loop
        if loop is None or not self._thread.is_alive():
            return
        for session in list(self.sessions.values()):
            session.close()
        with contextlib.suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(self._server.stop(grace), loop)
        self._thread.join(grace + 5)

    def look(self) -> int:
        """A connection without an accepted certificate, or a silent one, never becomes a stream. Compare the streams
        with the connections as they were at the last look, so that a client that is just dialling is not counted. Also
        warn of certificates of streams that have stood for long, if they end soon."""
        for name, session in list(self.sessions.items()):
            if isinstance(session, GrpcConnection) and session.cert is not None:
                self._remind(name, client_warning(session.cert))
        ended = self._connections_before - self.counts["streams"]
        new = ended - self.counts["refused: connection"]
        if new > 0:
            self.counts["refused: connection"] = ended
            log.warning("%d connections ended before a greeting: without an accepted certificate, or silent", new)
        self._connections_before = self._connections
        return max(new, 0)

    def _connected(self) -> None:
        with self._lock:
            self._connections += 1

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
                credentials = server_credentials(self.identity, log.warning, self._connected)
                self.port = self._server.add_secure_port(self.listen, credentials)
            await self._server.start()
        except BaseException as error:  # `start` raises it
            self._ready.put(error)
            return
        self._loop = asyncio.get_running_loop()
        self._ready.put(None)
        await self._server.wait_for_termination()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        if rest:  # gRPC's own tasks, which end by themselves; cancelling them would print a traceback
            await asyncio.wait(rest, timeout=LEAVING)

    async def _stream(self, _: Any, context: Any) -> None:
        """Serve one client as long as it is connected."""
        reader = Reader(GREETING)
        self.counts["streams"] += 1
        try:
            session, answer = await self._greeted(reader, context)
        except (ContractError, FrameError) as error:
            words = {"why": plain(error, 1000)}
            self._refused(context, words["why"], "greeting" if isinstance(error, FrameError) else "client")
            for piece in written("Refused", words):
                await context.write(piece)
            return
        except Later as error:  # put off: the client tries again by itself
            self._refused(context, str(error), error.kind)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        self._begun(session)
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

    async def _greeted(self, reader: Reader, context: Any) -> tuple[GrpcConnection, dict[str, Any]]:
        frame = None
        try:
            async with asyncio.timeout(PATIENCE):
                while frame is None:
                    piece = await context.read()
                    if piece is grpc.aio.EOF:
                        raise FrameError("the stream ended before a greeting")
                    frame = reader.read(piece)
        except TimeoutError as error:  # its machine was suspended, or a proxy holds it up
            raise Later("greeting", "no greeting in time") from error
        hello_of(frame)
        if self.identity is None:
            name = str(frame.words.get("name", ""))
        else:
            names = context.auth_context().get("x509_common_name", [b""])
            name = names[0].decode(errors="replace")
        answer = self._admitted(name, frame)
        session = GrpcConnection(name, reader, self.identity is None)
        for session.cert in context.auth_context().get("x509_pem_cert", [])[:1]:
            self._remind(name, client_warning(session.cert))
        return session, answer

    async def _incoming(self, session: GrpcConnection, context: Any) -> None:
        """Receive what a client sends; end its stream at the first error."""
        why = "it has left"
        try:
            while (piece := await context.read()) is not grpc.aio.EOF:
                frame = session.heard(piece)
                if frame is not None:
                    await session.room.acquire()
                    self._events.put(Event("frame", session, frame))
        except FrameError as error:
            why = f"it sent {error}"
            self.counts["refused: frame"] += 1
            log.warning("%s: its stream is ended: %s", session.name, why)
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            why = f"its stream broke: {type(error).__name__}"
        self._ended(session, why)
        session.out.put_nowait(None)
