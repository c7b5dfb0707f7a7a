"""What a round produces: the state that lives on, the record for the journal, and the ledger of its costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutlayer.clients import state
from cutlayer.clients.messages import Attached, CutGrad, Smashed
from cutlayer.clients.state import NOTHING, ClientState, Owner
from cutlayer.core.group import ONE_PROCESS
from cutlayer.core.threads import Workers
from cutlayer.engine.metrics import Series
from cutlayer.engine.spill import OwnedStates
from cutlayer.errors import Diverged
from cutlayer.nn.flat import Vectors
from cutlayer.optim.averaging import Mean
from cutlayer.optim.memory import Moments
from cutlayer.optim.update import State

Detail = Mapping[str, Sequence[Any]]
"""Columns of equal length, with a row for each client that was selected (`engine/detail.py`)."""


@dataclass(frozen=True)
class Round:
    """The record of one round. A journal of another version may lack any field but `n`, so each has a default.

    >>> Round(n=3, accuracy=0.912, loss=0.3121, participants=12, steps=240, bytes_up=1_468_006, seconds=0.8)
    Round 3: accuracy 91.20 %, loss 0.312, 12 clients, 240 steps, 1.4 MiB, 0.8 s
    """

    n: int
    accuracy: float | None = None  # with a test set per client: pooled over all clients
    loss: float | None = None
    f1: float | None = None
    mcc: float | None = None
    auc: float | None = None
    metric: float | None = None  # the caller's own metric
    participants: int = 0  # clients that finished the round
    skipped: int = 0  # selected, but without a full batch
    lost: int = 0  # started the round, but did not finish it
    steps: int = 0
    samples: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    macs_client: int = 0
    macs_server: int = 0
    sim_seconds: float | None = None
    seconds: float = 0.0
    drift_client: float | None = None  # mean distance of the halves to their mean; None: they trained in groups
    drift_server: float | None = None
    train_loss: float | None = None
    clip_rate: float | None = None  # share of the gradients that the local rule clipped
    lr: float | None = None  # at the round's first step; None, here and for the cut: the journal does not say
    cut: int | None = None
    clients: tuple[int, ...] = ()  # that finished the round
    client_steps: tuple[int, ...] = ()  # of each of them
    client_samples: tuple[int, ...] = ()  # of each of them
    series: Mapping[str, Series] = field(default_factory=dict)  # with a test set per client: sampled, ever, all
    faults: tuple[str, ...] = ()  # over a network: who left the round, or an attempt at it, and why
    more: Mapping[str, Any] = field(default_factory=dict)  # fields that only a newer version knows
    detail: Detail | None = field(default=None, compare=False)  # with `detail=True`; it is not in the journal

    def __repr__(self) -> str:
        scores = {"loss": self.loss, "metric": self.metric}
        parts = [
            *([] if self.accuracy is None else [f"accuracy {100 * self.accuracy:.2f} %"]),
            *(f"{name} {value:.3g}" for name, value in scores.items() if value is not None),
            counted(self.participants, "client"),
            *(f"{many:,} {what}" for what, many in (("skipped", self.skipped), ("lost", self.lost)) if many),
            *([counted(len(self.faults), "fault")] if self.faults else []),
            counted(self.steps, "step"),
            _size(self.bytes_up + self.bytes_down),
            f"{self.seconds:,.1f} s" if self.seconds >= 0.1 else f"{1000 * self.seconds:.0f} ms",
        ]
        return f"Round {self.n}: {', '.join(parts)}"


def counted(many: int, what: str) -> str:
    """Return a number and what it counts, in words.

    >>> counted(1, "client"), counted(1200, "step")
    ('1 client', '1,200 steps')
    """
    return f"{many:,} {what}{'' if many == 1 else 's'}"


def _size(many: int) -> str:
    """Return a number of bytes, in words."""
    if many < 2**10:
        return f"{many} B"
    power = min((many.bit_length() - 1) // 10, 4)
    return f"{many / 2 ** (10 * power):,.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


TUPLES = ("clients", "client_steps", "client_samples", "faults")  # fields of a Round that JSON turns into lists


@dataclass(frozen=True)
class Global:
    """Everything that lives on between rounds, and so everything a checkpoint holds."""

    n: int
    W: Vectors  # where clients keep their fronts: the front that a new client starts with, and the back
    update: State = field(default_factory=dict)
    owned: OwnedStates = field(default_factory=dict)
    participations: Mapping[int, int] = field(default_factory=dict)  # the rounds each client has taken part in

    def named(self) -> dict[str, Tensor]:
        """Return everything but the round and the owned states as tensors with names, to be stored or sent."""
        named = dict(zip(Vectors._fields, self.W, strict=True))
        named |= {f"update.{key}": tensor for key, tensor in self.update.items()}
        named["participations.client"] = torch.tensor(list(self.participations.keys()), dtype=torch.int64)
        named["participations.rounds"] = torch.tensor(list(self.participations.values()), dtype=torch.int64)
        return named

    @classmethod
    def read(cls, n: int, named: Mapping[str, Tensor], owned: OwnedStates) -> Global:
        """Return the state after round n from what `named` returned, and the owned states."""
        W = Vectors(*(named[name] for name in Vectors._fields))
        update = {name.removeprefix("update."): found for name, found in named.items() if name.startswith("update.")}
        clients, rounds = (named[f"participations.{name}"].tolist() for name in ("client", "rounds"))
        return cls(n, W, update, owned, dict(zip(clients, rounds, strict=True)))

    def front(self, client: int) -> Vectors | None:
        """Return the front that a client keeps, or None."""
        front = self.client(client).front
        return None if front is None else Vectors(*(v.to(self.W.w.device) for v in front))

    def client(self, j: int, round: int | None = None) -> ClientState:
        """Return what client j keeps; `round`: note that it was used in this round."""
        owned = self.owned.get(state.client(j))
        return NOTHING if owned is None else ClientState.read(owned.open(round))

    def moments(self, owner: Owner, round: int) -> Moments | None:
        """Return the optimizer memory of an owner, or None; note that it was used in this round."""
        owned = self.owned.get(owner)
        return None if owned is None else Moments.read(owned.open(round))

    def merged(self, sizes: Sequence[int]) -> Vectors:
        """Return the mean of the clients' own fronts, weighted by size, joined to W_s. Reads one front at a time."""
        seen = sorted(self.participations)
        if not seen:
            return self.W
        total = sum(sizes[j] for j in seen)
        mean: Mean | None = None
        for j in seen:
            if (front := self.front(j)) is not None:
                mean = mean or Mean(front, Workers(), ONE_PROCESS)
                mean.add([front], [sizes[j] / total])
        if mean is None:
            return self.W
        W_c = mean.value
        _, W_s = self.W.split((len(W_c.w), len(W_c.b), len(W_c.i)))
        return Vectors(*(torch.cat(pair) for pair in zip(W_c, W_s, strict=True)))


