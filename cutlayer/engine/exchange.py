"""The talk of one round between a scheme's session and the clients. A client that misses a turn is lost for the round:
it is asked for nothing more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar, cast

from torch import Tensor

from cutlayer.clients.cohort import Cohort
from cutlayer.clients.messages import (
    Address,
    Attached,
    CutGrad,
    FeatureGrad,
    Features,
    Momentum,
    Plan,
    Report,
    Smashed,
    Square,
)
from cutlayer.clients.waves import Wave
from cutlayer.engine.records import Ledger
from cutlayer.optim.local import Local, joint
from cutlayer.schemes.base import Fuses, Session

M = TypeVar("M", bound=Smashed | Attached | FeatureGrad | Report | Square | Momentum)


class Exchange:
    """An attempt at round n with a cohort; `fuse`: the clients' momenta go to the session after every step."""

    def __init__(self, cohort: Cohort, n: int, attempt: int, local: Local | None, fuse: bool) -> None:
        self.cohort, self.n, self.attempt, self.fuse = cohort, n, attempt, fuse
        self.joint = joint(local)
        self.ledger = Ledger()
        self._silent: set[int] = set()

    def leg(self, plans: Sequence[Plan], waves: Iterable[Wave], session: Session) -> list[Report]:
        """These clients from plan to report."""
        if plans:
            self.cohort.open(plans)
        self.ledger.down += sum(plan.nbytes for plan in plans)
        taken = {plan.address.client: 0 for plan in plans}
        own = set(taken)
        for wave in waves:
            others = tuple(j for j in wave.clients if j not in own)
            wave = Wave(tuple(j for j in wave.clients if j in taken), wave.epoch, others)
            if wave.clients or wave.on_other_ranks:
                self._wave(wave, taken, session)
        arrived = self.cohort.close(list(taken)) if taken else []
        reports = admit(arrived, {j: self._at(j, -1) for j in taken})
        self.ledger.up += sum(report.nbytes for report in reports)
        return reports

    def _wave(self, wave: Wave, taken: dict[int, int], session: Session) -> None:
        arrived = self.cohort.gather(wave) if wave.clients else []
        smashed = admit(arrived, {j: self._at(j, taken[j]) for j in wave.clients})
        self._silent = set(wave.clients) - {message.address.client for message in smashed}
        replies = session.step(wave, cast(list[Smashed], smashed))  # what is Attached, a scheme does not look into
        if replies and not self.joint:  # with a joint norm they have gone out in the middle of the step
            self.cohort.scatter(replies)
        self.ledger.wave(smashed, replies)
        for message in smashed:
            taken[message.address.client] += 1
        if self.fuse and isinstance(session, Fuses):
            self._fuse([m.address.client for m in smashed if m.address.client not in self._silent], taken, session)
        for j in self._silent:
            del taken[j]

    def _at(self, client: int, step: int) -> Address:
        return Address(self.n, client, step, self.attempt)

    def tail_step(self, features: Sequence[Features]) -> Mapping[int, Tensor]:
        """Where labels stay with the clients: their gradients of these features. One that does not answer is lost."""
        grads = admit(self.cohort.tail_step(features), {f.address.client: f.address for f in features})
        self.ledger.down += sum(f.nbytes for f in features)
        self.ledger.up += sum(grad.nbytes for grad in grads)
        self._silent |= {f.address.client for f in features} - {grad.address.client for grad in grads}
        return {grad.address.client: grad.grad for grad in grads}

    def send(self, replies: Sequence[CutGrad]) -> Mapping[int, Tensor]:
        """Gradients to the clients; ||h||^2 of their halves back. One that does not answer is lost."""
        squares = admit(self.cohort.scatter(replies), {r.address.client: r.address for r in replies})
        self.ledger.up += sum(square.nbytes for square in squares)
        self._silent |= {r.address.client for r in replies} - {square.address.client for square in squares}
        return {square.address.client: square.value for square in squares}

    def _fuse(self, clients: Sequence[int], taken: Mapping[int, int], session: Fuses) -> None:
        momenta = admit(self.cohort.momenta(clients), {j: self._at(j, taken[j]) for j in clients})
        self._silent |= set(clients) - {momentum.address.client for momentum in momenta}
        fused = session.fuse(momenta) if momenta else []
        self.cohort.adopt(fused)
        self.ledger.up += sum(momentum.nbytes for momentum in momenta)
        self.ledger.down += sum(momentum.nbytes for momentum in fused)


def admit(arrived: Sequence[M], expected: Mapping[int, Address]) -> list[M]:
    """The expected messages among those that arrived, in the order expected: each once, none from another step."""
    first: dict[int, M] = {}
    for message in arrived:
        if expected.get(message.address.client) == message.address:
            first.setdefault(message.address.client, message)
    return [first[j] for j in expected if j in first]
