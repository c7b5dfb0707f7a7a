"""What a round leaves: the state that lives on, the record that is written down, the ledger of what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cutlayer.errors import Diverged
from cutlayer.flat import Vectors, mean
from cutlayer.kept import Kept
from cutlayer.messages import Attached, CutGrad, Smashed
from cutlayer.metrics import Series
from cutlayer.update import State


@dataclass(frozen=True)
class Round:
    """The record of one round."""

    n: int
    accuracy: float | None  # with a test set per client: pooled over all clients
    loss: float | None
    f1: float | None
    mcc: float | None
    auc: float | None
    metric: float | None  # the caller's own
    participants: int  # clients that finished the round
    skipped: int  # selected, but without a full batch
    lost: int  # opened, but silent before the end
    steps: int
    samples: int
    bytes_up: int
    bytes_down: int
    macs_client: int
    macs_server: int
    sim_seconds: float | None
    seconds: float
    drift_client: float  # mean distance of the halves to their mean, before averaging
    drift_server: float
    train_loss: float | None
    clip_rate: float | None  # share of the gradients that the local rule clipped
    lr: float
    cut: int
    clients: tuple[int, ...]  # who finished it
    client_steps: tuple[int, ...]  # and with how many steps
    client_samples: tuple[int, ...]  # and samples
    series: Mapping[str, Series] = field(default_factory=dict)  # with a test set per client: sampled, ever, all


@dataclass(frozen=True)
class Global:
    """Everything that lives on between rounds, and so everything a checkpoint holds."""

    n: int
    W: Vectors  # where clients keep their half: the half of one that has not taken part yet, and the server's
    update: State = field(default_factory=dict)
    kept: Kept = field(default_factory=dict)
    turns: Mapping[int, int] = field(default_factory=dict)  # the rounds each client has taken part in

    def front(self, client: int) -> Vectors | None:
        """The half a client keeps, if it does."""
        parcel = self.kept.get(f"client/{client}")
        tensors = parcel.open() if parcel is not None else {}
        return Vectors(*(tensors[name].to(self.W.w.device) for name in "wbi")) if "w" in tensors else None

    def merged(self, sizes: Sequence[int]) -> Vectors:
        """Where clients keep their half: the mean of their halves, by size, joined to W_s. One is read at a time."""
        seen = sorted(self.turns)
        if not seen:
            return self.W
        total = sum(sizes[j] for j in seen)
        W_c = mean((front for j in seen if (front := self.front(j)) is not None), [sizes[j] / total for j in seen])
        _, W_s = self.W.split((len(W_c.w), len(W_c.b), len(W_c.i)))
        return Vectors(*(torch.cat(pair) for pair in zip(W_c, W_s, strict=True)))


class Ledger:
    """What a round cost."""

    def __init__(self) -> None:
        self.up = self.down = 0
        self.losses: list[tuple[int, int, Tensor]] = []
        self.work: dict[int, tuple[int, int]] = {}  # of each client: steps, samples

    def wave(self, smashed: Sequence[Smashed | Attached], replies: Sequence[CutGrad]) -> None:
        for s in smashed:
            steps, samples = self.work.get(s.address.client, (0, 0))
            self.work[s.address.client] = steps + 1, samples + s.samples
        self.up += sum(s.nbytes for s in smashed)
        self.down += sum(r.nbytes for r in replies)
        self.losses += [(r.address.client, r.address.step, r.loss) for r in replies]

    @property
    def steps(self) -> int:
        return sum(steps for steps, _ in self.work.values())

    @property
    def samples(self) -> int:
        return sum(samples for _, samples in self.work.values())

    @property
    def train_loss(self) -> float | None:
        """The mean loss over all steps."""
        return float(torch.stack([loss for *_, loss in self.losses]).double().mean()) if self.losses else None

    def check(self, n: int, rates: str) -> None:
        """Refuse a round in which a loss left the finite numbers; looked at once a round, not once a step."""
        finite = torch.isfinite(torch.stack([loss for *_, loss in self.losses])).tolist() if self.losses else []
        if not all(finite):
            client, step, loss = self.losses[finite.index(False)]
            raise Diverged(f"round {n}: the loss of client {client} became {float(loss)} at its step {step}, {rates}")
