"""One round: select, open, waves, close, evaluate. State in, state and a record out.

J_n   the clients selected in round n          T_j   the steps of client j; 0: skipped
W     the global weights, [W_c, W_s]

Several ranks play a round together. Where every client has a server half of its own, every rank trains its share of the
clients, and sums go through the process group. Where there is one server half, the root plays (`engine/players.py`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch

from cutlayer.clients.cohort import Availability
from cutlayer.clients.messages import Address, Plan, Report
from cutlayer.clients.state import AVERAGED
from cutlayer.clients.waves import Wave, micro_waves, waves
from cutlayer.core.randomness import EVERYBODY, rng
from cutlayer.core.threads import blocks, torch_threads
from cutlayer.data.schedule import BatchSchedule
from cutlayer.engine import detail
from cutlayer.engine.aggregate import Aggregator
from cutlayer.engine.exchange import Exchange
from cutlayer.engine.records import Global, Round, Tally, together
from cutlayer.engine.score import scored, shared
from cutlayer.engine.setup import Setup
from cutlayer.errors import RoundAbandoned
from cutlayer.nn.flat import Vectors
from cutlayer.nn.macs import TRAINING
from cutlayer.optim.local import clips
from cutlayer.optim.memory import Moments
from cutlayer.optim.update import buffers_of
from cutlayer.schemes.base import Session
from cutlayer.schemes.server import Compute, Opening, Rules, Server
from cutlayer.simulation.clock import Work, server_seconds
from cutlayer.simulation.devices import seconds_per_sample

WavesOf = Callable[[Sequence[int]], Iterator[Wave]]


@dataclass(frozen=True)
class RoundPlan:
    """Who takes part in a round, and how."""

    n: int
    attempt: int
    cut: int
    selected: int
    quorum: int
    J: Mapping[int, list[int]]  # the steps of each local epoch, for clients with at least one step
    order: Sequence[int]  # those clients in the order in which they step
    schedules: Mapping[int, BatchSchedule]
    rows: Mapping[int, int]  # the row of each client's halves; halves are summed in the order of rows


class Trained(NamedTuple):
    """The outcome of a round's training: the state after it, its tally, and the drift of the halves."""

    planned: RoundPlan
    after: Global
    tally: Tally
    drift: tuple[float | None, float | None]  # of the fronts, and of the server halves
    observations: Sequence[Sequence[Any]] = ()  # what every process saw of its clients, where asked for


