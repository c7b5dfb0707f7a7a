"""One round: select, open, waves, close, average, update, evaluate. State in, state and a record out.

J_n   the clients selected in round n          p_j   |D_j| / sum of |D_i| over those that reported
T_j   the steps of client j; 0: skipped        W     the global weights, [W_c, W_s]
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from cutlayer.cohorts.seam import Cohort
from cutlayer.errors import Diverged, RoundAbandoned
from cutlayer.feed import Feed
from cutlayer.flat import Half, Vectors, mean
from cutlayer.macs import TRAINING
from cutlayer.messages import Address, CutGrad, Plan, Report, Smashed
from cutlayer.metrics import Evaluator, Scores
from cutlayer.optim import Optimizer, rate
from cutlayer.rng import EVERYBODY, callers_randomness, rng
from cutlayer.schemes.seam import Loss, Scheme, Server, Session
from cutlayer.update import State, Update
from cutlayer.waves import Wave, waves


@dataclass(frozen=True)
class Round:
    """The record of one round."""

    n: int
    accuracy: float | None
    loss: float | None
    f1: float | None
    mcc: float | None
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
    lr: float
    cut: int
    clients: tuple[int, ...]  # who finished it


@dataclass(frozen=True)
class Global:
    """Everything that lives on between rounds, and so everything a checkpoint holds."""

    n: int
    W: Vectors
    update: State = field(default_factory=dict)
    kept: State = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """What stays the same over a run."""

    scheme: Scheme
    update: Update
    cohort: Cohort
    sizes: Sequence[int]  # |D_j| of every client
    cuts: tuple[int, int]
    offsets: Sequence[tuple[int, int, int]]  # where each block ends in the flat vectors
    back: Callable[[int], Half]
    feed: Feed
    optimizer: Optimizer
    server_optimizer: Optimizer
    loss: Loss
    select: int  # |J_n|
    evaluator: Evaluator | None
    evaluate_every: int
    rounds: int
    macs: Sequence[int]  # forward MACs of each block, one sample
    seed: int


class Ledger:
    """What a round cost."""

    def __init__(self) -> None:
        self.steps = self.samples = self.up = self.down = 0
        self.losses: list[tuple[int, int, Tensor]] = []

    def wave(self, smashed: Sequence[Smashed], replies: Sequence[CutGrad]) -> None:
        self.steps += len(smashed)
        self.samples += sum(len(s.y) for s in smashed)
        self.up += sum(s.nbytes for s in smashed)
        self.down += sum(r.nbytes for r in replies)
        self.losses += [(r.address.client, r.address.step, r.loss) for r in replies]

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


class Engine:
    """Plays rounds. It keeps no state of the training, only the server's reusable buffers."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._server: tuple[int, Server] | None = None

    def play(self, state: Global) -> tuple[Global, Round]:
        """Round state.n + 1. It commits whole, in what it returns, or not at all."""
        began = time.perf_counter()
        with callers_randomness(), one_thread(), torch.no_grad():
            after, record = self._play(state)
        return after, replace(record, seconds=time.perf_counter() - began)

    def _play(self, state: Global) -> tuple[Global, Round]:
        s, n = self.setup, state.n + 1
        selected = self._select(n)
        J = {j: s.feed.epochs_of(s.sizes[j]) for j in selected}
        J = {j: epochs for j, epochs in J.items() if epochs}  # T_j >= 1
        cut = self._cut(n)
        W_c, W_s = state.W.split(s.offsets[cut])
        ledger = Ledger()
        if not J:
            after = Global(n, state.W, state.update, state.kept)
            return after, self._record(after, ledger, cut, (0.0, 0.0), skipped=len(selected), lost=0, clients=())
        server = self._server_at(cut)
        server.begin(n, W_s, rate(s.server_optimizer, n), {j: s.sizes[j] for j in J})
        session = s.scheme.open(server, list(J), state.kept)
        reports = self._train(n, cut, W_c, J, session, ledger)
        ledger.check(n, self._rates(n))
        closed = session.close()
        # Both halves of a client are averaged, or neither: p_j runs over the clients that reported.
        total = sum(report.samples for report in reports)
        p = [report.samples / total for report in reports]
        clients = tuple(report.address.client for report in reports)
        fronts = [report.end for report in reports]
        if isinstance(closed.halves, Vectors):
            backs = [closed.halves]
            W_bar_s = closed.halves
        else:
            backs = [closed.halves[report.address.client] for report in reports]
            W_bar_s = mean(backs, p)
        W_bar_c = mean(fronts, p)
        W_bar = Vectors(*(torch.cat(pair) for pair in zip(W_bar_c, W_bar_s, strict=True)))
        momentum = dict(state.update)
        w = s.update(state.W.w, W_bar.w, momentum)
        if not bool(torch.isfinite(w).all()):
            pairs = zip(clients, fronts, backs * len(fronts) if len(backs) == 1 else backs, strict=True)
            who = next((j for j, *halves in pairs if not _finite(halves)), None)
            whose = "" if who is None else f" of client {who}"
            raise Diverged(f"round {n}: the weights{whose} are no longer finite, {self._rates(n)}")
        after = Global(n, Vectors(w, W_bar.b, W_bar.i), momentum, closed.kept)
        drift = (_drift(fronts, W_bar_c), _drift(backs, W_bar_s))
        skipped, lost = len(selected) - len(J), len(J) - len(reports)
        return after, self._record(after, ledger, cut, drift, skipped=skipped, lost=lost, clients=clients)

    def _select(self, n: int) -> list[int]:
        """J_n: uniform without replacement, in client order."""
        everybody, m = len(self.setup.sizes), self.setup.select
        if m == everybody:
            return list(range(m))
        chosen = rng(self.setup.seed, n, EVERYBODY, "select").choice(everybody, m, replace=False)
        return sorted(int(j) for j in chosen)

    def _cut(self, n: int) -> int:
        lo, hi = self.setup.cuts
        return lo if lo == hi else int(rng(self.setup.seed, n, EVERYBODY, "cut").integers(lo, hi + 1))

    def _server_at(self, cut: int) -> Server:
        s = self.setup
        if self._server is None or self._server[0] != cut:
            self._server = cut, Server(s.back(cut), s.server_optimizer, s.loss, s.seed, s.feed.shuffle)
        return self._server[1]

    def _train(
        self, n: int, cut: int, W_c: Vectors, J: Mapping[int, list[int]], session: Session, ledger: Ledger
    ) -> list[Report]:
        """The waves of a round. A client that misses one is lost: it is asked for nothing more."""
        s = self.setup
        eta = rate(s.optimizer, n)
        plans = [Plan(Address(n, j, -1), cut, W_c, s.feed, s.optimizer, eta) for j in J]
        s.cohort.open(plans)
        ledger.down += sum(plan.nbytes for plan in plans)
        taken = dict.fromkeys(J, 0)
        for wave in waves(s.scheme.wave_order, {j: J[j] for j in self._turn(n, list(J))}):
            wave = Wave(tuple(j for j in wave.clients if j in taken), wave.epoch)
            if not wave.clients:
                continue
            smashed = admit(s.cohort.gather(wave), {j: Address(n, j, taken[j]) for j in wave.clients})
            for j in set(wave.clients) - {message.address.client for message in smashed}:
                del taken[j]
            replies = session.step(wave, smashed)
            s.cohort.scatter(replies)
            ledger.wave(smashed, replies)
            for message in smashed:
                taken[message.address.client] += 1
        arrived = s.cohort.close(list(taken))
        reports = admit(arrived, {j: Address(n, j, -1) for j in taken})
        if not reports:
            raise RoundAbandoned(f"round {n}: none of its {len(J)} clients finished; the weights are unchanged")
        ledger.up += sum(report.nbytes for report in reports)
        return reports

    def _rates(self, n: int) -> str:
        client, server = rate(self.setup.optimizer, n), rate(self.setup.server_optimizer, n)
        return f"with learning rate {client:g}" + ("" if client == server else f" (server {server:g})")

    def _turn(self, n: int, J: list[int]) -> list[int]:
        """The order in which clients come: a new random one every round where they come one by one."""
        if self.setup.scheme.wave_order != "one_by_one" or not self.setup.feed.shuffle:
            return J
        return [J[int(i)] for i in rng(self.setup.seed, n, EVERYBODY, "turn").permutation(len(J))]

    def _record(
        self,
        after: Global,
        ledger: Ledger,
        cut: int,
        drift: tuple[float, float],
        *,
        skipped: int,
        lost: int,
        clients: tuple[int, ...],
    ) -> Round:
        s, n = self.setup, after.n
        due = n % s.evaluate_every == 0 or n == s.rounds
        scores = s.evaluator(after.W) if s.evaluator and due else Scores()
        if scores.loss is not None and not math.isfinite(scores.loss):
            raise Diverged(f"round {n}: the test loss became {scores.loss}, {self._rates(n)}")
        return Round(
            n=n,
            **asdict(scores),
            participants=len(clients),
            skipped=skipped,
            lost=lost,
            steps=ledger.steps,
            samples=ledger.samples,
            bytes_up=ledger.up,
            bytes_down=ledger.down,
            macs_client=TRAINING * ledger.samples * sum(s.macs[: cut + 1]),
            macs_server=TRAINING * ledger.samples * sum(s.macs[cut + 1 :]),
            sim_seconds=None,
            seconds=0.0,
            drift_client=drift[0],
            drift_server=drift[1],
            train_loss=ledger.train_loss,
            lr=rate(s.optimizer, n),
            cut=cut,
            clients=clients,
        )


M = TypeVar("M", Smashed, Report)


def admit(arrived: Sequence[M], expected: Mapping[int, Address]) -> list[M]:
    """The expected messages among those that arrived, in the order expected: each once, none from another step."""
    first: dict[int, M] = {}
    for message in arrived:
        if expected.get(message.address.client) == message.address:
            first.setdefault(message.address.client, message)
    return [first[j] for j in expected if j in first]


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread for each client's computation: the same bits on any number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _finite(halves: Sequence[Vectors]) -> bool:
    return all(bool(torch.isfinite(half.w).all()) for half in halves)


def _drift(halves: Sequence[Vectors], center: Vectors) -> float:
    if len(halves) == 1:
        return 0.0
    return math.fsum(float((half.w.double() - center.w.double()).norm()) for half in halves) / len(halves)
