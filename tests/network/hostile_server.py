"""A server by hand, and a real client that meets it: what the client raises, and what became of its files."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cutlayer as cl
from cutlayer.clients.messages import Plan
from cutlayer.clients.state import ClientState
from cutlayer.errors import FrameError
from cutlayer.network.client.store import ClientStore
from cutlayer.network.protocol.handshake import Welcome, words
from cutlayer.network.protocol.settings import Net
from cutlayer.network.server.service import Service
from cutlayer.network.transport import identity
from cutlayer.network.transport.frames import Frame
from cutlayer.network.transport.grpc_hub import GrpcHub
from cutlayer.network.transport.hub import Connection
from cutlayer.optim.memory import Moments
from tests.network.harness import NAMES, SOON, certs, network, rows
from tests.network.raw_client import LIMITS, raw_client

DATA = rows((5,))[0]
MODEL = network()
RUN = "abc123"
Script = Callable[[Connection, Frame], None]
"""What a server does about a frame; the first one is Ready."""


@functools.cache
def welcome(labels: str = "send") -> Welcome:
    net = Net("127.0.0.1:0", certs())
    return Service(MODEL, DATA, net, labels=labels, run_id=RUN).welcome


@functools.cache
def plan(labels: str = "send", **more: Any) -> Plan:
    return raw_client(Path("nowhere"), labels, **more).plan


def kept(out: Path, labels: str) -> ClientStore:
    """What this client has from rounds 2 and 3."""
    own, start = ClientStore(out / RUN / NAMES[0]), plan(labels).start
    assert start is not None
    for n in (2, 3):
        own.keep(n, ClientState(start, Moments((torch.ones_like(start.w),), n), n), n - 1)
    return own


def files(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def met(out: Path, script: Script, said: dict[str, Any] | None = None, join: Any = None) -> Any:
    """What a real client ends with, or raises, that meets a server who says this and then follows the script."""
    hello = words(welcome()) if said is None else said
    hub = GrpcHub("127.0.0.1:0", identity.read(certs(), "server"), lambda name, asked: hello, set)
    hub.start()
    ended: list[Any] = []

    def client() -> None:
        try:
            dial = functools.partial(cl.join, model=MODEL, certs=certs() / NAMES[0], limits=LIMITS)
            ended.append((join or dial)(f"127.0.0.1:{hub.port}", DATA, out=out, patience=SOON))
        except BaseException as error:  # told to the test
            ended.append(error)

    thread = threading.Thread(target=client, daemon=True)
    thread.start()
    until = time.monotonic() + SOON
    while thread.is_alive() and time.monotonic() < until:
        event = hub.next(0.02)
        if event is not None and event.frame is not None:
            script(event.session, event.frame)
    hub.stop(0.1)
    thread.join(SOON)
    assert ended, "the client hangs"
    return ended[0]


def leaves(out: Path, script: Script, match: str, said: dict[str, Any] | None = None, of: Any = FrameError) -> None:
    """The client raises, and its files are as they were: no more, no fewer, the same bytes."""
    kept(out, "send" if said is None else said["labels"])
    before = files(out)
    assert len(before) == 4  # of two rounds, each twice
    error = met(out, script, said)
    assert isinstance(error, of) and match in str(error), repr(error)
    assert files(out) == before


def nan(x: Tensor, value: float = math.nan) -> Tensor:
    """With one number replaced."""
    x = x.clone()
    x.view(-1)[-1] = value
    return x
