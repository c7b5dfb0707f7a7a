"""One round: select, open, waves, close, average, update, evaluate. State in, state and a record out.

J_n   the clients selected in round n          p_j   |D_j| / sum of |D_i| over those that reported
T_j   the steps of client j; 0: skipped        W     the global weights, [W_c, W_s]
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from cutlayer.backend import Backend
from cutlayer.clock import Clock, Work, server_seconds, simulated
from cutlayer.cohorts.seam import Cohort
from cutlayer.devices import Device, seconds_per_sample
from cutlayer.errors import Diverged, RoundAbandoned
from cutlayer.evaluate import Evaluator
from cutlayer.exchange import Exchange
from cutlayer.feed import Feed
from cutlayer.flat import Half, Vectors, center, mean
from cutlayer.kept import Parcel, Shelf
from cutlayer.local import Local, clips
from cutlayer.macs import TRAINING, Shape
from cutlayer.messages import Address, Plan, Report
from cutlayer.metrics import Scores
from cutlayer.optim import Moments, Optimizer, rate
from cutlayer.records import Global, Round
from cutlayer.rng import EVERYBODY, callers_randomness, rng
from cutlayer.schemes.passes import Loss
from cutlayer.schemes.seam import Closed, Histogram, Regulates, Scheme, Session
from cutlayer.schemes.server import Server
from cutlayer.update import State, Update, buffers_of
from cutlayer.waves import waves
from cutlayer.workers import one_thread


@dataclass(frozen=True)
class Setup:
    """What stays the same over a run."""

    scheme: Scheme
    local: Local | None
    update: Update
    cohort: Cohort
    sizes: Sequence[int]  # |D_j| of every client
    cuts: tuple[int, int]
    offsets: Sequence[tuple[int, int, int]]  # where each block ends in the flat vectors
    back: Callable[[int], Half]
    feed: Feed
    optimizer: Optimizer
    server_optimizer: Optimizer
    persists: bool  # whether optimizer memory lives on between rounds, on both sides
    noise: float
    loss: Loss
    select: int  # |J_n|
    evaluator: Evaluator | None
    evaluate_every: int
    rounds: int
    shape: Shape
    devices: Sequence[Device]
    clock: Clock
    histogram: Histogram
    shelf: Shelf
    backend: Backend
    seed: int


class Engine:
    """Plays rounds. It keeps no state of the training, only the server's reusable buffers."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._regulates = setup.scheme if isinstance(setup.scheme, Regulates) else None
        self._server: tuple[int, Server] | None = None
        self._p_s = server_seconds(setup.devices, setup.clock.kappa)

    def play(self, state: Global) -> tuple[Global, Round]:
        """Round state.n + 1. It commits whole, in what it returns, or not at all."""
        began = time.perf_counter()
        with callers_randomness(), one_thread(), torch.no_grad():
            after, record = self._play(state)
        self.setup.shelf.trim(after.kept)
        return after, replace(record, seconds=time.perf_counter() - began)

    def _play(self, state: Global) -> tuple[Global, Round]:
        s, n = self.setup, state.n + 1
        cut = self._cut(n)
        selected = self._select(n, cut, state.turns)
        feeds = self._feeds(selected, cut)
        J = {j: feeds[j].epochs_of(s.sizes[j]) for j in selected}
        J = {j: epochs for j, epochs in J.items() if epochs}  # T_j >= 1
        server = self._server_at(cut)
        exchange = Exchange(s.cohort, n, s.local, getattr(s.scheme, "fuse_clients", False))
        W_c, W_s = state.W.split(s.offsets[cut])
        memory_c, memory_s = self._shared_memory(state, len(W_c.w))
        server.begin(
            n,
            W_s,
            rate(s.server_optimizer, n),
            {j: s.sizes[j] for j in J},
            {j: feeds[j].batch_size for j in J},
            lambda owner: Moments.read(state.kept[owner].open(n)) if owner in state.kept else None,
            memory_s,
            exchange.send,
        )
        if not J:
            after = replace(state, n=n)
            return after, self._record(after, exchange, server, cut, (0.0, 0.0), len(selected), 0, [])
        turn = self._turn(n, list(J))
        scheme_kept = state.kept["scheme"].open(n) if "scheme" in state.kept else {}
        session = s.scheme.open(server, turn if s.persists else list(J), scheme_kept)
        plans = {j: self._plan(state, n, j, cut, W_c, feeds[j], memory_c) for j in J}
        reports = self._train(exchange, session, plans, {j: J[j] for j in turn})
        if not reports:
            raise RoundAbandoned(f"round {n}: none of its {len(J)} clients finished; the weights are unchanged")
        exchange.ledger.check(n, self._rates(n))
        after, drift = self._close(state, n, cut, session.close(), reports, server)
        skipped, lost = len(selected) - len(J), len(J) - len(reports)
        return after, self._record(after, exchange, server, cut, drift, skipped, lost, reports)

    def _select(self, n: int, cut: int, turns: Mapping[int, int]) -> list[int]:
        """J_n: uniform without replacement, in client order; or as the scheme chooses, from twice as many."""
        s, everybody, m = self.setup, len(self.setup.sizes), self.setup.select

        def draw(m: int) -> list[int]:
            if m == everybody:
                return list(range(m))
            chosen = rng(s.seed, n, EVERYBODY, "select").choice(everybody, m, replace=False)
            return sorted(int(j) for j in chosen)

        if self._regulates is not None and getattr(s.scheme, "select", "random") != "random":
            pool = draw(min(2 * m, everybody))
            d = {j: feed.batch_size for j, feed in self._feeds(pool, cut).items()}
            return self._regulates.choose(pool, m, d, turns, s.histogram) or draw(m)
        return draw(m)

    def _feeds(self, selected: Sequence[int], cut: int) -> dict[int, Feed]:
        """Each client's feed, with the batch size its device is given where the scheme regulates them."""
        s = self.setup
        if self._regulates is None:
            return dict.fromkeys(selected, s.feed)
        cost = {j: seconds_per_sample(s.devices[j], s.shape, cut) for j in selected}
        d = self._regulates.batches(s.feed.batch_size, {j: s.sizes[j] for j in selected}, cost)
        return {j: replace(s.feed, batch_size=d[j]) for j in selected}

    def _cut(self, n: int) -> int:
        lo, hi = self.setup.cuts
        return lo if lo == hi else int(rng(self.setup.seed, n, EVERYBODY, "cut").integers(lo, hi + 1))

    def _server_at(self, cut: int) -> Server:
        s = self.setup
        if self._server is None or self._server[0] != cut:
            how = s.backend
            server = Server(
                s.back(cut),
                s.server_optimizer,
                s.loss,
                s.seed,
                s.feed.shuffle,
                s.local,
                s.persists,
                s.optimizer,
                how.workers,
                how.size,
                how.back is None,
            )
            self._server = cut, server
        return self._server[1]

    def _shared_memory(self, state: Global, at: int) -> tuple[Moments | None, Moments | None]:
        """The averaged momentum that everybody starts with, where the update broadcasts one: for either side."""
        if "momentum" not in state.kept:
            return None, None
        m, t = Moments.read(state.kept["momentum"].open(state.n + 1))
        return Moments(tuple(v[:at] for v in m), t), Moments(tuple(v[at:] for v in m), t)

    def _plan(self, state: Global, n: int, j: int, cut: int, W_c: Vectors, feed: Feed, memory: Moments | None) -> Plan:
        s, kept = self.setup, state.kept.get(f"client/{j}")
        own = {} if kept is None else kept.open(n)
        eta = rate(s.optimizer, n)
        if self._regulates is not None:
            eta = self._regulates.rate(eta, feed.batch_size, s.feed.batch_size)
        return Plan(
            address=Address(n, j, -1),
            cut=cut,
            start=None if "w" in own else W_c,
            feed=feed,
            optimizer=s.optimizer,
            eta=eta,
            local=s.local,
            noise=s.noise,
            memory=memory,
            shares_memory=buffers_of(s.update) == "average",
            keeps_half=s.scheme.carry == "keep",
            own=own,
        )

    def _train(
        self, exchange: Exchange, session: Session, plans: Mapping[int, Plan], epochs: Mapping[int, list[int]]
    ) -> list[Report]:
        """All clients at once; or, where the front is passed on, one leg after another from the last one's end."""
        order = self.setup.scheme.wave_order
        if self.setup.scheme.carry != "relay":
            return exchange.leg(list(plans.values()), waves(order, epochs), session)
        reports: list[Report] = []
        for j in epochs:
            start = reports[-1].end if reports else plans[j].start
            done = exchange.leg([replace(plans[j], start=start)], waves(order, {j: epochs[j]}), session)
            reports += [replace(report, end=report.end.clone(), memory=report.memory.clone()) for report in done]
        return reports

    def _close(
        self, state: Global, n: int, cut: int, closed: Closed, reports: Sequence[Report], server: Server
    ) -> tuple[Global, tuple[float, float]]:
        """Average, update, and gather what lives on."""
        s = self.setup
        carry = s.scheme.carry
        # Both halves of a client are averaged, or neither: p_j runs over the clients that reported.
        clients = [report.address.client for report in reports]
        uniform = getattr(s.update, "weights", "samples") == "uniform"
        p = _shares([1 if uniform else report.samples for report in reports])
        p_c = p if closed.weights is None else _shares([closed.weights[j] for j in clients])
        fronts = [report.end for report in reports]
        one = isinstance(closed.halves, Vectors)
        backs = [closed.halves] if isinstance(closed.halves, Vectors) else [closed.halves[j] for j in clients]
        workers = s.backend.workers
        W_bar_s, drift_s = (backs[0], 0.0) if one else center(backs, p, workers)
        W_bar_c, drift_c = (fronts[-1], 0.0) if carry == "relay" else center(fronts, p_c, workers)
        W_c, W_s = state.W.split(s.offsets[cut])
        momentum = dict(state.update)
        eta_c, eta_s = rate(s.optimizer, n), rate(s.server_optimizer, n)
        if carry == "keep":  # the update acts on what is averaged: the server half
            w_s = s.update(W_s.w, W_bar_s.w, momentum, eta_s)
            W = Vectors(torch.cat([W_c.w, w_s]), torch.cat([W_c.b, W_bar_s.b]), torch.cat([W_c.i, W_bar_s.i]))
        else:
            W_bar = Vectors(*(torch.cat(pair) for pair in zip(W_bar_c, W_bar_s, strict=True)))
            eta = eta_c if eta_c == eta_s else _by_half(W_bar.w, len(W_c.w), eta_c, eta_s)
            W = W_bar._replace(w=s.update(state.W.w, W_bar.w, momentum, eta))
        self._check_finite(n, W, clients, fronts, backs)
        turns = {**state.turns, **{j: state.turns.get(j, 0) + 1 for j in clients}}
        before = {owner: parcel for owner, parcel in state.kept.items() if owner != "scheme"}
        kept = {**before, **self._parcels(n, closed, reports, server, p)}
        return Global(n, W, momentum, kept, turns), (drift_c, drift_s)

    def _parcels(
        self, n: int, closed: Closed, reports: Sequence[Report], server: Server, p: Sequence[float]
    ) -> dict[str, Parcel]:
        """What the round leaves besides the weights, by owner."""
        s = self.setup
        made: dict[str, Mapping[str, Tensor]] = {owner: moments.named() for owner, moments in server.kept().items()}
        if closed.kept:
            made["scheme"] = {name: tensor.clone() for name, tensor in closed.kept.items()}
        for report in reports:
            own: State = {}
            if s.scheme.carry == "keep":
                own |= report.end.clone()._asdict()
            if s.persists:
                own |= {**report.memory.clone().named(), "place": torch.tensor(report.place)}
            if own:
                made[f"client/{report.address.client}"] = own
        if buffers_of(s.update) == "average":
            rows = {j: r for r, j in enumerate(server.samples)}
            pairs = [(report.memory, server.moments(rows[report.address.client])) for report in reports]
            none = torch.empty(0)
            m = (
                mean((Vectors(torch.cat([c.m[i], b.m[i]]), none, none) for c, b in pairs), p).w
                for i in range(len(s.optimizer.betas))
            )
            made["momentum"] = Moments(tuple(m), max(half.t for pair in pairs for half in pair)).named()
        return {owner: Parcel(n, tensors) for owner, tensors in made.items()}

    def _check_finite(
        self, n: int, W: Vectors, clients: Sequence[int], fronts: Sequence[Vectors], backs: Sequence[Vectors]
    ) -> None:
        if _finite([W]) and (self.setup.scheme.carry != "keep" or _finite(fronts)):
            return
        pairs = zip(clients, fronts, list(backs) * len(fronts) if len(backs) == 1 else backs, strict=True)
        who = next((j for j, *halves in pairs if not _finite(halves)), None)
        whose = "" if who is None else f" of client {who}"
        raise Diverged(f"round {n}: the weights{whose} are no longer finite, {self._rates(n)}")

    def _rates(self, n: int) -> str:
        client, server = rate(self.setup.optimizer, n), rate(self.setup.server_optimizer, n)
        return f"with learning rate {client:g}" + ("" if client == server else f" (server {server:g})")

    def _turn(self, n: int, J: list[int]) -> list[int]:
        """The order in which clients come: a new random one every round where the order matters."""
        s = self.setup
        if not s.feed.shuffle or not (s.persists or s.scheme.wave_order == "one_by_one"):
            return J
        return [J[int(i)] for i in rng(s.seed, n, EVERYBODY, "turn").permutation(len(J))]

    def _record(
        self,
        after: Global,
        exchange: Exchange,
        server: Server,
        cut: int,
        drift: tuple[float, float],
        skipped: int,
        lost: int,
        reports: Sequence[Report],
    ) -> Round:
        s, n, ledger = self.setup, after.n, exchange.ledger
        clients = tuple(report.address.client for report in reports)
        due = n % s.evaluate_every == 0 or n == s.rounds
        keeps = s.scheme.carry == "keep"
        scores, series = Scores(), {}
        if s.evaluator and s.evaluator.per_client and (due or s.persists):
            front = after.front if keeps else lambda client: None
            series = dict(s.evaluator.by_client(after.W, front, clients, after.turns, due))
            scores = Scores(**{name: series["all"][name] for name in asdict(scores)}) if due else scores
        elif s.evaluator and not s.evaluator.per_client and due:
            scores = s.evaluator.pooled(after.merged(s.sizes) if keeps else after.W)
        if scores.loss is not None and not math.isfinite(scores.loss):
            raise Diverged(f"round {n}: the test loss became {scores.loss}, {self._rates(n)}")
        tried = server.steps + sum(report.tried for report in reports)
        clipped = server.clipped + sum(report.clipped for report in reports)
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
            macs_client=TRAINING * ledger.samples * sum(s.shape.macs[: cut + 1]),
            macs_server=server.work * sum(s.shape.macs[cut + 1 :]),
            sim_seconds=self._simulated(ledger.work, cut),
            seconds=0.0,
            drift_client=drift[0],
            drift_server=drift[1],
            train_loss=ledger.train_loss,
            clip_rate=clipped / tried if clips(s.local) and tried else None,
            lr=rate(s.optimizer, n),
            cut=cut,
            clients=clients,
            client_steps=tuple(ledger.work[j][0] for j in clients),
            client_samples=tuple(ledger.work[j][1] for j in clients),
            series=series,
        )

    def _simulated(self, work: Mapping[int, tuple[int, int]], cut: int) -> float:
        """The seconds this round would take on the clients' devices."""
        s = self.setup
        steps = {j: T for j, (T, _) in work.items()}
        done = Work(steps, {j: samples / T for j, (T, samples) in work.items()}, cut)
        return simulated(s.clock, s.scheme, done, s.devices, s.shape, self._p_s, s.offsets[cut][0])


def _shares(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights]


def _by_half(like: Tensor, at: int, eta_c: float, eta_s: float) -> Tensor:
    """A learning rate for each weight."""
    eta = torch.full_like(like, eta_s)
    eta[:at] = eta_c
    return eta


def _finite(halves: Sequence[Vectors]) -> bool:
    """A finite sum has finite terms; another sum may have them too."""
    return all(math.isfinite(float(half.w.sum())) or bool(torch.isfinite(half.w).all()) for half in halves)
