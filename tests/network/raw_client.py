"""One client by hand: a `ClientSession` with its contract, and the frames of a server that plays a round with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import cutlayer as cl
from cutlayer.clients.codec import Encoded
from cutlayer.clients.messages import Address, Adopt, CutGrad, Features, Plan
from cutlayer.data.schedule import BatchSchedule
from cutlayer.data.source import source
from cutlayer.network.client.session import ClientSession, Terms
from cutlayer.network.client.store import ClientStore
from cutlayer.network.protocol.codec import encode
from cutlayer.network.protocol.contract import agreed
from cutlayer.network.protocol.settings import Limits
from cutlayer.network.transport.frames import Frame, Reader, written
from cutlayer.nn.cut import Layout
from cutlayer.nn.flat import Style, half
from cutlayer.optim.local import joint
from cutlayer.optim.memory import Moments
from tests.network.harness import network, rows

CPU = torch.device("cpu")
LIMITS = Limits(steps=1000, rate=1.0, batch=64)


@dataclass
class RawClient:
    """`plan` is one that the client accepts; `steps` it takes."""

    remote: ClientSession
    plan: Plan
    steps: int

    @property
    def samples(self) -> int:
        return len(self.remote.source)


def raw_client(folder: Path, labels: str = "send", samples: int = 5, **more: Any) -> RawClient:
    """A client of the small network, cut after its first block. `more` goes into its plan."""
    model, layout = network(), Layout(4, tail=int(labels == "stay"))
    data = source(rows((samples,))[0], torch.float32, "data")
    contract = agreed(model, (0, 0), layout, data, 3, CPU)
    own = ClientStore(folder)
    terms = Terms(model, layout, contract, Style("none", None))
    remote = ClientSession(terms, data, own, functional.cross_entropy, LIMITS, CPU)
    plan = Plan(
        Address(3, 1, -1, 0),
        cut=0,
        start=half(model, layout.client(0), CPU).read(),
        schedule=BatchSchedule(batch_size=4, epochs=1),
        optimizer=cl.SGD(lr=0.1),
        eta=0.1,
        loss=functional.cross_entropy if layout.tail else None,
    )
    plan = replace(plan, **more)
    return RawClient(remote, plan, plan.schedule.total(samples))


def memory_of(plan: Plan) -> Moments:
    """A memory that would fit this plan's optimizer."""
    assert plan.start is not None
    return Moments(tuple(torch.full_like(plan.start.w, 0.1) for _ in range(plan.optimizer.moments)), 2)


def frame_of(kind: str, words: dict[str, Any], tensors: Sequence[Tensor] = ()) -> Frame:
    """What would arrive."""
    reader = Reader(2**24)
    found = [reader.read(piece) for piece in written(kind, words, tensors)][-1]
    assert found is not None
    return found


def orders(plan: Plan) -> Encoded:
    return encode(plan)


def played(at: RawClient) -> Iterator[tuple[str, Encoded]]:
    """A round with this client: what goes "down" and what comes "up", in order. It is played as it is asked for."""
    remote, plan, g = at.remote, at.plan, torch.Generator().manual_seed(0)

    def answers(down: Encoded) -> Iterator[tuple[str, Encoded]]:
        yield "down", down
        for up in remote.answer(frame_of(*down)):
            yield "up", up

    def here(step: int) -> Address:
        return replace(plan.address, step=step)

    yield from answers(orders(plan))
    for step in range(at.steps):
        if plan.loss is not None:
            yield from answers(encode(Features(here(step), torch.randn(4, 8, generator=g))))
        square = torch.tensor(0.5, dtype=torch.float64) if joint(plan.local) else None
        yield from answers(encode(CutGrad(here(step), torch.randn(4, 8, generator=g), None, square)))
        if plan.fuses:
            yield from answers(encode(Adopt(here(step + 1), memory_of(plan).m)))
