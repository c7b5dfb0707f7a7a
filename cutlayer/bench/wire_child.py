"""The clients' end of `cutlayer bench --net`.

python -m cutlayer.bench.wire_child echo CERTS PORT BARE_PORT
python -m cutlayer.bench.wire_child clients CERTS PORT N FOLDER
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import sys
import threading
from pathlib import Path

import grpc
import torch

from cutlayer.api.network import join
from cutlayer.bench.cases import CASES
from cutlayer.network.transport import identity
from cutlayer.network.transport.dial import GrpcLine
from cutlayer.network.transport.grpc_hub import METHOD, OPTIONS
from cutlayer.network.transport.line import Gone

START = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"


def echo(certs: str, port: str, bare_port: str) -> None:
    """Send back everything that arrives, as frames and as bare bytes."""
    who = identity.read(Path(certs), "client-0")
    threading.Thread(target=_bare, args=(who, bare_port), daemon=True).start()
    line = GrpcLine(f"localhost:{port}", who)
    line.greet({})
    line.reader.limit = 2**21
    with contextlib.suppress(Gone):
        while True:
            frame = line.receive()
            line.send("Smashed", frame.words, frame.tensors)


def _bare(who: identity.Identity, port: str) -> None:
    credentials = grpc.ssl_channel_credentials(who.ca, who.key, who.cert)
    out: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    call = grpc.secure_channel(f"localhost:{port}", credentials, OPTIONS).stream_stream(METHOD)(iter(out.get, None))
    with contextlib.suppress(grpc.RpcError):
        for piece in call:
            out.put(piece)


def clients(certs: str, port: str, n: int, folder: str) -> None:
    """Run n client processes, forked from this one where that is possible, each with one torch thread."""
    torch.set_num_threads(1)
    context = multiprocessing.get_context(START)
    crowd = [context.Process(target=_client, args=(certs, port, j, folder)) for j in range(n)]  # type: ignore[attr-defined]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()


def _client(certs: str, port: str, j: int, folder: str) -> None:
    torch.set_num_threads(1)
    case = CASES["tiny-cnn"]
    model, g = case.build(), torch.Generator().manual_seed(0)
    shape = (case.batch, *case.shape)
    data = (torch.randn(shape, generator=g), torch.randint(0, case.classes, (case.batch,), generator=g))
    join(f"localhost:{port}", data, model=model, certs=f"{certs}/client-{j}", out=f"{folder}/{j}", patience=60.0)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "echo":
        echo(*rest)
    else:
        clients(rest[0], rest[1], int(rest[2]), rest[3])
