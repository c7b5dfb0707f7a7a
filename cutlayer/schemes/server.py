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
from cutlayer.nn.nested import Inputs
from cutlayer.optim.accumulate import Accumulated
from cutlayer.optim.local import Local, clip, clips, clips_regularised, joint, regularise, squared
from cutlayer.optim.memory import Memory, Moments
from cutlayer.optim.optimizer import Optimizer
from cutlayer.optim.step import Step, optimizer_step
from cutlayer.schemes import u_shape
from cutlayer.schemes.autograd import Loss, Message, Passes, joined
from cutlayer.schemes.calibrate import Calibrated
from cutlayer.schemes.u_shape import TailStep

Send = Callable[[Sequence[CutGrad]], Mapping[int, Tensor]]
TRAINED, LOOKED = 3, 2  # cost of a sample, in forwards: forward 1, backward 2 (1 for the input's gradient alone)


@dataclass(frozen=True)
class Rules:
    """How the server half is trained. `persists`: optimizer memory lives on between rounds. `watched`: somebody wants
    to look inside the round (`Server.note`). `calibrate`: tau of calibrated logits; 0: none."""

    optimizer: Optimizer
    loss: Loss
    seed: int
    shuffle: bool = True
    local: Local | None = None
    persists: bool = False
    client_optimizer: Optimizer | None = None
    watched: bool = False
    calibrate: float = 0.0


@dataclass(frozen=True)
class Compute:
    """The server's resources: threads, rows in one graph (`size`; `stacks`: whether vmap can do it), processes."""

    workers: Workers = field(default_factory=Workers)
    size: int = 1
    stacks: bool = True
    processes: ProcessGroup = ONE_PROCESS


@dataclass(frozen=True)
class Opening:
    """What a round begins with.

    start     W_s                               kept      owner -> memory kept from earlier rounds
    eta       k -> the rate of a round's step   memory    what every owner starts with instead
    samples   |D_j| of each client              send      sends gradients to the clients before the step is over, and
    batch     the batch size of each                      returns their squared norms
                                                tail      where labels stay with the clients: sends them features, and
                                                          returns their gradients
    """

    round: int
    start: Vectors
    eta: Callable[[int], float]
    samples: Mapping[int, int]
    batch: Mapping[int, int]
    kept: Callable[[Owner], Moments | None] = lambda owner: None
    memory: Moments | None = None
    send: Send = lambda replies: {}
    tail: TailStep | None = None


