"""Clients on other machines. They send by themselves what comes next; whoever is silent past its deadline, gone, or in
breach of the contract has finished for this round, and is named in `faults`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from torch import Tensor

from cutlayer.cohorts.contract import Contract
from cutlayer.cohorts.orders import told
from cutlayer.cohorts.roster import Roster
from cutlayer.errors import FrameError
from cutlayer.local import joint
from cutlayer.messages import Address, CutGrad, FeatureGrad, Features, Momentum, Plan, Report, Smashed, Square
from cutlayer.net.frames import Code, Frame
from cutlayer.net.hub import Event, Hub, Session
from cutlayer.waves import Wave

AHEAD = 2  # frames a client may send before it is asked for them: its first step, and its report


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


@dataclass
class Place:
    """A client of this round."""

    plan: Plan
    session: Session
    step: int = 0  # its next one
    asked: float = field(default_factory=time.monotonic)
    inbox: deque[Frame] = field(default_factory=deque)


class NetCohort:
    """`code`, `zstd`: how activations and gradients are shortened on their way, and everything compressed."""

    def __init__(
        self, hub: Hub, roster: Roster, contract: Contract, patience: Patience, code: Code = "raw", zstd: bool = False
    ) -> None:
        self.hub, self.roster, self.contract, self.patience = hub, roster, contract, patience
        self.code, self.zstd = code, zstd
        self.places: dict[int, Place] = {}
        self.faults: list[str] = []

    def open(self, plans: Sequence[Plan]) -> None:
        self.poll()
        for plan in plans:
            j = plan.address.client
            session = self.roster.sessions.get(j)
            if session is None:
                self.faults.append(f"{self.roster.names[j]}: not connected")
                continue
            session.reader.limit = self.contract.limit(plan)
            session.send("Plan", *told(plan), zstd=self.zstd)
            self.places[j] = Place(plan, session)

    def gather(self, wave: Wave) -> list[Smashed]:
        return self._hear("Smashed", wave.clients)

    def turn(self, features: Sequence[Features]) -> list[FeatureGrad]:
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

    def give_up(self, why: str) -> None:
        """The round will not count: everybody may stop."""
        for j in list(self.places):
            self._drop(j, why, fault=False)

    def poll(self) -> None:
        """What has happened meanwhile."""
        while (event := self.hub.next(0.0)) is not None:
            self._handle(event)

    def _send(self, kind: str, at: Address, tensors: Sequence[Tensor]) -> None:
        place = self.places.get(at.client)
        if place is not None:
            place.session.send(kind, {"at": list(astuple(at))}, tensors, self.code, self.zstd)
            place.asked = time.monotonic()

    def _hear(self, kind: str, clients: Sequence[int]) -> list[Any]:
        """One message of this kind from each of these clients, in time; whoever fails is lost."""
        found: dict[int, Any] = {}
        deadline = time.monotonic() + self.patience.seconds
        while True:
            for j in clients:
                if j not in found and j in self.places:
                    self._take(kind, j, found)
            missing = [j for j in clients if j in self.places and j not in found]
            left = deadline - time.monotonic()
            if not missing or left <= 0:
                break
            event = self.hub.next(left)
            if event is not None:
                self._handle(event)
        for j in missing:
            self._drop(j, f"silent for {self.patience.seconds:.0f} seconds when a {kind} was due")
        return [found[j] for j in clients if j in found]

    def _take(self, kind: str, j: int, found: dict[int, Any]) -> None:
        place = self.places[j]
        while place.inbox:
            frame = place.inbox.popleft()
            try:
                if self.contract.stale(frame, place.plan, place.step):
                    continue
                if frame.kind != kind:
                    raise FrameError(f"a {frame.kind[:20]!r} where a {kind} was due")
                found[j] = self.contract.message(frame, place.plan, place.step)
                self.patience.seen.append(time.monotonic() - place.asked)
                self.roster.heard(j, place.plan.address.round, place.step, time.monotonic() - place.asked)
            except FrameError as error:
                self._drop(j, f"it sent {error}")
            return

    def _handle(self, event: Event) -> None:
        j = self.roster.index(event.session)
        match event.kind:
            case "came":
                self.roster.came(event.session)
            case "went":
                self.roster.went(event.session)
                if j in self.places and self.places[j].session is event.session:
                    self._drop(j, event.why)
            case "frame" if j in self.places and self.places[j].session is event.session and event.frame is not None:
                inbox = self.places[j].inbox
                inbox.append(event.frame)
                if len(inbox) > AHEAD:
                    self._drop(j, "it sends more than it is asked for")

    def _drop(self, j: int, why: str, fault: bool = True) -> None:
        place = self.places.pop(j)
        at = place.plan.address
        place.session.send("Stop", {"round": at.round, "attempt": at.attempt, "why": why})
        if fault:
            self.faults.append(f"{self.roster.names[j]}: {why}")
