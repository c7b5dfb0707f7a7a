"""What `cutlayer bench --net` measures: frames, the round trip of a step, and many client processes, over TLS."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import torch

from cutlayer.api.train import rounds
from cutlayer.bench.cases import CASES
from cutlayer.bench.sections import OURS, Row, run
from cutlayer.bench.timing import spread
from cutlayer.network.protocol.settings import Net
from cutlayer.network.server.service import Service
from cutlayer.network.transport import identity
from cutlayer.network.transport.frames import written
from cutlayer.network.transport.grpc_hub import METHOD, OPTIONS, GrpcHub

MIB = 2**20
AIM_TRIP, AIM_CLIENT = 2.0, 5.0  # times as long as a bare stream; milliseconds per client


def frames() -> Iterator[Row]:
    """The overhead of a frame: bytes on the stream beyond those of the tensor."""
    for kib in (64, 1024, 16 * 1024):
        tensor = torch.randn(kib * 256)
        sent = sum(len(piece) for piece in written("Smashed", {"at": [1000, 1000, 1000, 0]}, [tensor]))
        yield {"KiB": kib, "overhead_percent": 100 * (sent / tensor.nbytes - 1), "aim_percent": 1.0}


def trips(repeats: int) -> Iterator[Row]:
    """The round trip of a step with 1 MiB each way, and of a bare gRPC stream, alternately, to the same process."""
    with tempfile.TemporaryDirectory() as folder:
        certs = _certs(Path(folder), 1)
        who = identity.read(certs, "server")
        hub = GrpcHub("127.0.0.1:0", who, lambda name, words: {}, set)
        bare = Bare(who)
        hub.start()
        with Child("echo", str(certs), str(hub.port), str(bare.port)):
            while (event := hub.next(60.0)) is not None and event.kind != "came":
                pass
            assert event is not None, "nobody came"
            event.session.reader.limit = 2 * MIB
            tensor, raw = torch.randn(MIB // 4), torch.randn(MIB // 4).numpy().tobytes()

            def ours() -> None:
                event.session.send("CutGrad", {"at": [1, 1, 1, 0]}, [tensor])
                while (back := hub.next(60.0)) is not None and back.kind != "frame":
                    pass
                assert back is not None and back.frame is not None and back.frame.tensors[0].nbytes == MIB

            yield {"MiB": 1, **_trips(ours, lambda: bare.trip(raw), repeats)}
        hub.stop(0.1)
        bare.stop()


def _trips(ours: Callable[[], None], bare: Callable[[], None], repeats: int) -> Row:
    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(20 + 50 * repeats):
        for name, trip in (("ours", ours), ("bare", bare)):
            began = time.perf_counter()
            trip()
            seconds[name].append(time.perf_counter() - began)
    kept = {name: found[20:] for name, found in seconds.items()}
    ratio = spread([a / b for a, b in zip(kept["ours"], kept["bare"], strict=True)])
    times = {f"{name}_ms": 1000 * statistics.median(found) for name, found in kept.items()}
    return {**times, "bare_echo": ratio._asdict() | {"aim": AIM_TRIP}}


def many(repeats: int, n: int = 50, steps: int = 20) -> Iterator[Row]:
    """The time of a step beyond its computation, for each client, with n client processes and a tiny model."""
    case = CASES["tiny-cnn"]
    model, g = case.build(), torch.Generator().manual_seed(0)
    data = (
        torch.randn(case.batch, *case.shape, generator=g),
        torch.randint(0, case.classes, (case.batch,), generator=g),
    )
    turns = 1 + max(repeats, 3)
    arguments: dict[str, Any] = {
        "cut": case.cut,
        "scheme": "smofi",
        "optimizer": OURS,
        "rounds": turns,
        "batch_size": case.batch,
        "local_steps": steps,
    }
    with tempfile.TemporaryDirectory() as folder:
        certs = _certs(Path(folder), n)
        service = Service(model, data, Net("127.0.0.1:0", certs, min_clients=n, deadline=600.0), case.cut)
        remote = rounds(model, service.clients, backend="loop", **arguments)
        local = run(case, model=model, clients=[data] * n, local_steps=steps, backend="loop")
        wall, compute = [], []
        with service.open(remote), Child("clients", str(certs), str(service.hub.port), str(n), folder):
            for turn in range(turns):
                record = next(remote)
                assert record.participants == n, record.faults
                began = time.perf_counter()
                next(local)
                if turn:
                    wall.append(record.seconds)
                    compute.append(time.perf_counter() - began)
    extra = spread([1000 * (a - b) / steps / n for a, b in zip(wall, compute, strict=True)])
    yield {
        "clients": n,
        "ms_per_step": 1000 * statistics.median(wall) / steps,
        "computing_ms": 1000 * statistics.median(compute) / steps,
        "ms_per_client": extra._asdict() | {"aim": AIM_CLIENT},
    }


class Bare:
    """A bare gRPC stream, without frames: bytes out, bytes back."""

    def __init__(self, who: identity.Identity) -> None:
        self._ready = threading.Event()
        self._who, self.port = who, 0
        self._out: asyncio.Queue[bytes] | None = None
        self._back = threading.Semaphore(0)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    async def _serve(self) -> None:
        self._loop, self._out, self._end = asyncio.get_running_loop(), asyncio.Queue(), asyncio.Event()
        server = grpc.aio.server(options=OPTIONS)
        service, method = METHOD.strip("/").split("/")
        handler = grpc.stream_stream_rpc_method_handler(self._stream)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        credentials = grpc.ssl_server_credentials([(self._who.key, self._who.cert)], self._who.ca, True)
        self.port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        self._ready.set()
        await self._end.wait()
        await server.stop(0.1)

    async def _stream(self, _: Any, context: Any) -> None:
        assert self._out is not None
        while True:
            await context.write(await self._out.get())
            assert await context.read() is not grpc.aio.EOF
            self._back.release()

    def trip(self, raw: bytes) -> None:
        assert self._out is not None
        self._loop.call_soon_threadsafe(self._out.put_nowait, raw)
        assert self._back.acquire(timeout=60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(5)


class Child:
    """A child process; at the end of the `with` block it has ten seconds to end."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "cutlayer.bench.wire_child", *words])  # noqa: S603

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _certs(folder: Path, clients: int) -> Path:
    identity.create(folder / "certs", ["localhost"])
    for j in range(clients):
        identity.issue(folder / "certs", f"client-{j}")
    return folder / "certs"