class Server:
    """What a scheme computes with. Buffers are allocated once and used in every round; `begin` sets what changes."""

    def __init__(self, half: Half, rules: Rules, compute: Compute = Compute()) -> None:
        self.half, self.rules = half, rules
        self.optimizer, self.seed, self.shuffle = rules.optimizer, rules.seed, rules.shuffle
        self.local, self.persists, self.watched = rules.local, rules.persists, rules.watched
        self.client_optimizer = rules.client_optimizer or rules.optimizer
        self.workers, self.processes = compute.workers, compute.processes
        self.passes = Passes(half, rules.loss, rules.seed, compute.workers, compute.size, compute.stacks)
        self.passes.calibrated = Calibrated(rules.calibrate) if rules.calibrate else None
        self._rows: Rows | None = None
        self._history = False
        self._memory: Memory | None = None
        self._left: dict[int, Tensor] = {}  # row -> the first moment that `kept` returned for it, still in the row
        self._gathered = Accumulated()

    def begin(self, opening: Opening, place: int = 0) -> None:
        """Begin a round. `place`: the slot of this process's first client."""
        self.opening, self.place = opening, place
        self.round, self.start = opening.round, opening.start
        self.samples, self.batch = opening.samples, opening.batch
        self._owners: list[Owner] = []
        self._pending: dict[int, Tensor] = {}  # client -> its h, until the joint norm is known
        self._before: dict[int, Tensor] = {}  # client -> its previous gradient row, if that is history
        self.work = 0  # the cost so far: samples times forwards
        self.steps = 0  # gradients that a local rule could clip
        self.clipped: int | Tensor = 0  # those that it clipped; on a GPU, a tensor that is not waited for yet
        self.notes: dict[tuple[str, int], list[float | Tensor]] = {}  # what was noted, by name and client
        if self.passes.calibrated is not None:
            self.passes.calibrated.begin()
        self.wave({})
        self._k: dict[int, int] = {}  # row -> the step whose gradient is in it
        self._incomplete: set[int] = set()  # rows whose gradient still lacks micro-batches
        self._gathered.clear()

    def wave(self, at: Mapping[int, int], partial: bool = False) -> None:
        """Begin a wave of these clients. `at`: the step that each is at. `partial`: the optimizers do not step yet,
        since more micro-batches follow."""
        self._at, self.partial = at, partial
        self.eta = self.opening.eta(max(at.values(), default=0))

    def surrogates(self, n: int, history: bool = False) -> Rows:
        """Return rows with n copies of W_s; there may be more rows after them, unused.

        `history`: gradient rows are needed after their step, so a cancelled step restores them.
        """
        self._history = history
        if self._rows is None or len(self._rows) < n:
            self._rows = Rows(self.half, n)
        self._rows.fill(self.start, n)
        return self._rows

    def memory(self, owners: Sequence[Owner], persists: bool | None = None) -> Memory:
        """Return optimizer memory with one row for each owner: empty, what the opening gives, or (if the protocol or
        `persists` says so) what the owner had at the end of its last round."""
        n = len(owners)
        if self._memory is None or len(self._memory.t) < n:
            self._memory, self._left = Memory(self.optimizer, self.start.w.expand(n, -1)), {}
        lives_on = self.persists if persists is None else persists
        self._owners = list(owners) if lives_on else []
        for r, owner in enumerate(owners):
            found = self.opening.memory or (self.opening.kept(owner) if lives_on else None)
            if found is None:
                self._memory.reset(r)
            elif self._left.get(r) is not found.m[0]:  # no copy if the row still holds it
                self._memory.put(r, found)
        self._left = {}
        return self._memory

    def slots(self, n: int) -> list[Owner]:
        """The owners of this process's first n slots."""
        return [slot(self.place + i) for i in range(n)]

    def backward(self, rows: Rows, row: Mapping[int, int], smashed: Sequence[Message]) -> list[CutGrad]:
        """Run forward and backward on every client's batch, each with W_s,j from its own row. Write g_j into rows.g,
        and return dL/dA_j (None where the pass has gone on into the client's half)."""
        if self._history and (joint(self.local) or self.partial):  # the step may never come: keep the last gradient
            self._before = {s.address.client: rows.g[row[s.address.client]].clone() for s in smashed}
        if self.opening.tail is None:
            replies = self.passes.backward(rows, row, smashed)
        else:
            replies = u_shape.backward(self.passes, self.opening.tail, rows, row, cast(Sequence[Smashed], smashed))
            heard = {reply.address.client for reply in replies}
            smashed = [s for s in smashed if s.address.client in heard]
        self.work += TRAINED * sum(s.samples for s in smashed)
        which = [row[s.address.client] for s in smashed]
        for s, r in zip(smashed, which, strict=True):
            self._gather(s.address.client, rows, r, s.samples)
        if self.partial:
            for j, g in self._before.items():
                rows.g[row[j]] = g
            self._before = {}
            return replies
        self.steps += len(smashed) * clips(self.local)
        if clips(self.local):
            self._count(self.workers.map(lambda r: self._regularise(rows, r), which))
        if not joint(self.local):
            return replies
        self._pending |= {s.address.client: rows.g[r] for s, r in zip(smashed, which, strict=True)}
        pairs = zip(replies, which, strict=True)
        return [replace(reply, square=squared(rows.g[r])) for reply, r in pairs]

    def merged(self, rows: Rows, row: int, where: Address, smashed: Sequence[Smashed]) -> list[CutGrad]:
        """Merge all clients' samples into one batch, and write the gradient of its mean loss into rows.g[row]. Return
        each client's part of the gradient at the cut, times all samples over its own."""
        if self.opening.tail is not None:
            replies = u_shape.merged(self.passes, self.opening.tail, rows, row, where, smashed)
            if not replies:
                return []
            self.work += TRAINED * sum(s.samples for s in smashed)
            answered = {reply.address.client for reply in replies}
            self._merge(rows, row, sum(s.samples for s in smashed if s.address.client in answered))
            return replies
        d = [s.samples for s in smashed]
        y = torch.cat([s.y for s in smashed if s.y is not None])
        grad, loss = self.passes.gradient(rows, row, where, joined(smashed, self.half), y)
        self.work += TRAINED * len(y)
        self._merge(rows, row, sum(d))
        parts = zip(smashed, torch.split(grad, d), d, strict=True)
        return [CutGrad(s.address, part * (sum(d) / d_j), loss) for s, part, d_j in parts]

    def _merge(self, rows: Rows, row: int, samples: int) -> None:
        """Gather the gradient of a merged batch; regularise that of a whole step."""
        self._gather(EVERYBODY, rows, row, samples)
        if not self.partial:
            self.steps += clips(self.local)
            self._count([self._regularise(rows, row)])

    def _gather(self, owner: int, rows: Rows, row: int, samples: int) -> None:
        """Add the gradient of a micro-batch to its step's; with the last, rows.g[row] is the gradient of the step."""
        self._gathered.add(owner, rows.g[row], samples, last=not self.partial)
        self._k[row] = self._at.get(owner, max(self._at.values(), default=0))
        (self._incomplete.add if self.partial else self._incomplete.discard)(row)

    def gradient(
        self, rows: Rows, row: int, where: Address, x: Inputs, y: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Write g of one batch into rows.g[row]; return the gradient at the cut and the loss. `x`: what crosses the
        cut. `weight`: per sample. It is the gradient of a whole step, also while clients accumulate theirs."""
        self._incomplete.discard(row)
        self._k.pop(row, None)
        grad, loss = self.passes.gradient(rows, row, where, x, y, weight)
        self.work += TRAINED * len(y)
        self.steps += clips(self.local)
        self._count([self._regularise(rows, row)])
        return grad, loss

    def _count(self, clipped: Sequence[Tensor | None]) -> None:
        """Count the gradients that were clipped: in one operation, however many they are. None: it is not known yet."""
        known = [one for one in clipped if one is not None]
        if known:
            self.clipped = self.clipped + torch.stack(known).sum()

    def _regularise(self, rows: Rows, row: int) -> Tensor | None:
        """If the local rule clips: g <- c*h, or g <- h if c needs the client's norm too. Return whether it clipped."""
        rule, h = self.local, rows.g[row]
        if rule is None or not clips(rule):
            return None  # `step` regularises it later
        if clips_regularised(rule):
            regularise(rule, self.optimizer, h, rows.w[row], self.start.w)
        return None if joint(rule) else clip(rule, h, squared(h))

    @property
    def regularised(self) -> bool:
        """Whether a gradient in its row is h already, since a rule needed the whole of it."""
        return clips_regularised(self.local)

    def pull(self, g: Tensor, w: Tensor, at: slice) -> None:
        """Add the local rule's term to one part of some gradients, before weight decay."""
        if self.local is not None:
            self.local.pull(g, w, self.start.w[at])

    def step(self, rows: Rows, memory: Memory, which: Sequence[int]) -> None:
        """Take the optimizer step of these rows, with weight decay and local rule. Rows whose gradient still lacks
        micro-batches do not step."""
        which = [r for r in which if r not in self._incomplete]
        etas = {r: self.opening.eta(self._k[r]) if r in self._k else self.eta for r in which}
        for eta in dict.fromkeys(etas.values()):  # more than one where clients are at different steps
            how = Step(self.local, self.optimizer, self.start.w, eta)
            optimizer_step(self.workers, how, rows, memory, [r for r in which if etas[r] == eta])

    def input_gradients(self, rows: Rows, row: int, smashed: Sequence[Smashed]) -> list[CutGrad]:
        """Return only the gradients at the cut; the server's weights are frozen."""
        self.work += LOOKED * sum(s.samples for s in smashed)
        return self.passes.input_gradients(rows, row, smashed)

    def agreed(self, replies: Sequence[CutGrad]) -> list[CutGrad]:
        """Return the replies whose step the server may take now, with their gradients clipped: none where more
        micro-batches follow; with a joint norm those whose client has sent its part of the norm; otherwise all."""
        rule = self.local
        if self.partial:
            return []
        if rule is None or not joint(rule):
            return list(replies)
        squares = self.opening.send(replies)
        answered = [reply for reply in replies if reply.address.client in squares]
        found: list[Tensor] = []
        for reply in answered:
            j = reply.address.client
            assert reply.square is not None, "a joint rule has the server's half of the norm"
            found.append(clip(rule, self._pending[j], squares[j] + reply.square))
        self._count(found)
        for j in self._before.keys() & self._pending.keys() - squares.keys():
            self._pending[j].copy_(self._before[j])
        self._pending, self._before = {}, {}
        return answered

    def note(self, what: str, client: int, value: float | Tensor) -> None:
        """Note a figure of a client, where `watched`; the mean over the round is a column of `Round.detail`. A tensor
        stays where it is until the round is over."""
        self.notes.setdefault((what, client), []).append(value)

    def kept(self) -> dict[Owner, Moments]:
        """The optimizer memory that lives on after the round, by owner."""
        kept = {owner: self.moments(r).clone() for r, owner in enumerate(self._owners)}
        self._left = {r: moments.m[0] for r, moments in enumerate(kept.values())}
        return kept

    def end(self) -> None:
        """Release the memory that the round began with."""
        self.opening = replace(self.opening, kept=lambda owner: None, memory=None)

    def moments(self, row: int) -> Moments:
        """The optimizer's memory in one row."""
        assert self._memory is not None, "the scheme has asked for no memory"
        return self._memory.get(row)

    def permutation(self, n: int) -> list[int]:
        """The places 0..n-1 in a random order, the same throughout a round; in ascending order without `shuffle`."""
        return [int(place) for place in self.rng("turn").permutation(n)] if self.shuffle else list(range(n))

    def rng(self, use: str) -> np.random.Generator:
        """A random generator of this round, for one use."""
        return rng(self.seed, self.round, EVERYBODY, use)
