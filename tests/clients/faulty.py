"""A cohort that misbehaves on purpose: messages lost, late, doubled or out of order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from cutlayer.clients.cohort import Cohort
from cutlayer.clients.messages import (
    Attached,
    CutGrad,
    Down,
    FeatureGrad,
    Features,
    Finish,
    Momentum,
    NextStep,
    Plan,
    Report,
    Smashed,
    Square,
)

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
EXPECTED: dict[type, tuple[tuple[type, ...], ...]] = {
    NextStep: ((Smashed, Attached),),
    Features: ((FeatureGrad,),),
    CutGrad: ((Square,), (Momentum,)),
    Finish: ((Report,),),
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

    def ask(self, messages: Sequence[Down]) -> list[Any]:
        kind, clients = type(messages[0]).__name__, [message.address.client for message in messages]
        assert len(clients) == len(set(clients)), f"two of a {kind} for one client: {clients}"
        if isinstance(messages[0], Plan):
            self._silent.clear()
        silent = self._silent & set(clients)
        assert not silent or isinstance(messages[0], NextStep | Finish), f"a {kind} for a client that is lost: {silent}"
        speaking = [message for message in self._shuffled(messages) if message.address.client not in self._silent]
        sent = list(self.inner.ask(speaking)) if speaking else []
        arrived: list[Any] = []
        for kinds in EXPECTED.get(type(messages[0]), ()):
            arrived += self._carried([m for m in sent if isinstance(m, kinds)], kinds)
        return arrived

    def _carried(self, sent: Sequence[Message], kinds: tuple[type, ...]) -> list[Message]:
        """What arrives when these are sent: the late ones of the same kind too."""
        late = [message for message in self._late if isinstance(message, kinds)]
        self._late = [message for message in self._late if not isinstance(message, kinds)]
        speaking = [message for message in sent if message.address.client not in self._silent]
        return self._shuffled(late + [copy for message in speaking for copy in self._carry(message)])

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
