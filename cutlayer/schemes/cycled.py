"""The CycleSL family: first train the server on all clients' features, then take the clients' gradients from it.

    B_f   all features of a wave as one data set, resampled into batches that mix the clients
    E_s   server epochs over it        w_i   |D_i|, the weight of client i's samples in the server's loss

The CycleSL paper's Algorithm 1 (docs/algorithms.md). The gradient at the cut comes from the *updated* server, frozen
(Eq. 4), and there is one server half, so nothing is averaged on the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cutlayer.clients.messages import Address, CutGrad, Smashed
from cutlayer.clients.state import SERVER
from cutlayer.clients.waves import Wave
from cutlayer.core.devices import onto
from cutlayer.core.randomness import EVERYBODY, OwnRandomness
from cutlayer.errors import expect, is_whole
from cutlayer.nn.nested import Inputs, parted, picked
from cutlayer.schemes.autograd import joined
from cutlayer.schemes.averaged import Averaged, check_share
from cutlayer.schemes.base import Closed, Server, Traits
from cutlayer.schemes.traits import Carry
from cutlayer.simulation.clock import Timing

FrozenBN = Literal["train", "eval", "no_update"]


@dataclass(frozen=True)
class CycleSFL:
    """CycleSL over SplitFed: fronts are averaged at the end of the round.

    `server_batch`: rows of a server step (None: the clients' batch size). `loss_weight` "samples": the server's loss
    weighs a sample by the size of its client, as the paper's code does; "uniform": as its text says.
    `frozen_bn`: BatchNorm while the clients' gradients are computed. "train": it uses the batch's statistics, and
    updates the running ones (the paper's code); "no_update": the same without the update; "eval": it uses the running
    ones.
    """

    server_epochs: int = 1
    server_batch: int | None = None
    loss_weight: Literal["samples", "uniform"] = "samples"
    frozen_bn: FrozenBN = "train"
    carry: ClassVar[Carry] = "sync"

    def __post_init__(self) -> None:
        whole = self.server_batch is None or (is_whole(self.server_batch) and self.server_batch >= 1)
        expect(whole, "server_batch", self.server_batch, "a whole number, at least 1")
        expect(self.loss_weight in ("samples", "uniform"), "loss_weight", self.loss_weight, "'samples' or 'uniform'")
        _check(self.server_epochs, self.frozen_bn)

    @property
    def traits(self) -> Traits:
        return Traits(
            order="together",
            carry=self.carry,
            halves="one",
            meets="step",
            own_gradient=False,
            timing=Timing("cycled", self.server_epochs),
            needs_labels="rows",
        )

    def open(self, server: Server, clients: Sequence[int]) -> Cycled | Averaged:
        batch = self.server_batch or max(server.batch.values())
        return Cycled(server, self.server_epochs, batch, self.loss_weight == "samples", self.frozen_bn)


@dataclass(frozen=True)
class CyclePSL(CycleSFL):
    """CycleSL over parallel split learning: every client keeps its own front. This is the paper's Algorithm 1."""

    carry: ClassVar[Carry] = "keep"


@dataclass(frozen=True)
class CycleSGLR(CycleSFL):
    """CyclePSL in which a share of the clients gets one averaged gradient at the cut."""

    share: float = 0.5
    carry: ClassVar[Carry] = "keep"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self.share)

    def open(self, server: Server, clients: Sequence[int]) -> Averaged:
        return Averaged(super().open(server, clients), server, clients, self.share)


@dataclass(frozen=True)
class CycleSSL:
    """CycleSL over sequential split learning: one front is passed on from client to client. The server trains on one
    client's batch at a time, so there is nothing to resample or to weigh."""

    server_epochs: int = 1
    frozen_bn: FrozenBN = "train"

    def __post_init__(self) -> None:
        _check(self.server_epochs, self.frozen_bn)

    @property
    def traits(self) -> Traits:
        return Traits(
            order="one_by_one",
            carry="relay",
            halves="one",
            meets="step",
            own_gradient=False,
            timing=Timing("cycled_sequential", self.server_epochs),
            needs_labels="rows",
        )

    def open(self, server: Server, clients: Sequence[int]) -> Cycled:
        return Cycled(server, self.server_epochs, None, False, self.frozen_bn)


class Cycled:
    """One round. `batch` None: one server step on all features of a wave, in the order they came."""

    def __init__(self, server: Server, epochs: int, batch: int | None, weighted: bool, frozen_bn: FrozenBN) -> None:
        self.server, self.epochs, self.batch = server, epochs, batch
        self.weighted, self.frozen_bn = weighted, frozen_bn
        self.rows = server.surrogates(1)
        self.memory = server.memory([SERVER])
        self.k = self.taken = 0

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        if not smashed:
            return []
        self._train(smashed)
        self.k += 1
        return self._gradients(smashed)

    def close(self) -> Closed:
        return Closed(self.rows.row(0))

    def _train(self, smashed: Sequence[Smashed]) -> None:
        """ServerGrad(B_f, freeze=false), Eq. 2: E_s epochs over the features, in batches drawn anew each epoch."""
        server, rows = self.server, self.rows
        f, y = joined(smashed, rows.half), torch.cat([s.y for s in smashed if s.y is not None])
        a, _ = parted(f)
        precise = torch.promote_types(a.dtype, torch.float32)
        sizes = [torch.full((s.samples,), float(server.samples[s.address.client]), dtype=precise) for s in smashed]
        w = torch.cat(sizes)  # stays with the host, which groups samples by it
        for e in range(self.epochs):
            for part in self._batches(len(y), e):
                at = onto(a.device, part)
                drawn = picked(f, at)
                if len(part) == 1 and len(y) > 1 and self._needs_two(drawn):
                    continue
                weight = w[part] if self.weighted else None
                where = Address(server.round, EVERYBODY, self.taken)  # the address of the forward's randomness
                self.taken += 1
                server.gradient(rows, 0, where, drawn, y[at], weight)
                server.step(rows, self.memory, [0])

    def _batches(self, n: int, epoch: int) -> Sequence[Tensor]:
        order = torch.arange(n)
        if self.server.shuffle and self.batch is not None:
            order = torch.from_numpy(self.server.rng(f"features/{self.k}/{epoch}").permutation(n))
        return torch.split(order, self.batch or n)

    def _gradients(self, smashed: Sequence[Smashed]) -> list[CutGrad]:
        """ServerGrad(B_i, freeze=true): each client's own batch through the updated server, Eq. 4."""
        rows = self.rows
        if self.frozen_bn == "train":
            return self.server.input_gradients(rows, 0, smashed)
        b, i = rows.b[0].clone(), rows.i[0].clone()
        rows.half.train(self.frozen_bn != "eval")
        try:
            replies = []
            for s in smashed:
                replies += self.server.input_gradients(rows, 0, [s])
                rows.b[0], rows.i[0] = b, i
            return replies
        finally:
            rows.half.train(True)

    def _needs_two(self, one: Inputs) -> bool:
        """Whether a batch of one sample is too small for the server's BatchNorm."""
        rows = self.rows
        b, i = rows.b[0].clone(), rows.i[0].clone()
        try:
            with OwnRandomness():  # so that the trial does not change later draws
                rows.forward(0, one)
        except ValueError:
            return True
        finally:
            rows.b[0], rows.i[0] = b, i
        return False


def _check(server_epochs: int, frozen_bn: str) -> None:
    expect(is_whole(server_epochs) and server_epochs >= 0, "server_epochs", server_epochs, "a whole number, at least 0")
    modes = ("train", "eval", "no_update")
    expect(frozen_bn in modes, "frozen_bn", frozen_bn, "'train', 'eval' or 'no_update'")
