"""The end of a round: average and update the halves, and gather the state that lives on from all ranks.

p_j   |D_j| / sum of |D_i| over the clients that reported        W_bar   sum_j p_j W_j
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from cutlayer.clients.messages import Report
from cutlayer.clients.state import AVERAGED, ClientState, Owner, client
from cutlayer.core.devices import to_host
from cutlayer.core.group import ProcessGroup
from cutlayer.engine.records import Global
from cutlayer.engine.setup import Setup
from cutlayer.engine.spill import OwnedState
from cutlayer.errors import Diverged
from cutlayer.nn.flat import Vectors
from cutlayer.optim.averaging import Mean, average, distances, drift
from cutlayer.optim.memory import Moments
from cutlayer.optim.update import buffers_of, half_of
from cutlayer.schemes.base import Closed
from cutlayer.schemes.server import Server


class Aggregator:
    """Averages the halves of one group of clients after another (usually there is only one), then ends the round.

    `sizes`: |D_j| of all clients of the round. Where reports come in `several` groups or at several ranks, p_j must
    be known before the last report; None: p_j is over the clients that reported.
    """

    def __init__(
        self,
        setup: Setup,
        state: Global,
        cut: int,
        server: Server,
        processes: ProcessGroup,
        sizes: Sequence[int] | None,
        several: bool,
    ) -> None:
        self.setup, self.state, self.n = setup, state, state.n + 1
        self.server, self.processes, self.several = server, processes, several
        self.W_c, self.W_s = state.W.split(setup.offsets[cut])
        self.uniform = getattr(setup.update, "weights", "samples") == "uniform"
        self.total = None if sizes is None else sum(1 if self.uniform else size for size in sizes)
        workers = setup.backend.workers
        self.mean_c, self.mean_s = Mean(self.W_c, workers, processes), Mean(self.W_s, workers, processes)
        self.reports: list[Report] = []
        self.made: dict[Owner, Mapping[str, Tensor]] = {}
        self.drift: tuple[float | None, float | None] = (None, None)
        self.distances: dict[str, dict[int, float]] = {}  # of each client's halves to their means, where asked for

    def add(self, close: Callable[[], Closed], reports: Sequence[Report]) -> None:
        """Add the halves of one group. Either both halves of a client are averaged, or neither."""
        if not reports and self.processes.size == 1:
            return
        closed = close()
        s, clients = self.setup, [report.address.client for report in reports]
        weights = [1 if self.uniform else report.samples for report in reports]
        p = _shares(weights, self.total)
        p_c = p if closed.weights is None else _shares([closed.weights[j] for j in clients], None)
        ends = [report.end for report in reports if report.end is not None]
        self.fronts = ends if len(ends) == len(reports) else []  # fronts kept on other machines are not sent
        one = isinstance(closed.halves, Vectors)
        self.backs = [closed.halves] if isinstance(closed.halves, Vectors) else [closed.halves[j] for j in clients]
        self.mean_s.add(self.backs, [1.0] if one else p)
        relayed = s.traits.carry == "relay"
        known = bool(self.fronts) or self.processes.size > 1  # a rank with no front must still join the sum
        if known:
            self.mean_c.add(self.fronts[-1:] if relayed else self.fronts, [1.0] if relayed else p_c)
        self.made |= self._owned(reports, p)
        self.reports += reports
        if not self.several:  # with several, the first groups' halves are gone by the time the mean is known
            drift_c = drift(self.fronts, self.mean_c.value, s.backend.workers, self.processes) if known else None
            self.drift = (
                0.0 if relayed else drift_c,
                0.0 if one else drift(self.backs, self.mean_s.value, s.backend.workers, self.processes),
            )

            if s.detail:
                workers, each = s.backend.workers, {} if one else {"drift_server": (self.backs, self.mean_s)}
                each |= {"drift_client": (self.fronts, self.mean_c)} if self.fronts and not relayed else {}
                self.distances = {
                    name: dict(zip(clients, distances(halves, mean.value, workers), strict=True))
                    for name, (halves, mean) in each.items()
                }

    def end(self) -> Global:
        """Apply the update to the mean and return the state after the round."""
        s, n, state = self.setup, self.n, self.state
        self._without_the_lost()
        W_bar_c, W_bar_s = self.mean_c.value, self.mean_s.value
        momentum = dict(state.update)
        eta_c, eta_s = s.eta(n), s.eta_server(n)
        if s.traits.carry == "keep":  # the update acts on what is averaged: the server half
            w_s = s.update(self.W_s.w, W_bar_s.w, momentum, eta_s)
            halves = zip(self.W_c, W_bar_s._replace(w=w_s), strict=True)
            W = Vectors(*(torch.cat(pair) for pair in halves))
        else:
            W_bar = Vectors(*(torch.cat(pair) for pair in zip(W_bar_c, W_bar_s, strict=True)))
            eta = eta_c if eta_c == eta_s else _by_half(W_bar.w, len(self.W_c.w), eta_c, eta_s)
            w = s.update(state.W.w, W_bar.w, momentum, eta)
            if (half := half_of(s.update)) is not None:
                other = slice(len(self.W_c.w), None) if half == "front" else slice(len(self.W_c.w))
                w[other] = W_bar.w[other]
            W = W_bar._replace(w=w)
        self._check_finite(W)
        clients = [j for some in self.processes.everyones([r.address.client for r in self.reports]) for j in some]
        participations = {**state.participations, **{j: state.participations.get(j, 0) + 1 for j in clients}}
        return Global(n, W, momentum, {**state.owned, **self._everybodys(self.made)}, participations)

    def _without_the_lost(self) -> None:
        """Rescale the means if a client did not report: p_j was taken over all clients of the round."""
        reported = sum(self.processes.everyones(sum(1 if self.uniform else report.samples for report in self.reports)))
        if self.total is not None and reported != self.total:
            for mean in (self.mean_c, self.mean_s):
                mean.scale(self.total / reported)

    def _everybodys(self, made: Mapping[Owner, Mapping[str, Tensor]]) -> dict[Owner, OwnedState]:
        """Return what owners keep, from all ranks: in the next round a client may be at any rank."""
        if self.processes.size > 1:
            flat = {f"{owner}//{name}": tensor for owner, named in made.items() for name, tensor in named.items()}
            gathered: dict[Owner, dict[str, Tensor]] = {}
            for found in self.processes.all_tensors(flat):
                for key, tensor in found.items():
                    owner, _, name = key.rpartition("//")
                    gathered.setdefault(Owner(owner), {})[name] = tensor
            made = gathered
        return {owner: OwnedState(self.n, tensors) for owner, tensors in made.items()}

    def _owned(self, reports: Sequence[Report], p: Sequence[float]) -> dict[Owner, Mapping[str, Tensor]]:
        """Return the state that lives on besides the weights, by owner."""
        s, server = self.setup, self.server
        made: dict[Owner, Mapping[str, Tensor]] = {owner: moments.named() for owner, moments in server.kept().items()}
        keeps = s.traits.carry == "keep"
        for report in reports if keeps or s.persists else ():
            own = report.own(keeps, s.persists)
            made[client(report.address.client)] = (own or ClientState(round=self.n)).named()
        if buffers_of(s.update) == "average":
            made[AVERAGED] = self._momentum(reports, p).named()
        return made

    def _momentum(self, reports: Sequence[Report], p: Sequence[float]) -> Moments:
        """Return the mean of the clients' optimizer memory, for the whole model."""
        server, none = self.server, torch.empty(0)
        here = [j for j in server.samples if j in {report.address.client for report in reports}]
        first = list(server.samples).index(here[0]) if here and self.processes.size > 1 else 0
        rows = {j: r - first for r, j in enumerate(server.samples)}
        theirs = [(report.memory, report.address.client) for report in reports]
        pairs = [(memory, server.moments(rows[j])) for memory, j in theirs if memory is not None]
        m = []
        for i in range(self.setup.optimizer.moments):
            halves = []
            for side, like in enumerate((self.W_c.w, self.W_s.w)):
                known = [Vectors(pair[side].m[i], none, none.long()) for pair in pairs]
                empty = Vectors(like, none, none.long())
                halves.append(average(known, p, empty, self.setup.backend.workers, self.processes).w)
            m.append(torch.cat(halves))
        t = max((half.t for pair in pairs for half in pair), default=0)
        return Moments(tuple(m), max(self.processes.everyones(t)))

    def _check_finite(self, W: Vectors) -> None:
        keeps = self.setup.traits.carry == "keep"
        if _finite([W]) and all(self.processes.everyones(not keeps or _finite(self.fronts))):
            return
        backs = self.backs * len(self.fronts) if len(self.backs) == 1 else self.backs
        clients = [report.address.client for report in self.reports][-len(self.fronts) :]
        pairs = zip(clients, self.fronts, backs, strict=True)
        who = next((j for j, *halves in pairs if not _finite(halves)), None)
        found = [j for j in self.processes.everyones(who) if j is not None]
        whose = f" of client {found[0]}" if found else ""
        raise Diverged(f"round {self.n}: the weights{whose} are no longer finite, {self.setup.rates(self.n)}")


def _shares(weights: Sequence[float], total: float | None) -> list[float]:
    total = sum(weights) if total is None else total
    return [weight / total for weight in weights]


def _by_half(like: Tensor, at: int, eta_c: float, eta_s: float) -> Tensor:
    """Return the learning rate of each weight."""
    eta = torch.full_like(like, eta_s)
    eta[:at] = eta_c
    return eta


def _finite(halves: Sequence[Vectors]) -> bool:
    """Whether all weights are finite. A finite sum proves it; any other sum may be an overflow, so look at each."""
    sums = to_host([torch.stack([half.w.sum() for half in halves])])[0].tolist() if halves else []
    return all(math.isfinite(s) or bool(torch.isfinite(half.w).all()) for s, half in zip(sums, halves, strict=True))