class Ledger:
    """Counts what a round costs."""

    def __init__(self) -> None:
        self.up = self.down = 0
        self.losses: list[tuple[int, int, Tensor]] = []
        self.work: dict[int, tuple[int, int]] = {}  # of each client: steps, samples
        self.server_work = 0  # samples times forwards
        self.tried = self.clipped = 0  # gradients that a local rule could clip, and those that it clipped
        self.clients: list[int] = []  # that finished the round

    def wave(self, smashed: Sequence[Smashed | Attached], replies: Sequence[CutGrad], partial: bool) -> None:
        """Count a wave; `partial`: its optimizer steps end with a later one."""
        for s in smashed:
            steps, samples = self.work.get(s.address.client, (0, 0))
            self.work[s.address.client] = steps + (not partial), samples + s.samples
        self.up += sum(s.nbytes for s in smashed)
        self.down += sum(r.nbytes for r in replies)
        self.losses += [(r.address.client, r.address.step, r.loss) for r in replies if r.loss is not None]

    def tally(self) -> Tally:
        """Return the ledger in plain numbers."""
        values = torch.stack([loss for *_, loss in self.losses]).tolist() if self.losses else []
        bad = next((i for i, value in enumerate(values) if not math.isfinite(value)), None)
        return Tally(
            self.up,
            self.down,
            math.fsum(values) if bad is None else math.nan,
            len(values),
            [] if bad is None else [*self.losses[bad][:2], values[bad]],
            [[j, *done] for j, done in self.work.items()],
            self.server_work,
            self.tried,
            self.clipped,
            self.clients,
        )


class Tally(NamedTuple):
    """A ledger in plain numbers, so that those of several processes can be added up."""

    up: int = 0
    down: int = 0
    loss: float = 0.0  # summed over all steps
    losses: int = 0  # how many were summed
    bad: Sequence[Any] = ()  # client, step and value of the first loss that is not finite
    work: Sequence[Sequence[int]] = ()  # client, steps, samples
    server_work: int = 0
    tried: int = 0
    clipped: int = 0
    clients: Sequence[int] = ()

    @property
    def steps(self) -> int:
        return sum(steps for _, steps, _ in self.work)

    @property
    def samples(self) -> int:
        return sum(samples for *_, samples in self.work)

    @property
    def train_loss(self) -> float | None:
        """The mean loss over all steps."""
        return self.loss / self.losses if self.losses else None

    def check(self, n: int, rates: str) -> None:
        """Raise if a loss is not finite; checked once a round, not at every step."""
        if self.bad:
            client, step, loss = self.bad
            raise Diverged(f"round {n}: the loss of client {client} became {loss} at its step {step}, {rates}")


def together(tallies: Sequence[Tally]) -> Tally:
    """Combine the tallies of all processes."""
    up, down, _, losses, bad, work, server_work, tried, clipped, clients = zip(*tallies, strict=True)
    return Tally(
        sum(up),
        sum(down),
        math.fsum(tally.loss for tally in tallies),
        sum(losses),
        next((one for one in bad if one), []),
        sorted(line for lines in work for line in lines),
        sum(server_work),
        sum(tried),
        sum(clipped),
        sorted(j for some in clients for j in some),
    )
