"""Clients that break the rules on purpose: a real one's messages, changed on their way out."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.clients.codec import Encoded
from cutlayer.data.source import source
from cutlayer.network.client.loop import ClientLoop, Peer, Workplace
from cutlayer.network.protocol.handshake import Hello, Welcome, read, words
from cutlayer.network.transport import identity
from cutlayer.network.transport.dial import GrpcLine
from cutlayer.network.transport.line import Gone, Line
from cutlayer.network.transport.memory import MemoryHub
from tests.clients.faulty import Fault, FaultyCohort
from tests.network.harness import NAMES, SOON, Data, Server, certs, network

Bend = Callable[[Encoded], Iterable[Encoded]]
"""What really goes out in place of a message."""
ClientData = Callable[[int], Any]


def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is lost because the machine is busy, and nobody who is gone is waited for at the end."""
    monkeypatch.setattr("cutlayer.network.server.cohort.Patience.seconds", SOON)
    monkeypatch.setattr("cutlayer.network.server.service.LINGER", 0.2)


def dialled(server: Server, name: str) -> tuple[Line, Welcome]:
    """A line to the server, greeted."""
    if isinstance(server, MemoryHub):
        line: Line = server.dial()
        return line, read(line.greet(words(Hello(name=name))), Welcome)
    port = server
    line = GrpcLine(f"127.0.0.1:{port}", identity.read(certs() / name))
    return line, read(line.greet(words(Hello())), Welcome)


def bent(
    j: int, data: Data, bend: Bend, out: Path, log: list[str] | None = None, model: nn.Module | None = None
) -> ClientData:
    """Client j, who computes as it should and sends what it likes. `log`: what ended it."""
    model = network() if model is None else model

    def load(welcome: Welcome) -> tuple[nn.Module, Any]:
        return copy.deepcopy(model), source(data[j], torch.float32, "data")

    def guest(server: Server) -> None:
        line, welcome = dialled(server, NAMES[j])
        peer = Peer("127.0.0.1:1", name=NAMES[j], patience=1.0)
        remote = ClientLoop(peer, Workplace(load, out))._begin(welcome)
        try:
            line.reader.limit = remote.limit
            line.send("Ready", {"samples": len(data[j][1])})
            while (frame := line.receive()).kind != "Bye":
                for answer in remote.answer(frame):
                    for kind, said, tensors in bend(answer):
                        line.send(kind, said, tensors)
                line.reader.limit = remote.limit
        except Gone as error:
            if log is None:
                raise
            log.append(str(error))
        finally:
            line.close()

    return guest


def simulated(data: Data, faults: Sequence[Fault], model: nn.Module | None = None, **training: Any) -> nn.Module:
    """The simulator's weights when these clients are lost at these points."""
    model = network() if model is None else model
    plain = cl.rounds(model, data, data[0], backend="loop", **training)
    cohort = FaultyCohort(plain.setup.cohort, faults)
    run = cl.Run(copy.deepcopy(model), dataclasses.replace(plain.setup, cohort=cohort), plain.state, None)
    assert len(list(run)) == plain.setup.rounds and cohort.unfired == []
    return run.model


def at(answer: Encoded) -> tuple[str, int, int]:
    """Which message it is: kind, round, step."""
    kind, said, _ = answer
    return kind, said["address"][0], said["address"][2]


def like(answer: Encoded, *tensors: Tensor, kind: str | None = None, **said: Any) -> Encoded:
    """The message with other tensors, if any are given, another kind or other words; a word of None is left out."""
    merged = {name: value for name, value in {**answer[1], **said}.items() if value is not None}
    return Encoded(kind or answer[0], merged, list(tensors) or answer[2])
