"""A cohort that misbehaves on purpose: messages lost, late, doubled or out of order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from cutlayer.clients.cohort import Cohort
from cutlayer.clients.messages import Attached, CutGrad, FeatureGrad, Features, Momentum, Plan, Report, Smashed, Square
from cutlayer.clients.waves import Wave

REPORT = -1  # the step of a Report's address
What = Literal["step", "features", "square", "momentum"]
WHAT: dict[type, What] = {
    Smashed: "step",
    Attached: "step",
    Report: "step",
    FeatureGrad: "features",
    Square: "square",
    Momentum: "momentum",
}
Item = TypeVar("Item")
Message = TypeVar("Message", Smashed, FeatureGrad, Report, Square, Momentum)


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one message, known by its address; step REPORT stands for the client's report.

    drop        it never arrives, and its client is silent for the rest of the round
    delay       it arrives with the next messages of its kind, too late; its client waits for an answer that never comes
    duplicate   it arrives twice at once
    repeat      it arrives in time, and once more with the next messages of its kind

    `what`: the client's step (or report), the gradient of its features where labels stay with it, the squared norm it
    answers a gradient with, or its momentum after a step.
    """

    kind: Literal["drop", "delay", "duplicate", "repeat"]
    round: int
    client: int
    step: int
    what: What = "step"


class FaultyCohort(Cohort):
    """Wraps any cohort. `fired` counts the faults that really happened; `reordered` the lists whose order changed."""

    def __init__(self, inner: Cohort, faults: Sequence[Fault] = (), reorder: int | None = None) -> None:
        self.inner = inner
        self._faults = {(f.what, f.round, f.client, f.step): f for f in faults}
        assert len(self._faults) == len(faults), "one fault per message"
        self.fired: Counter[Fault] = Counter()
        self.reordered = 0
        self._random = None if reorder is None else random.Random(reorder)
        self._silent: set[int] = set()
        self._late: list[Smashed | FeatureGrad | Report | Square | Momentum] = []

    @property
    def unfired(self) -> list[Fault]:
        """The faults that have not happened."""
        return [fault for fault in self._faults.values() if not self.fired[fault]]

    def open(self, plans: Sequence[Plan]) -> None:
        self._silent.clear()
        self.inner.open(self._shuffled(plans))

    def gather(self, wave: Wave) -> list[Smashed]:
        speaking = tuple(j for j in self._shuffled(wave.clients) if j not in self._silent)
        sent = self.inner.gather(replace(wave, clients=speaking)) if speaking else []
        return self._carried(sent, Smashed)

    def tail_step(self, features: Sequence[Features]) -> list[FeatureGrad]:
        asked = [f.address.client for f in features]
        assert len(asked) == len(set(asked)) and not self._silent & set(asked), f"features for {asked}"
        return self._carried(self.inner.tail_step(self._shuffled(features)), FeatureGrad)

    def scatter(self, replies: Sequence[CutGrad]) -> list[Square]:
        answered = [reply.address.client for reply in replies]
        assert len(answered) == len(set(answered)), f"a client is answered twice: {answered}"
        assert not self._silent & set(answered), f"a lost client is answered: {answered}"
        return self._carried(self.inner.scatter(self._shuffled(replies)), Square)

    def momenta(self, clients: Sequence[int]) -> list[Momentum]:
        assert not self._silent & set(clients), f"a lost client is asked for its momentum: {clients}"
        return self._carried(self.inner.momenta(self._shuffled(clients)), Momentum)

    def adopt(self, fused: Sequence[Momentum]) -> None:
        given = [momentum.address.client for momentum in fused]
        assert len(given) == len(set(given)), f"a client is given two momenta: {given}"
        assert not self._silent & set(given), f"a lost client is given a momentum: {given}"
        self.inner.adopt(self._shuffled(fused))

    def close(self, clients: Sequence[int]) -> list[Report]:
        speaking = [j for j in self._shuffled(clients) if j not in self._silent]
        return self._carried(self.inner.close(speaking) if speaking else [], Report)

    def _carried(self, sent: Sequence[Message], kind: type[Message]) -> list[Message]:
        """What arrives when these are sent: the late ones of the same kind too."""
        kinds = (Smashed, Attached) if kind is Smashed else kind
        late = [message for message in self._late if isinstance(message, kinds)]
        self._late = [message for message in self._late if not isinstance(message, kinds)]
        return self._shuffled(late + [copy for message in sent for copy in self._carry(message)])

    def _carry(self, message: Message) -> list[Message]:
        """What arrives now of a message that was sent now."""
        address = message.address
        fault = self._faults.get((WHAT[type(message)], address.round, address.client, address.step))
        if fault is None:
            return [message]
        self.fired[fault] += 1
        if fault.kind in ("drop", "delay"):
            self._silent.add(address.client)
        if fault.kind in ("delay", "repeat") and not isinstance(message, Report):
            self._late.append(message)
        return {"drop": [], "delay": [], "duplicate": [message, message], "repeat": [message]}[fault.kind]

    def _shuffled(self, items: Sequence[Item]) -> list[Item]:
        mixed = list(items)
        if self._random is not None:
            self._random.shuffle(mixed)
            self.reordered += any(one is not other for one, other in zip(mixed, items, strict=True))
        return mixed
