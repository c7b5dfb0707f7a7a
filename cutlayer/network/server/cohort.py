"""Clients on other machines. They send by themselves what comes next; whoever is silent past its deadline, gone, or in
breach of the contract has finished for this round, and is named in `faults`."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from torch import Tensor

from cutlayer.clients.cohort import Availability, Cohort
from cutlayer.clients.messages import Address, CutGrad, FeatureGrad, Features, Momentum, Plan, Report, Smashed, Square
from cutlayer.clients.waves import Wave
from cutlayer.errors import ContractError, FrameError, RoundAbandoned, StoreError
from cutlayer.network.protocol.codec import encode
from cutlayer.network.protocol.contract import Contract
from cutlayer.network.server.roster import Roster
from cutlayer.network.transport import Code, plain
from cutlayer.network.transport.frames import Frame
from cutlayer.network.transport.hub import Connection, Event, Hub
from cutlayer.optim.local import joint

AHEAD = 4  # frames a client may send before it is asked for them: its next step or its report, and some twice
SHORT = ("Features", "CutGrad")  # what may be shortened on its way, at a loss
log = logging.getLogger(__name__)
TICK = 0.5  # seconds between looks at the clock while waiting for clients


@dataclass
class Patience:
    """How long to wait for the slowest answer: `factor` times the slowest of late, between `least` and `most` seconds;
    before there was any, `first`."""

    first: float = 60.0
    least: float = 5.0
    most: float = 600.0
    factor: float = 5.0
    seen: deque[float] = field(default_factory=lambda: deque(maxlen=50))

    @property
    def seconds(self) -> float:
        return min(max(self.factor * max(self.seen), self.least), self.most) if self.seen else self.first


@dataclass(frozen=True)
class Rules:
    """When a round begins, and when it counts.

    `least`: clients there must be. `select(n)`: how many of n take part; `over` times as many are asked, and at least
    the share `quorum` of them has to finish. `attempts`: at one round. `code`, `zstd`: how activations and gradients
    are shortened on their way, and everything compressed.
    """

    least: int = 1
    select: Callable[[int], int] = lambda n: n
    over: float = 1.0
    quorum: float = 0.5
    attempts: int = 20
    code: Code = "raw"
    zstd: bool = False


@dataclass
class Participant:
    """A client of this round."""

    plan: Plan
    session: Connection
    step: int = 0  # its next one
    asked: float = field(default_factory=time.monotonic)
    inbox: deque[tuple[Frame, float]] = field(default_factory=deque)
    taken: set[tuple[str, int]] = field(default_factory=set)  # what it has sent: kind and step


class NetCohort(Cohort):
    """The clients in the roster, through the hub."""

    remote = True

    def __init__(
        self, hub: Hub, roster: Roster, contract: Contract, patience: Patience, rules: Rules, grace: float
    ) -> None:
        self.hub, self.roster, self.contract, self.patience, self.rules = hub, roster, contract, patience, rules
        self.grace = grace  # seconds for everybody to come back, once: after a restart
        self.places: dict[int, Participant] = {}
        self.status = ""
        self._faults: list[str] = []

    # who is there

    def available(self, n: int, everybody: Availability) -> Availability:
        """Wait until enough are there: at first the least number, after a restart everybody for a while, and then a
        quorum of the least number."""
        rules = self.rules
        self.poll()
        try:
            revoked = self.hub.revoked()
        except StoreError as error:
            log.error("nobody new is admitted: %s", error)
            revoked = set()
        for name in revoked & {session.name for session in self.roster.sessions.values()}:
            self._revoke(name)
        if self.roster.fixed:
            self._wait(len(self.roster.entries), self.grace)
        else:
            self._wait(rules.least, math.inf)
            self.roster.fix()
        self.grace = 0.0
        self._wait(_share(rules.quorum, rules.least), math.inf)
        there = self.roster.connected
        m = min(rules.select(len(there)), len(there))
        self.status = f"round {n}"
        return Availability(there, min(math.ceil(rules.over * m), len(there)), _share(rules.quorum, m))

    def _wait(self, clients: int, seconds: float) -> None:
        """Until so many are there, or so long."""
        until = time.monotonic() + seconds
        while len(self.roster.connected) < clients and time.monotonic() < until:
            self.status = f"waiting for clients: {len(self.roster.connected)} of {clients} are there"
            self._handle(self.hub.next(TICK))

    def _count(self) -> str:
        there = len(self.roster.connected)
        return f"{there} clients" if self.roster.fixed else f"{there} of {self.rules.least} clients"

    def _revoke(self, name: str) -> None:
        for session in [session for session in self.roster.sessions.values() if session.name == name]:
            session.send("Refused", {"why": f"client {name}: its certificate has been revoked"})
            session.close()
            self.roster.went(session)

    def retry(self, error: RoundAbandoned, attempt: int) -> None:
        for j in list(self.places):
            self._drop(j, "the round does not count", fault=False)
        if attempt + 1 >= self.rules.attempts:
            raise RoundAbandoned(f"{error} ({self.rules.attempts} attempts)") from error
        self._faults.append(f"attempt {attempt + 1}: {error}")
        until = time.monotonic() + min(0.1 * 2**attempt, 5.0)
        while (left := until - time.monotonic()) > 0:
            self._handle(self.hub.next(left))

    def faults(self) -> tuple[str, ...]:
        found, self._faults = tuple(self._faults), []
        return found

    def poll(self) -> None:
        """What has happened meanwhile."""
        while (event := self.hub.next(0.0)) is not None:
            self._handle(event)

    # a round

    def open(self, plans: Sequence[Plan]) -> None:
        self.poll()
        for plan in plans:
            j = plan.address.client
            session = self.roster.sessions.get(j)
            if session is None:
                self._faults.append(f"{self.roster.names[j]}: gone before its turn")
                continue
            if session.behind > session.limit:
                self._faults.append(f"{self.roster.names[j]}: it has not taken what it was sent before")
                continue
            session.limit = session.reader.limit = max(session.limit, self.contract.limit(plan))
            self.places[j] = Participant(
                plan, session
            )  # asked from now on: the answer may be here before `send` returns
            session.send("Plan", *encode(plan), zstd=self.rules.zstd)

    def gather(self, wave: Wave) -> list[Smashed]:
        return self._hear("Smashed", wave.clients)

    def tail_step(self, features: Sequence[Features]) -> list[FeatureGrad]:
        for f in features:
            self._send("Features", f.address, [f.z])
        return self._hear("FeatureGrad", [f.address.client for f in features])

    def scatter(self, replies: Sequence[CutGrad]) -> list[Square]:
        asking = []
        for reply in replies:
            assert reply.grad is not None, "a gradient that has flowed on does not travel"
            j = reply.address.client
            self._send("CutGrad", reply.address, [reply.grad, *([] if reply.square is None else [reply.square])])
            if j in self.places and joint(self.places[j].plan.local):
                asking.append(j)
        squares: list[Square] = self._hear("Square", asking)
        for reply in replies:
            if reply.address.client in self.places:
                self.places[reply.address.client].step += 1
        return squares

    def momenta(self, clients: Sequence[int]) -> list[Momentum]:
        return self._hear("Momentum", clients)

    def adopt(self, fused: Sequence[Momentum]) -> None:
        for momentum in fused:
            self._send("Adopt", momentum.address, list(momentum.m))

    def close(self, clients: Sequence[int]) -> list[Report]:
        for j in clients:
            if j in self.places:
                self.places[j].step = -1
        reports: list[Report] = self._hear("Report", clients)
        for j in clients:
            self.places.pop(j, None)
        return reports

    def _send(self, kind: str, at: Address, tensors: Sequence[Tensor]) -> None:
        place, rules = self.places.get(at.client), self.rules
        if place is not None and place.session.behind > AHEAD * place.session.limit:
            self._drop(at.client, "it does not take what it is sent")
        elif place is not None:
            code = rules.code if kind in SHORT else "raw"
            place.asked = time.monotonic()
            place.session.send(kind, {"at": list(astuple(at))}, tensors, code, rules.zstd)

    def _hear(self, kind: str, clients: Sequence[int]) -> list[Any]:
        """One message of this kind from each of these clients, in time; whoever fails is lost."""
        found: dict[int, Any] = {}
        seconds = self.patience.seconds
        deadline = time.monotonic() + seconds
        waiting = set(clients) & self.places.keys()
        for j in clients:
            self._take(kind, j, found)
        waiting -= found.keys()
        while (waiting := waiting & self.places.keys()) and (left := deadline - time.monotonic()) > 0:
            j = self._handle(self.hub.next(left))
            if j in waiting:
                self._take(kind, j, found)
                waiting -= found.keys() & {j}
        for j in sorted(waiting):
            self._drop(j, f"silent for {seconds:.0f} seconds when a {kind} was due")
        return [found[j] for j in clients if j in found]

    def _take(self, kind: str, j: int, found: dict[int, Any]) -> None:
        """What client j has sent of this kind, if it has. Late and doubled frames change nothing."""
        place = self.places.get(j)
        while place is not None and place.inbox and j not in found:
            frame, at = place.inbox.popleft()
            try:
                step = self.contract.step(frame, place.plan)
                if step is None or (frame.kind, step) in place.taken:
                    continue
                if frame.kind != kind:
                    raise FrameError(f"a {frame.kind[:20]!r} where a {kind} was due")
                found[j] = self.contract.message(frame, place.plan, place.step, self.roster.sizes[j])
            except FrameError as error:
                self._drop(j, f"it sent {error}")
                return
            place.taken.add((frame.kind, step))
            self.patience.seen.append(at - place.asked)
            self.roster.heard(j, place.plan.address.round, place.step, at - place.asked)

    def _handle(self, event: Event | None) -> int:
        """Take note of what happened; the client of this round that it is about, or -1."""
        if event is None:
            return -1
        session, frame = event.session, event.frame
        if event.kind == "frame" and frame is not None and frame.kind == "Ready":
            try:
                self.roster.enrol(session, frame.words.get("samples"))
                log.info("%s: connected, %d samples; %s", session.name, frame.words["samples"], self._count())
            except ContractError as error:
                log.warning("%s is refused: %s", session.name, error)
                self.hub.counts["refused: client"] += 1
                session.send("Refused", {"why": str(error)})
                session.close()
            return -1
        j = self.roster.index(session)
        place = None if j is None else self.places.get(j)
        if event.kind == "went":
            self.roster.went(session)
            if j is not None:
                log.info("%s: %s; %s", session.name, plain(event.why), self._count())
        if j is None or place is None or place.session is not session:
            return -1
        if event.kind == "went":
            self._drop(j, event.why)
        elif frame is not None:
            place.inbox.append((frame, event.at))
            if len(place.inbox) > AHEAD:
                self._drop(j, "it sends more than it is asked for")
        return j

    def _drop(self, j: int, why: str, fault: bool = True) -> None:
        place = self.places.pop(j)
        at = place.plan.address
        place.session.send("Stop", {"round": at.round, "attempt": at.attempt, "why": why})
        if fault:
            self._faults.append(f"{self.roster.names[j]}: {plain(why)}")
            self.roster.entries[j].drops += 1


def _share(quorum: float, clients: int) -> int:
    return max(1, math.ceil(quorum * clients - 1e-9))
