"""What a scheme computes with: copies of the server half, its optimizer's memory, gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from cutlayer.clients.messages import Address, CutGrad, Smashed
from cutlayer.clients.state import Owner, slot
from cutlayer.core.group import ONE_PROCESS, ProcessGroup
from cutlayer.core.randomness import EVERYBODY, rng
from cutlayer.core.threads import Workers
from cutlayer.nn.flat import Half, Rows, Vectors
from cutlayer.optim.local import Local, clip, clips, joint, regularise, squared
from cutlayer.optim.memory import Memory, Moments
from cutlayer.optim.optimizer import Optimizer
from cutlayer.optim.step import Step, optimizer_step
from cutlayer.schemes import u_shape
from cutlayer.schemes.autograd import Loss, Message, Passes
from cutlayer.schemes.u_shape import TailStep

Send = Callable[[Sequence[CutGrad]], Mapping[int, Tensor]]
TRAINED, LOOKED = 3, 2  # forwards that a sample costs: forward 1, backward 2 (1 where only the input's is wanted)


@dataclass(frozen=True)
class Rules:
    """How the server half is trained. `persists`: optimizer memory lives on between rounds."""

    optimizer: Optimizer
    loss: Loss
    seed: int
    shuffle: bool = True
    local: Local | None = None
    persists: bool = False
    client_optimizer: Optimizer | None = None


@dataclass(frozen=True)
class Compute:
    """What there is to compute with: threads, rows in one graph (`stacks`: whether vmap can do that), processes."""

    workers: Workers = field(default_factory=Workers)
    size: int = 1
    stacks: bool = True
    processes: ProcessGroup = ONE_PROCESS


@dataclass(frozen=True)
class Opening:
    """What a round begins with.

    start     W_s                               kept      owner -> memory kept from earlier rounds
    eta       the learning rate                 memory    what everybody starts with instead
    samples   |D_j| of each client              send      gradients to the clients before the step is over, and their
    batch     the batch size of each                      squared norms back
                                                tail      where labels stay with the clients: features to them, and
                                                          gradients back
    """

    round: int
    start: Vectors
    eta: float
    samples: Mapping[int, int]
    batch: Mapping[int, int]
    kept: Callable[[Owner], Moments | None] = lambda owner: None
    memory: Moments | None = None
    send: Send = lambda replies: {}
    tail: TailStep | None = None


class Server:
    """Buffers are allocated once and used again every round; what a round changes is in `begin`."""

    def __init__(self, half: Half, rules: Rules, compute: Compute = Compute()) -> None:
        self.half, self.rules = half, rules
        self.optimizer, self.seed, self.shuffle = rules.optimizer, rules.seed, rules.shuffle
        self.local, self.persists = rules.local, rules.persists
        self.client_optimizer = rules.client_optimizer or rules.optimizer
        self.workers, self.processes = compute.workers, compute.processes
        self.passes = Passes(half, rules.loss, rules.seed, compute.workers, compute.size, compute.stacks)
        self._rows: Rows | None = None
        self._history = False
        self._memory: Memory | None = None
        self._left: dict[int, Tensor] = {}  # row -> the first moment that was handed out for it, and is still in it

    def begin(self, opening: Opening, place: int = 0) -> None:
        """A new round; `place`: that of this process's first client."""
        self.opening, self.place = opening, place
        self.round, self.start, self.eta = opening.round, opening.start, opening.eta
        self.samples, self.batch = opening.samples, opening.batch
        self._owners: list[Owner] = []
        self._pending: dict[int, Tensor] = {}  # client -> its h, until the joint norm is known
        self._before: dict[int, Tensor] = {}  # client -> what lay in its row before, where that is history
        self.work = 0  # samples times forwards
        self.steps, self._clipped = 0, [torch.zeros(())]  # gradients that a local rule could clip, and that it did

    def surrogates(self, n: int, history: bool = False) -> Rows:
        """n copies of W_s (there may be more rows behind them, unused).

        `history`: what a gradient row holds after a step is needed later, so a step that is cancelled puts it back.
        """
        self._history = history
        if self._rows is None or len(self._rows) < n:
            self._rows = Rows(self.half, n)
        self._rows.fill(self.start, n)
        return self._rows

    def memory(self, owners: Sequence[Owner], persists: bool | None = None) -> Memory:
        """Optimizer memory, one row for each owner: empty, or (where the protocol, or `persists`, says so) as its
        owner left it in the last round."""
        n = len(owners)
        if self._memory is None or len(self._memory.t) < n:
            self._memory, self._left = Memory(self.optimizer, self.start.w.expand(n, -1)), {}
        lives_on = self.persists if persists is None else persists
        self._owners = list(owners) if lives_on else []
        for r, owner in enumerate(owners):
            found = self.opening.memory or (self.opening.kept(owner) if lives_on else None)
            if found is None:
                self._memory.reset(r)
            elif self._left.get(r) is not found.m[0]:  # what lies in the row since the last round need not be copied
                self._memory.put(r, found)
        self._left = {}
        return self._memory

    def slots(self, n: int) -> list[Owner]:
        """Owners by place: the first client of a round, the second, ..."""
        return [slot(self.place + i) for i in range(n)]

    def backward(self, rows: Rows, row: Mapping[int, int], smashed: Sequence[Message]) -> list[CutGrad]:
        """Server forward and backward on every client's batch, each with the current W_s,j in its own row: g_j into
        rows.g, dL/dA_j out (None where it has flowed on into the client's half already)."""
        if self._history and joint(self.local):  # the joint norm can cancel a step, so keep the previous gradient
            self._before = {s.address.client: rows.g[row[s.address.client]].clone() for s in smashed}
        if self.opening.tail is None:
            replies = self.passes.backward(rows, row, smashed)
        else:
            replies = u_shape.backward(self.passes, self.opening.tail, rows, row, cast(Sequence[Smashed], smashed))
            heard = {reply.address.client for reply in replies}
            smashed = [s for s in smashed if s.address.client in heard]
        self.work += TRAINED * sum(s.samples for s in smashed)
        self.steps += len(smashed) * clips(self.local)
        which = [row[s.address.client] for s in smashed]
        if clips(self.local):
            self._clipped += self.workers.map(lambda r: self._regularise(rows, r), which)
        if not joint(self.local):
            return replies
        self._pending |= {s.address.client: rows.g[r] for s, r in zip(smashed, which, strict=True)}
        pairs = zip(replies, which, strict=True)
        return [replace(reply, square=squared(rows.g[r])) for reply, r in pairs]

    def merged(self, rows: Rows, row: int, where: Address, smashed: Sequence[Smashed]) -> list[CutGrad]:
        """One batch of all clients' rows: g of its mean loss into rows.g[row]. Each client gets its share of the
        gradient at the cut, times all rows over its own."""
        if self.opening.tail is not None:
            replies = u_shape.merged(self.passes, self.opening.tail, rows, row, where, smashed)
            if not replies:
                return []
            self.work += TRAINED * sum(s.samples for s in smashed)
            self.steps += clips(self.local)
            self._clipped.append(self._regularise(rows, row))
            return replies
        d = [s.samples for s in smashed]
        a, y = torch.cat([s.a for s in smashed]), torch.cat([s.y for s in smashed if s.y is not None])
        grad, loss = self.gradient(rows, row, where, a, y)
        parts = zip(smashed, torch.split(grad, d), d, strict=True)
        return [CutGrad(s.address, part * (sum(d) / d_j), loss) for s, part, d_j in parts]

    def gradient(
        self, rows: Rows, row: int, where: Address, a: Tensor, y: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """g of one batch into rows.g[row]; the gradient at the cut and the loss out. `weight`: of each sample."""
        grad, loss = self.passes.gradient(rows, row, where, a, y, weight)
        self.work += TRAINED * len(y)
        self.steps += clips(self.local)
        self._clipped.append(self._regularise(rows, row))
        return grad, loss

    @property
    def clipped(self) -> int:
        """How many gradients were clipped."""
        return int(sum(float(clipped) for clipped in self._clipped))

    def _regularise(self, rows: Rows, row: int) -> Tensor:
        """Where the local rule clips: g <- c*h, or h alone where c needs the client's half of the norm too."""
        rule, h = self.local, rows.g[row]
        if rule is None or not clips(rule):
            return torch.zeros(())  # `step` regularises on its way
        regularise(rule, self.optimizer, h, rows.w[row], self.start.w)
        return torch.zeros(()) if joint(rule) else clip(rule, h, squared(h))

    def regularise(self, g: Tensor, w: Tensor, at: slice) -> None:
        """g <- h for one part of some rows; nothing where it has been done."""
        if not clips(self.local):
            regularise(self.local, self.optimizer, g, w, self.start.w[at])

    def step(self, rows: Rows, memory: Memory, which: Sequence[int]) -> None:
        """The optimizer's step of these rows, each with its gradient, weight decay and local rule included."""
        optimizer_step(self.workers, Step(self.local, self.optimizer, self.start.w, self.eta), rows, memory, which)

    def input_gradients(self, rows: Rows, row: int, smashed: Sequence[Smashed]) -> list[CutGrad]:
        """The gradients at the cut alone: the server's weights are frozen."""
        self.work += LOOKED * sum(s.samples for s in smashed)
        return self.passes.input_gradients(rows, row, smashed)

    def agreed(self, replies: Sequence[CutGrad]) -> list[CutGrad]:
        """The replies whose step the server may now take: all of them, unless the local rule needs the clients' part
        of a joint norm and one of them is silent. Gradients are clipped when this returns."""
        rule = self.local
        if rule is None or not joint(rule):
            return list(replies)
        squares = self.opening.send(replies)
        answered = [reply for reply in replies if reply.address.client in squares]
        for reply in answered:
            j = reply.address.client
            assert reply.square is not None, "a joint rule has the server's half of the norm"
            self._clipped.append(clip(rule, self._pending[j], squares[j] + reply.square))
        for j in self._before.keys() & self._pending.keys() - squares.keys():
            self._pending[j].copy_(self._before[j])
        self._pending, self._before = {}, {}
        return answered

    def kept(self) -> dict[Owner, Moments]:
        """What the optimizer's memory is at the end of the round, by owner, where it lives on."""
        kept = {owner: self.moments(r).clone() for r, owner in enumerate(self._owners)}
        self._left = {r: moments.m[0] for r, moments in enumerate(kept.values())}
        return kept

    def end(self) -> None:
        """Let go of the round before."""
        self.opening = replace(self.opening, kept=lambda owner: None, memory=None)

    def moments(self, row: int) -> Moments:
        """The optimizer's memory in one row."""
        assert self._memory is not None, "the scheme has asked for no memory"
        return self._memory.get(row)

    def permutation(self, n: int) -> list[int]:
        """The places 0..n-1 in a random order, the same all through a round; in order where nothing is shuffled."""
        return [int(place) for place in self.rng("turn").permutation(n)] if self.shuffle else list(range(n))

    def rng(self, use: str) -> np.random.Generator:
        """Randomness of this round for a scheme that needs some."""
        return rng(self.seed, self.round, EVERYBODY, use)
