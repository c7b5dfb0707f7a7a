"""Clients on other machines. They send the next message without being asked. A client that misses its deadline,
disconnects or breaks the contract is dropped from the round, and is named in `faults`."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from cutlayer.clients.codec import address_of
from cutlayer.clients.cohort import Availability, Cohort, Fault
from cutlayer.clients.messages import (
    Address,
    Adopt,
    CutGrad,
    Down,
    Features,
    Finish,
    NextStep,
    Plan,
    Smashed,
    Up,
    answers,
)
from cutlayer.errors import ContractError, FrameError, RoundAbandoned, StoreError
from cutlayer.network.protocol.codec import encode
from cutlayer.network.protocol.contract import Contract
from cutlayer.network.server.roster import Roster
from cutlayer.network.transport import Code, plain
from cutlayer.network.transport.frames import Frame
from cutlayer.network.transport.hub import Connection, Event, Hub

AHEAD = 4  # frames a client may send before they are asked for: its next step or its report, and repeats
SHORT = ("Features", "CutGrad")  # messages that `code` may shorten, with loss of precision
log = logging.getLogger(__name__)
TICK = 0.5  # seconds between checks of the clock while waiting for clients
LOOK = 5.0  # seconds between two looks at connections that ended before a greeting, while it waits


@dataclass
class Patience:
    """How long to wait for an answer: `factor` times the slowest recent one, between `least` and `most` seconds;
    `first` seconds as long as there is none."""

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

    `least`: clients that must be connected. `select(n)`: how many of n connected clients a round needs; `over` times as
    many are asked. `quorum`: the share of `select(n)` that must finish. `attempts`: tries at one round. `code`: how
    activations and gradients are shortened. `zstd`: whether everything is compressed.
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
    rows: int = 0  # of the batch under way
    asked: float = field(default_factory=time.monotonic)
    inbox: deque[tuple[Frame, float]] = field(default_factory=deque)
    taken: set[tuple[str, int]] = field(default_factory=set)  # (kind, step) of what it has sent


class NetCohort(Cohort):
    """The clients in the roster, reached through the hub."""

    remote = True

    def __init__(
        self, hub: Hub, roster: Roster, contract: Contract, patience: Patience, rules: Rules, grace: float
    ) -> None:
        self.hub, self.roster, self.contract, self.patience, self.rules = hub, roster, contract, patience, rules
        self.grace = grace  # seconds to wait for all known clients, once, after a restart
        self.participants: dict[int, Participant] = {}
        self.status = ""
        self._faults: list[Fault] = []

    # who is there

    def available(self, n: int, everybody: Availability) -> Availability:
        """Wait until enough clients are connected: before the first round `least` of them, after a restart all known
        ones (for `grace` seconds), and in every round a quorum of `least`."""
        rules = self.rules
        self.poll()
        self.hub.look()
        try:
            revoked = self.hub.revoked()
        except StoreError as error:
            log.error("nobody new is admitted: %s", error)
            revoked = set()
        for name in revoked & {session.name for session in self.roster.sessions.values()}:
            self._revoke(name)
        if self.roster.fixed:
            self._wait(sum(entry.name not in revoked for entry in self.roster.entries), self.grace)
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
        """Wait until so many clients are connected, or so many seconds have passed."""
        now = time.monotonic()
        until, look = now + seconds, now + LOOK
        while len(self.roster.connected) < clients and (now := time.monotonic()) < until:
            if now > look:
                self.hub.look()
                look = now + LOOK
            self.status = f"waiting for clients: {len(self.roster.connected)} of {clients} are there"
            self._handle(self.hub.next(TICK))

    def _count(self) -> str:
        there = len(self.roster.connected)
        return f"{there} clients" if self.roster.fixed else f"{there} of {self.rules.least} clients"

    def _revoke(self, name: str) -> None:
        for session in [session for session in self.roster.sessions.values() if session.name == name]:
            why = f"client {name}: its certificate has been revoked"
            self.hub.counts["refused: revoked"] += 1
            log.warning("%s; its stream is ended", why)
            session.send("Refused", {"why": why})
            session.close()
            self.roster.went(session)

    def retry(self, error: RoundAbandoned, attempt: int) -> None:
        for j in list(self.participants):
            self._drop(j, "the round does not count", fault=False)
        if attempt + 1 >= self.rules.attempts:
            raise RoundAbandoned(f"{error} ({self.rules.attempts} attempts)") from error
        self._faults.append(Fault(f"attempt {attempt + 1}: {error}"))
        until = time.monotonic() + min(0.1 * 2**attempt, 5.0)
        while (left := until - time.monotonic()) > 0:
            self._handle(self.hub.next(left))

    def faults(self) -> tuple[Fault, ...]:
        found, self._faults = tuple(self._faults), []
        return found

    def poll(self) -> None:
        """Handle all events that have arrived."""
        while (event := self.hub.next(0.0)) is not None:
            self._handle(event)

    # a round

    def ask(self, messages: Sequence[Down]) -> list[Up]:
        if isinstance(messages[0], Plan):
            self._open(cast(Sequence[Plan], messages))
            return []
        due: dict[type[Up], dict[int, Address]] = {}
        for message in messages:
            j = message.address.client
            if not isinstance(message, NextStep | Finish):  # a client does these unasked
                self._send(message)
            if j in self.participants:
                for kind, at in answers(message, self.participants[j].plan).items():
                    due.setdefault(kind, {})[j] = at
        found = [answer for kind, at in due.items() for answer in self._hear(kind, at)]
        if isinstance(messages[0], Finish):
            for message in messages:
                self.participants.pop(message.address.client, None)
        return found

    def _open(self, plans: Sequence[Plan]) -> None:
        self.poll()
        for plan in plans:
            j = plan.address.client
            session = self.roster.sessions.get(j)
            if session is None:
                self._faults.append(Fault("gone before its turn", j, self.roster.names[j]))
                continue
            if session.behind > session.limit:
                self._faults.append(Fault("it has not taken what it was sent before", j, self.roster.names[j]))
                continue
            session.limit = session.reader.limit = max(session.limit, self.contract.limit(plan))
            # first, because the answer may arrive before `send` returns
            self.participants[j] = Participant(plan, session)
            session.send(*encode(plan), zstd=self.rules.zstd)

    def _send(self, message: Features | CutGrad | Adopt | Plan) -> None:
        j, rules = message.address.client, self.rules
        participant = self.participants.get(j)
        if participant is not None and participant.session.behind > AHEAD * participant.session.limit:
            self._drop(j, "it does not take what it is sent")
        elif participant is not None:
            kind, words, tensors = encode(message)
            participant.asked = time.monotonic()
            participant.session.send(kind, words, tensors, rules.code if kind in SHORT else "raw", rules.zstd)

    def _hear(self, kind: type[Up], expected: Mapping[int, Address]) -> list[Up]:
        """Return a message of this kind from each of these clients; drop those that do not send it in time."""
        found: dict[int, Up] = {}
        seconds = self.patience.seconds
        deadline = time.monotonic() + seconds
        waiting = expected.keys() & self.participants.keys()
        for at in expected.values():
            self._take(kind.__name__, at, found)
        waiting -= found.keys()
        while (waiting := waiting & self.participants.keys()) and (left := deadline - time.monotonic()) > 0:
            j = self._handle(self.hub.next(left))
            if j in waiting:
                self._take(kind.__name__, expected[j], found)
                waiting -= found.keys() & {j}
        for j in sorted(waiting):
            self._drop(j, f"silent for {seconds:.0f} seconds when a {kind.__name__} was due")
        return [found[j] for j in expected if j in found]

    def _take(self, kind: str, expected: Address, found: dict[int, Up]) -> None:
        """Put this client's message of this kind into `found`, if it has arrived. Ignore late and repeated frames."""
        j = expected.client
        participant = self.participants.get(j)
        while participant is not None and participant.inbox and j not in found:
            frame, arrived = participant.inbox.popleft()
            plan = participant.plan
            try:
                step = address_of(frame.kind, frame.words).step
                if self.contract.late(frame, plan) or (frame.kind, step) in participant.taken:
                    continue
                if frame.kind != kind:
                    raise FrameError(f"a {frame.kind[:20]!r} where a {kind} was due")
                message = self.contract.message(frame, plan, expected, self.roster.sizes[j], participant.rows)
            except FrameError as error:
                self._drop(j, f"it sent {error}")
                return
            found[j] = message
            participant.rows = message.samples if isinstance(message, Smashed) else participant.rows
            participant.taken.add((frame.kind, step))
            self.patience.seen.append(arrived - participant.asked)
            self.roster.heard(j, expected.round, expected.step, arrived - participant.asked)

    def _handle(self, event: Event | None) -> int:
        """Handle an event; return the client of this round that it is about, or -1."""
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
        participant = None if j is None else self.participants.get(j)
        if event.kind == "went":
            self.roster.went(session)
            if j is not None:
                log.info("%s: %s; %s", session.name, plain(event.why), self._count())
        if j is None or participant is None or participant.session is not session:
            return -1
        if event.kind == "went":
            self._drop(j, event.why)
        elif frame is not None:
            participant.inbox.append((frame, event.at))
            if len(participant.inbox) > AHEAD:
                self._drop(j, "it sends more than it is asked for")
        return j

    def _drop(self, j: int, why: str, fault: bool = True) -> None:
        participant = self.participants.pop(j)
        at = participant.plan.address
        participant.session.send("Stop", {"round": at.round, "attempt": at.attempt, "why": why})
        if fault:
            self._faults.append(Fault(plain(why), j, self.roster.names[j]))
            self.roster.entries[j].drops += 1


def _share(quorum: float, clients: int) -> int:
    return max(1, math.ceil(quorum * clients - 1e-9))
