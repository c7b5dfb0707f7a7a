"""What a scheme costs the server, measured: memory, compute and latency against the number of clients.

A session of a scheme is opened with m clients and computes on random activations; nothing here is a formula. It is
the measured counterpart of Table 1 in the CycleSL paper.

memory    the bytes a session holds, in server halves (weights, gradients, optimizer memory; not the activations)
compute   client batches' worth of training that one step of every client costs the server (forward and backward)
latency   passes through the server half that must follow one another in that step; the rest could run side by side
seconds   of that step here, on one core, one pass after another
bytes     that a client and the server send each other in that step
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cutlayer.clients.messages import Address, CutGrad, Smashed
from cutlayer.clients.waves import Wave
from cutlayer.core.randomness import OwnRandomness
from cutlayer.models import mlp
from cutlayer.nn.flat import Half, Rows, Style
from cutlayer.optim.memory import Memory
from cutlayer.optim.optimizer import Optimizer
from cutlayer.registry import SCHEMES
from cutlayer.schemes.autograd import Message
from cutlayer.schemes.base import Server, Session
from cutlayer.schemes.momentum import FusedMomentum
from cutlayer.schemes.server import TRAINED, Opening, Rules

STEPS = 3  # per client: the first one allocates, the others are measured
FEATURES, CLASSES = 64, 10
HOLDERS = (Rows, Memory, FusedMomentum)


@dataclass(frozen=True)
class Cost:
    """One scheme with m clients."""

    scheme: str
    clients: int
    memory: float
    compute: float
    latency: int
    seconds: float
    bytes: float


class Traced(Server):
    """A server that counts the passes through each copy of the half."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.trained: dict[int, int] = {}  # row -> passes that changed it
        self.looked = False

    def gradient(self, rows: Rows, row: int, *more: Any) -> tuple[Tensor, Tensor]:
        self.trained[row] = self.trained.get(row, 0) + 1
        return super().gradient(rows, row, *more)

    def merged(self, rows: Rows, row: int, where: Address, smashed: Sequence[Smashed]) -> list[CutGrad]:
        self.trained[row] = self.trained.get(row, 0) + 1
        return super().merged(rows, row, where, smashed)

    def backward(self, rows: Rows, row: Mapping[int, int], smashed: Sequence[Message]) -> list[CutGrad]:
        for r in (row[s.address.client] for s in smashed):
            self.trained[r] = self.trained.get(r, 0) + 1
        return super().backward(rows, row, smashed)

    def input_gradients(self, rows: Rows, row: int, smashed: Sequence[Smashed]) -> list[CutGrad]:
        self.looked = True  # frozen: all of them could run side by side
        return super().input_gradients(rows, row, smashed)

    def chain(self) -> int:
        """Return the longest chain of passes that had to wait for one another, since the last call."""
        longest = max(self.trained.values(), default=0) + self.looked
        self.trained, self.looked = {}, False
        return longest


def measure(
    name: str,
    m: int,
    optimizer: Optimizer,
    batch: int,
    width: int = 256,
    depth: int = 4,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Cost:
    """Measure one scheme with m clients, on the back of a wide perceptron and random activations. `given`: its
    parameters."""
    scheme = SCHEMES[name].build(given)
    cpu = torch.device("cpu")
    with OwnRandomness():
        blocks = list(mlp((FEATURES,), CLASSES, width, depth))[1:]
    with torch.no_grad():
        half = Half(blocks, cpu, style=Style("none"))
        server = Traced(half, Rules(optimizer, functional.cross_entropy, 0))
        clients = list(range(m))
        server.begin(
            Opening(1, half.read(), lambda k: 0.01, dict.fromkeys(clients, 100), dict.fromkeys(clients, batch))
        )
        session = scheme.open(server, clients)
        chain, began, sent = 0, 0.0, 0
        for k in range(STEPS):
            if k == 1:
                chain, server.work, began, sent = 0, 0, time.perf_counter(), 0
            for wave in _waves(scheme.traits.order, clients):
                smashed = [_smashed(j, k, batch, width) for j in wave.clients]
                replies = session.step(wave, smashed)
                chain += server.chain()
                sent += sum(message.nbytes for message in (*smashed, *replies))
        steps = STEPS - 1
        return Cost(
            scheme=name + (f"({', '.join(f'{k}={v}' for k, v in given.items())})" if given else ""),
            clients=m,
            memory=retained(session) / server.start.w.nbytes,
            compute=server.work / (TRAINED * batch * steps),
            latency=chain // steps,
            seconds=(time.perf_counter() - began) / steps,
            bytes=sent / (m * steps),
        )


def retained(session: Session) -> int:
    """The bytes of all tensors that a session holds, each storage counted once; without the server's own."""
    seen: dict[int, int] = {}
    todo: list[Any] = list(vars(session).values())
    while todo:
        item = todo.pop()
        if isinstance(item, Tensor):
            storage = item.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
        elif isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, list | tuple):
            todo += item
        elif isinstance(item, HOLDERS) or (hasattr(item, "step") and not isinstance(item, Server)):
            todo += [value for value in vars(item).values() if not isinstance(value, Half | Server)]
    return sum(seen.values())


def _waves(order: str, clients: Sequence[int]) -> Iterator[Wave]:
    """The waves in which every client takes one step."""
    if order == "one_by_one":
        yield from (Wave((j,)) for j in clients)
    else:
        yield Wave(tuple(clients))


def _smashed(client: int, step: int, batch: int, width: int) -> Smashed:
    return Smashed(Address(1, client, step), torch.rand(batch, width), torch.randint(0, CLASSES, (batch,)))
