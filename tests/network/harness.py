"""A server and its clients in one process: over real sockets and mutual TLS, or over a transport in memory."""

from __future__ import annotations

import atexit
import copy
import functools
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cutlayer as cl
from cutlayer.api.network import join, serve
from cutlayer.api.train import rounds
from cutlayer.core.devices import chosen
from cutlayer.data.source import Source, source
from cutlayer.network.client.loop import ClientLoop, Joined, Peer, Workplace
from cutlayer.network.protocol.handshake import Welcome
from cutlayer.network.protocol.settings import Net
from cutlayer.network.server.service import Service
from cutlayer.network.transport import identity
from cutlayer.network.transport.frames import DTYPES
from cutlayer.network.transport.memory import MemoryHub

NAMES = ("ward-0", "ward-1", "ward-2", "ward-3")
SIZES = (12, 20, 9, 16)
PATIENT = 240.0  # seconds for a step, at first; a fourth of it later: no busy machine is that slow
SOON = 60.0  # seconds: whatever should happen has happened by then, however busy the machine is
LINGERS = 20.0  # seconds that a server may need after its last client has ended
Data = list[tuple[torch.Tensor, torch.Tensor]]
Server = int | MemoryHub
"""Where a client finds the server: a port, or a hub in memory."""


def scratch(what: str) -> Path:
    """A folder for as long as the tests last."""
    folder = Path(tempfile.mkdtemp(prefix=f"cutlayer-{what}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def certs() -> Path:
    """An authority, a server's certificate and four clients'; made once."""
    folder = scratch("certs")
    identity.create(folder, ["localhost", "127.0.0.1"])
    for name in NAMES:
        identity.issue(folder, name)
    return folder


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    front = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh())
    last = nn.Linear(8, 3)
    middle = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh())
    return nn.Sequential(front, nn.Sequential(nn.Linear(8, 8), nn.Tanh()), middle, last).to(dtype)


def rows(sizes: Sequence[int] = SIZES, dtype: torch.dtype = torch.float32) -> Data:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 4, generator=g, dtype=dtype), torch.randint(0, 3, (n,), generator=g)) for n in sizes]


def _none_left(ended: list[Joined | BaseException | None], timeout: float) -> None:
    raise AssertionError(f"the server waits for clients, and all of them have ended: {ended}")


@dataclass
class Played:
    """What came of it: the server's result, and each client's, or what it raised."""

    result: cl.Result
    clients: list[Joined | BaseException | None]
    service: Service


def serve_in_memory(
    model: nn.Module, test: Any, net: Net, watch: Callable[[Service], None], **training: Any
) -> cl.Result:
    """`cl.serve` without sockets."""
    known = {name: training[name] for name in ("cut", "labels", "loss", "participation", "device") if name in training}
    service = Service(model, test, net, **known, transport=lambda listen, who, *doors: MemoryHub(*doors))
    run = rounds(model, service.clients, test, **{"backend": "loop", **training})
    with service.open(run):
        watch(service)
        history = list(run)
    return cl.Result(run.model, history)


def in_memory(
    hub: MemoryHub, name: str, data: Any, model: nn.Module, out: Path, training: Mapping[str, Any], device: str = "cpu"
) -> Joined:
    """`cl.join` without sockets."""

    def load(welcome: Welcome) -> tuple[nn.Module, Source]:
        return copy.deepcopy(model), source(data, DTYPES[welcome.dtype], "data")

    peer = Peer("localhost:1", name=name, patience=SOON, dial=hub.dial)
    loss = training.get("loss", nn.functional.cross_entropy)
    return ClientLoop(peer, Workplace(load, out, loss, device=chosen(device)))()


def play(
    out: Path,
    data: Data,
    net: Mapping[str, Any] | None = None,
    guests: Mapping[int, Callable[[Any], Any]] | None = None,
    watch: Callable[[Service], None] = lambda service: None,
    model: nn.Module | None = None,
    memory: bool = False,
    joins_on: str = "cpu",
    **training: Any,
) -> Played:
    """Serve, with a client for each of `data`; `guests[j](server)` takes the place of client j.

    `server` is a port; or, with `memory`, the hub of a transport without sockets. `joins_on`: the clients' device.
    """
    model = network() if model is None else model
    ended: list[Joined | BaseException | None] = [None] * len(data)
    threads: list[threading.Thread] = []
    services: list[Service] = []
    over = threading.Event()

    def client(j: int, server: Server) -> None:
        try:
            if guests and j in guests:
                ended[j] = guests[j](server)
            elif isinstance(server, MemoryHub):
                ended[j] = in_memory(server, NAMES[j], data[j], model, out, training, joins_on)
            else:
                ended[j] = dialling(j, server)
        except BaseException as error:  # told to the test
            ended[j] = error

    def dialling(j: int, port: int) -> Joined:
        return join(
            f"localhost:{port}",
            data[j],
            model=model,
            certs=certs() / NAMES[j],
            out=out,
            patience=SOON,
            loss=training.get("loss", nn.functional.cross_entropy),
            device=joins_on,
        )

    def begin(service: Service) -> None:
        services.append(service)
        watch(service)
        for j in range(len(data)):
            threads.append(
                threading.Thread(target=client, args=(j, service.hub if memory else service.hub.port), daemon=True)
            )
            threads[-1].start()
        threading.Thread(target=watch_over, args=(service,), daemon=True).start()

    def watch_over(service: Service) -> None:
        """End a server that waits for clients of which none is left."""
        for thread in threads:
            thread.join()
        if not over.wait(LINGERS):
            service.hub.next = functools.partial(_none_left, ended)  # type: ignore[method-assign]

    settings = replace(
        Net("127.0.0.1:0", None if memory else certs(), min_clients=len(data), deadline=PATIENT, grace=10.0),
        **(net or {}),
    )
    serving = serve_in_memory if memory else serve
    try:
        result = serving(model, data[0], net=settings, watch=begin, **training)
    finally:
        over.set()
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive(), "a client hangs"
    return Played(result, ended, services[0])
