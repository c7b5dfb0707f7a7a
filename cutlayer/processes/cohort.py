"""Clients spread over ranks, for schemes with one server model: the root runs the scheme and tells the others.

Every rank knows the round's plans. What travels: the start of a relayed front, smashed data, gradients, reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cutlayer.clients.cohort import Cohort
from cutlayer.clients.messages import CutGrad, FeatureGrad, Features, Momentum, Plan, Report, Square
from cutlayer.clients.waves import Wave
from cutlayer.processes.codec import Message, Start, decode, encode
from cutlayer.processes.ranks import Ranks


class RankCohort(Cohort):
    """At the root a Cohort like any other; the other ranks `serve` it until the round is over."""

    def __init__(self, inner: Cohort, processes: Ranks) -> None:
        self.inner, self.processes = inner, processes

    def assign(self, plans: Mapping[int, Plan], owners: Mapping[int, int]) -> None:
        """A new round: every client's plan, and the rank it is at."""
        self.plans, self.owners = plans, owners

    def serve(self) -> None:
        """Do what the root says, until the round is over."""
        while True:
            words, messages = decode(self.processes.deal([]))
            if words[0] == "over":
                return
            self.processes.gather(encode(self._do(words, messages)))

    def over(self) -> None:
        """The root has done with the round, or cannot go on with it."""
        self.processes.deal([encode([], "over")] * self.processes.size)

    def open(self, plans: Sequence[Plan]) -> None:
        moved = [plan for plan in plans if plan.start is not self.plans[plan.address.client].start]
        starts = [Start(plan.address, plan.start) for plan in moved if plan.start is not None]
        self._ask("open", [plan.address.client for plan in plans], messages=starts)

    def gather(self, wave: Wave) -> list[Any]:
        return self._ask("gather", list(wave.clients), wave.epoch)

    def tail_step(self, features: Sequence[Features]) -> list[FeatureGrad]:
        return self._ask("tail_step", messages=features)

    def scatter(self, replies: Sequence[CutGrad]) -> list[Square]:
        return self._ask("scatter", messages=replies)

    def momenta(self, clients: Sequence[int]) -> list[Momentum]:
        return self._ask("momenta", list(clients))

    def adopt(self, fused: Sequence[Momentum]) -> None:
        self._ask("adopt", messages=fused)

    def close(self, clients: Sequence[int]) -> list[Report]:
        return self._ask("close", list(clients))

    def _ask(self, *words: Any, messages: Sequence[Message] = ()) -> list[Any]:
        """The same words to every rank, to each the messages for its clients; all their answers."""
        shares: list[list[Message]] = [[] for _ in range(self.processes.size)]
        for message in messages:
            shares[self.owners[message.address.client]].append(message)
        self.processes.deal([encode(share, *words) for share in shares])
        own = self._do(list(words), shares[0])
        others = self.processes.gather(encode([]))[1:]
        return [*own, *(answer for blob in others for answer in decode(blob)[1])]

    def _do(self, words: Sequence[Any], messages: Sequence[Any]) -> Sequence[Any]:
        """This rank's part."""
        what, *rest = words
        clients = [j for j in rest[0] if self.owners[j] == self.processes.rank] if rest else []
        match what:
            case "open" if clients:
                starts = {start.address.client: start.at for start in messages}
                mine = [self.plans[j] for j in clients]
                self.inner.open([replace(plan, start=starts.get(plan.address.client, plan.start)) for plan in mine])
            case "gather" if clients:
                return self.inner.gather(Wave(tuple(clients), rest[1]))
            case "tail_step" if messages:
                return self.inner.tail_step(messages)
            case "scatter" if messages:
                return self.inner.scatter(messages)
            case "momenta" if clients:
                return self.inner.momenta(clients)
            case "adopt":
                self.inner.adopt(messages)
            case "close" if clients:
                return self.inner.close(clients)
        return []