class Engine:
    """Plays rounds. It keeps no state of the training, only the server's reusable buffers."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._traits = setup.traits
        self._regulator = self._traits.regulator
        self._server: tuple[int, Server] | None = None
        self._p_s = server_seconds(setup.devices, setup.clock.kappa)

    def play(self, state: Global, attempt: int = 0) -> tuple[Global, Round]:
        """Play round state.n + 1. All its effects are in what it returns, so a round that fails changes nothing."""
        self._began = time.perf_counter()
        with torch_threads(self.setup.torch_threads), torch.no_grad():
            after, record = self._play(state, attempt)
        self.setup.spill_cache.trim(after.owned)
        return after, replace(record, seconds=time.perf_counter() - self._began)

    def _play(self, state: Global, attempt: int) -> tuple[Global, Round]:
        trained = self._train(state, attempt)
        return trained.after, self._record(trained)

    def _train(self, state: Global, attempt: int) -> Trained:
        """Train one round, without evaluating it."""
        planned = self._plan_round(state, attempt)
        if planned.J:
            return self._train_clients(state, planned)
        if self.setup.cohort.remote:
            raise RoundAbandoned(f"round {planned.n}: none of its {planned.selected} clients has a full batch")
        return Trained(planned, replace(state, n=planned.n), Tally(), (0.0, 0.0))

    def _plan_round(self, state: Global, attempt: int) -> RoundPlan:
        s, n = self.setup, state.n + 1
        cut, everybody = self._cut(n), Availability(range(len(s.sizes)), s.select)
        available = s.cohort.available(n, everybody)
        self._began = time.perf_counter()  # waiting for clients is not training
        selected = self._select(n, attempt, cut, available, state.participations)
        schedules = self._feeds(selected, cut)
        J = {j: schedules[j].epochs_of(s.sizes[j]) for j in selected}
        J = {j: epochs for j, epochs in J.items() if epochs}  # T_j >= 1
        order = self._order(n, list(J))
        rows = {j: row for row, j in enumerate(self._rows(J, order))}
        return RoundPlan(n, attempt, cut, len(selected), available.quorum, J, order, schedules, rows)

    def _train_clients(self, state: Global, planned: RoundPlan) -> Trained:
        """Train this rank's clients, in groups of as many as memory allows."""
        s, n, processes = self.setup, planned.n, self.setup.trains
        everybody = list(planned.rows)
        mine = list(processes.mine(everybody, s.backend.size))
        groups = blocks(mine, s.group or max(len(mine), 1)) or [[]]
        server = self._server_at(planned.cut)
        exchange = Exchange(s.cohort, n, planned.attempt, self._traits.fuses_clients, server.half.returns)
        self._begin(server, state, planned, exchange, everybody)
        W_c, _ = state.W.split(s.offsets[planned.cut])
        memory_c, _ = self._shared_memory(state, len(W_c.w))
        sizes = [s.sizes[j] for j in everybody] if len(groups) > 1 or processes.size > 1 else None
        aggregator = Aggregator(s, state, planned.cut, server, processes, sizes, len(groups) > 1)
        waves_of = functools.partial(self._waves, server, state, planned)
        for group in groups:
            server.place = planned.rows[group[0]] if group else 0
            session = s.scheme.open(server, group)
            plans = {j: self._plan(state, planned, j, W_c, memory_c) for j in group}
            stepping = [j for j in planned.order if len(groups) == 1 or j in plans]
            aggregator.add(session.close, self._legs(exchange, session, plans, waves_of, stepping))
        reports = aggregator.reports
        if len(reports) < min(planned.quorum, len(planned.J)) and processes.size == 1:
            done = f"{len(reports) or 'none'} of its {len(planned.J)} clients finished, {planned.quorum} must"
            raise RoundAbandoned(f"round {n}: {done}; the weights are unchanged")
        ledger = exchange.ledger
        ledger.server_work = server.work
        ledger.tried = server.steps + sum(report.tried for report in reports)
        ledger.clipped = int(server.clipped + sum(report.clipped for report in reports))
        ledger.clients = [report.address.client for report in reports]
        tally = together([Tally(*words) for words in processes.everyones(list(ledger.tally()))])
        tally.check(n, s.rates(n))
        after = aggregator.end()
        observations = processes.everyones(list(detail.observed(ledger, aggregator, server))) if s.detail else ()
        server.end()
        return Trained(planned, after, tally, aggregator.drift, observations)

    def _begin(
        self, server: Server, state: Global, planned: RoundPlan, exchange: Exchange, everybody: Sequence[int]
    ) -> None:
        s, n = self.setup, planned.n
        W_c, W_s = state.W.split(s.offsets[planned.cut])
        opening = Opening(
            round=n,
            start=W_s,
            eta=functools.cache(functools.partial(s.eta_server, n)),
            samples={j: s.sizes[j] for j in everybody},
            batch={j: planned.schedules[j].batch_size for j in everybody},
            kept=lambda owner: state.moments(owner, n),
            memory=self._shared_memory(state, len(W_c.w))[1],
            send=exchange.send,
            tail=exchange.tail_step if s.layout.tail else None,
        )
        server.begin(opening)

    def _select(
        self, n: int, attempt: int, cut: int, available: Availability, participations: Mapping[int, int]
    ) -> list[int]:
        """Select J_n: drawn without replacement, in client order; or chosen by the scheme from twice as many."""
        s, everybody, m = self.setup, len(available.clients), available.select

        def draw(m: int) -> list[int]:
            if m == everybody:
                return list(available.clients)
            use = f"select/{attempt}" if attempt else "select"
            chosen = rng(s.seed, n, EVERYBODY, use).choice(everybody, m, replace=False)
            return sorted(available.clients[int(i)] for i in chosen)

        if self._regulator is not None and self._traits.needs_labels == "counts":
            pool = draw(min(2 * m, everybody))
            d = {j: schedule.batch_size for j, schedule in self._feeds(pool, cut).items()}
            return self._regulator.choose(pool, m, d, participations, s.histogram) or draw(m)
        return draw(m)

    def _feeds(self, selected: Sequence[int], cut: int) -> dict[int, BatchSchedule]:
        """Return each client's batch schedule; where the scheme regulates batch sizes, with the one for its device."""
        s = self.setup
        if self._regulator is None:
            return dict.fromkeys(selected, s.schedule)
        cost = {j: seconds_per_sample(s.devices[j], s.shape, cut) for j in selected}
        whole = {j: s.sizes[j] // s.schedule.accumulate for j in selected}  # so that each has a full step
        d = self._regulator.batches(s.schedule.batch_size, whole, cost)
        return {j: replace(s.schedule, batch_size=d[j]) for j in selected}

    def _cut(self, n: int) -> int:
        lo, hi = self.setup.cuts
        return lo if lo == hi else int(rng(self.setup.seed, n, EVERYBODY, "cut").integers(lo, hi + 1))

    def _server_at(self, cut: int) -> Server:
        s = self.setup
        if self._server is None or self._server[0] != cut:
            rules = Rules(s.server_optimizer, s.loss, s.seed, s.schedule.shuffle, s.local, s.persists, s.optimizer)
            rules = replace(rules, watched=s.detail, calibrate=s.calibrate)
            compute = Compute(s.backend.workers, s.backend.size, s.backend.back is None, s.trains)
            self._server = cut, Server(s.back(cut), rules, compute)
        return self._server[1]

    def _shared_memory(self, state: Global, at: int) -> tuple[Moments | None, Moments | None]:
        """Return the averaged momentum that all clients start with, front and back; None: the update averages none."""
        found = state.moments(AVERAGED, state.n + 1)
        if found is None:
            return None, None
        m, t = found
        return Moments(tuple(v[:at] for v in m), t), Moments(tuple(v[at:] for v in m), t)

    def _plan(self, state: Global, planned: RoundPlan, j: int, W_c: Vectors, memory: Moments | None) -> Plan:
        s, own = self.setup, state.client(j, planned.n)
        n, schedule, keeps = planned.n, planned.schedules[j], self._traits.carry == "keep"
        etas = [s.eta(n, k) for k in range(schedule.total(s.sizes[j]) if s.by_step else 1)]
        if self._regulator is not None:
            etas = [self._regulator.rate(eta, schedule.batch_size, s.schedule.batch_size) for eta in etas]
        return Plan(
            address=Address(n, j, -1, planned.attempt),
            cut=planned.cut,
            start=None if own.front is not None or (keeps and own.remote) else W_c,
            schedule=schedule,
            optimizer=s.optimizer,
            eta=etas[0],
            etas=torch.tensor(etas, dtype=torch.float64) if s.by_step else None,
            local=s.local,
            noise=s.noise,
            loss=s.loss if s.layout.tail else None,
            memory=memory,
            shares_memory=buffers_of(s.update) == "average",
            keeps_half=keeps,
            keeps_memory=s.persists,
            fuses=self._traits.fuses_clients,
            confirmed=own.round,
            own=own,
            row=planned.rows[j],
        )

    def _legs(
        self, exchange: Exchange, session: Session, plans: Mapping[int, Plan], waves_of: WavesOf, order: Sequence[int]
    ) -> list[Report]:
        """Train all clients together; or, where the front is passed on, one by one, each from where the last ended."""
        if self._traits.carry != "relay":
            return exchange.leg(list(plans.values()), waves_of(order), session)
        reports: list[Report] = []
        for j in order:
            start = reports[-1].end if reports else plans[j].start
            done = exchange.leg([replace(plans[j], start=start)], waves_of([j]), session)
            reports += [_apart(report) for report in done]
        return reports

    def _waves(self, server: Server, state: Global, planned: RoundPlan, clients: Sequence[int]) -> Iterator[Wave]:
        """Yield the waves of these clients, in the order in which they step, and tell the server of each."""
        s, accumulate = self.setup, self.setup.schedule.accumulate
        steps = waves(self._traits.order, {j: planned.J[j] for j in clients})

        def pieces(j: int, k: int) -> int:
            schedule = planned.schedules[j]
            before = state.participations.get(j, 0) * schedule.total(s.sizes[j]) if schedule.onward else 0
            return schedule.pieces(s.sizes[j], before + k)

        k = dict.fromkeys(clients, 0)  # the steps that each has taken
        for wave in steps if accumulate == 1 else micro_waves(steps, accumulate, pieces):
            server.wave({j: k[j] for j in wave.clients}, wave.partial)
            yield wave
            k |= {j: k[j] + (not wave.partial) for j in wave.clients}

    def _rows(self, J: Mapping[int, list[int]], order: Sequence[int]) -> Sequence[int]:
        """Return the clients in the order of their rows. Where memory belongs to slots, that is the order of stepping;
        where server halves are spread, most steps first, so that the clients still stepping are neighbours."""
        s = self.setup
        if s.persists:
            return order
        return sorted(J, key=lambda j: -sum(J[j])) if self._traits.spread else list(J)

    def _order(self, n: int, J: list[int]) -> list[int]:
        """Return the clients in the order in which they step: a new random one every round where the order matters."""
        s = self.setup
        if not s.schedule.shuffle or not (s.persists or self._traits.order == "one_by_one"):
            return J
        return [J[int(i)] for i in rng(s.seed, n, EVERYBODY, "turn").permutation(len(J))]

    def _record(self, trained: Trained) -> Round:
        planned, after, tally, drift, observations = trained
        s, n, cut = self.setup, after.n, planned.cut
        faults, selected = s.cohort.faults(), list(planned.schedules)
        lost = detail.lost(selected, list(planned.J), tally.clients, faults) if s.detail else {}
        scores, series = scored(s, after, tally.clients)
        work = {j: (steps, samples) for j, steps, samples in tally.work}
        record = Round(
            n=n,
            **asdict(scores),
            participants=len(tally.clients),
            skipped=planned.selected - len(planned.J),
            lost=len(planned.J) - len(tally.clients),
            steps=tally.steps,
            samples=tally.samples,
            bytes_up=tally.up,
            bytes_down=tally.down,
            macs_client=TRAINING * tally.samples * sum(s.shape.macs[: cut + 1]),
            macs_server=tally.server_work * sum(s.shape.macs[cut + 1 :]),
            sim_seconds=self._simulated(work, cut),
            seconds=0.0,
            drift_client=drift[0],
            drift_server=drift[1],
            train_loss=tally.train_loss,
            clip_rate=tally.clipped / tally.tried if clips(s.local) and tally.tried else None,
            lr=s.eta(n),
            cut=cut,
            clients=tuple(tally.clients),
            client_steps=tuple(work[j][0] for j in tally.clients),
            client_samples=tuple(work[j][1] for j in tally.clients),
            series=series,
            faults=tuple(map(str, faults)),
            detail=detail.columns(observations, selected, lost) if s.detail else None,
        )
        return shared(s.processes, record)

    def _simulated(self, work: Mapping[int, tuple[int, int]], cut: int) -> float | None:
        """Return the seconds that this round would take on the simulated devices; None: the clients are remote."""
        s = self.setup
        if s.cohort.remote:
            return None
        steps = {j: T for j, (T, _) in work.items() if T}
        done = Work(steps, {j: samples / T for j, (T, samples) in work.items() if T}, cut)
        return self._traits.seconds(s.clock, done, s.devices, s.shape, self._p_s, s.offsets[cut][0])


def _apart(report: Report) -> Report:
    """Copy what a report holds, because the next client will overwrite the rows that it views."""
    end, memory = report.end, report.memory
    return replace(report, end=end and end.clone(), memory=memory and memory.clone())
