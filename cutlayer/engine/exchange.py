"""The messages of one round between a scheme's session and the clients.

A client whose answer is missing is lost for the round: it is asked for nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from torch import Tensor

from cutlayer.clients.cohort import Cohort
from cutlayer.clients.messages import (
    Address,
    Attached,
    CutGrad,
    FeatureGrad,
    Features,
    Finish,
    Momentum,
    NextStep,
    Plan,
    Report,
    Smashed,
    Square,
    Up,
)
from cutlayer.clients.waves import Wave
from cutlayer.engine.records import Ledger
from cutlayer.schemes.base import Fuses, Session

M = TypeVar("M", bound=Up)


class Exchange:
    """An attempt at round n with a cohort. `fuse`: the clients' momenta go to the session after every step. `returns`:
    the fronts need gradients; if not, replies go without."""

    def __init__(self, cohort: Cohort, n: int, attempt: int, fuse: bool, returns: bool = True) -> None:
        self.cohort, self.n, self.attempt, self.fuse, self.returns = cohort, n, attempt, fuse, returns
        self.ledger = Ledger()
        self._silent: set[int] = set()
        self._sent: set[Address] = set()  # the wave's gradients that were sent in the middle of its step
        self._momenta: list[Up] = []  # answers to the wave's gradients, kept until all are there to be fused

    def leg(self, plans: Sequence[Plan], waves: Iterable[Wave], session: Session) -> list[Report]:
        """Take these clients through the round: send their plans, play the waves, return their reports."""
        if plans:
            self.cohort.ask(plans)
        self.ledger.down += sum(plan.nbytes for plan in plans)
        taken = {plan.address.client: 0 for plan in plans}
        own = set(taken)
        for wave in waves:
            others = () if wave.partial else tuple(j for j in wave.clients if j not in own)
            wave = replace(wave, clients=tuple(j for j in wave.clients if j in taken), on_other_ranks=others)
            if wave.clients or wave.on_other_ranks:
                self._wave(wave, taken, session)
        end = {j: self._at(j, -1) for j in taken}
        arrived = self.cohort.ask([Finish(at) for at in end.values()]) if end else []
        reports = admit(arrived, end, Report)
        self.ledger.up += sum(report.nbytes for report in reports)
        return reports

    def _wave(self, wave: Wave, taken: dict[int, int], session: Session) -> None:
        due = {j: self._at(j, taken[j]) for j in wave.clients}
        arrived = self.cohort.ask([NextStep(at) for at in due.values()]) if due else []
        smashed: list[Smashed | Attached] = admit(arrived, due, Smashed, Attached)
        self._silent = set(due) - {message.address.client for message in smashed}
        self._momenta, self._sent = [], set()
        replies = self._needed(session.step(wave, cast(list[Smashed], smashed)))  # nothing looks inside Attached
        if wave.partial:
            replies = [replace(reply, partial=True) for reply in replies]
        if unsent := [reply for reply in replies if reply.address not in self._sent]:
            self._momenta += self.cohort.ask(unsent)
        self.ledger.wave(smashed, replies, wave.partial)
        for message in smashed:
            taken[message.address.client] += 1
        if self.fuse and isinstance(session, Fuses) and not wave.partial:
            self._fuse([m.address.client for m in smashed if m.address.client not in self._silent], taken, session)
        for j in self._silent:
            del taken[j]

    def _at(self, client: int, step: int) -> Address:
        return Address(self.n, client, step, self.attempt)

    def tail_step(self, features: Sequence[Features]) -> Mapping[int, Tensor]:
        """Send features to clients that keep their labels; return the gradients. A client with no answer is lost."""
        due = {f.address.client: f.address for f in features}
        grads = admit(self.cohort.ask(features) if features else [], due, FeatureGrad)
        self.ledger.down += sum(f.nbytes for f in features)
        self.ledger.up += sum(grad.nbytes for grad in grads)
        self._silent |= set(due) - {grad.address.client for grad in grads}
        return {grad.address.client: grad.grad for grad in grads}

    def send(self, replies: Sequence[CutGrad]) -> Mapping[int, Tensor]:
        """Send gradients to the clients in the middle of a step; return ||h||^2 of their halves. A client with no
        answer is lost."""
        due = {reply.address.client: reply.address for reply in replies}
        self._sent |= set(due.values())
        arrived = self.cohort.ask(self._needed(replies)) if replies else []
        self._momenta += arrived
        squares = admit(arrived, due, Square)
        self.ledger.up += sum(square.nbytes for square in squares)
        self._silent |= set(due) - {square.address.client for square in squares}
        return {square.address.client: square.value for square in squares}

    def _needed(self, replies: Sequence[CutGrad]) -> list[CutGrad]:
        """The replies, without gradients that no client needs."""
        return list(replies) if self.returns else [replace(reply, grad=None, flowed=0) for reply in replies]

    def _fuse(self, clients: Sequence[int], taken: Mapping[int, int], session: Fuses) -> None:
        momenta = admit(self._momenta, {j: self._at(j, taken[j]) for j in clients}, Momentum)
        self._silent |= set(clients) - {momentum.address.client for momentum in momenta}
        fused = session.fuse(momenta) if momenta else []
        if fused:
            self.cohort.ask(fused)
        self.ledger.up += sum(momentum.nbytes for momentum in momenta)
        self.ledger.down += sum(momentum.nbytes for momentum in fused)


def admit(arrived: Sequence[Up], expected: Mapping[int, Address], *kinds: type[M]) -> list[M]:
    """Return the expected messages among those that arrived, in the expected order, one per client."""
    first: dict[int, M] = {}
    for message in arrived:
        if isinstance(message, kinds) and expected.get(message.address.client) == message.address:
            first.setdefault(message.address.client, message)
    return [first[j] for j in expected if j in first]
