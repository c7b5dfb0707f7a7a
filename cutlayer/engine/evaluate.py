"""Evaluation in large batches: the global model on one test set, or each client's model on the client's test set.

With one test set per client there are three series, each pooled over its clients:

    sampled   the clients of the round          ever   those that ever took part          all   everybody

A client that keeps its front is tested with that front; if it never took part, with the front it would start with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from cutlayer.core.devices import to_host
from cutlayer.core.group import ONE_PROCESS, ProcessGroup
from cutlayer.core.randomness import EVERYBODY, OwnRandomness, address
from cutlayer.core.threads import Workers
from cutlayer.data.source import Source
from cutlayer.engine.metrics import Metric, Outputs, Scores, Series, Tally, series
from cutlayer.engine.subject import Subject
from cutlayer.nn.flat import Half, Vectors, Views
from cutlayer.nn.nested import Inputs, ordered

BATCH = 512
LARGEST = 2**28  # bytes of a batch's outputs; where those of a row are large, a batch has fewer rows
GROUP = 4  # batches, or clients, whose outputs are in memory at once, for each thread and rank
LARGE = 2**24  # bytes of outputs that are not kept on a GPU until their group is done
NONE = Outputs(0.0, torch.empty(0), torch.empty(0))
J = TypeVar("J")
Front = Callable[[int], Vectors | None]
Chain = Sequence[tuple[Half, Views, int]]


class Computed(NamedTuple):
    """A model's results on a batch, still on its device: the mean loss, the outputs and the labels."""

    loss: Tensor
    out: Tensor
    y: Tensor


class Batch:
    """Some rows of a test set, read when they are needed or before."""

    def __init__(self, test: Source, start: int, rows: int, device: torch.device) -> None:
        self.test, self.start, self.rows, self.device = test, start, rows, device
        self._held: tuple[Inputs, Tensor] | None = None

    def read(self) -> None:
        end = min(self.start + self.rows, len(self.test))
        self._held = self.test.take(np.arange(self.start, end), self.device)

    def taken(self) -> tuple[Inputs, Tensor]:
        """Return the rows, and let go of them."""
        if self._held is None:
            self.read()
        held, self._held = self._held, None
        assert held is not None
        return held


class Evaluator:
    """Scores weights on test sources. A front that a client keeps is joined to the back at the subject's first cut."""

    def __init__(
        self,
        subject: Subject,
        tests: Sequence[Source],
        per_client: bool,
        metric: Metric | None = None,
        workers: Workers | None = None,
        processes: ProcessGroup = ONE_PROCESS,
        most: int = BATCH,
    ) -> None:
        """`most`: rows of a batch, at most."""
        self.workers, self.processes, self.most = workers or Workers(), processes, most
        self.tests, self.loss, self.per_client, self.metric = tests, subject.loss, per_client, metric
        self._subject = subject

    @cached_property
    def whole(self) -> Half:
        return _for_inference(self._subject.whole())

    @cached_property
    def front(self) -> Half:
        return _for_inference(self._subject.front(self._subject.cuts[0]))

    @cached_property
    def back(self) -> Half:
        return _for_inference(self._subject.back(self._subject.cuts[0]))

    @cached_property
    @torch.no_grad()
    def rows(self) -> int:
        """The rows of a batch."""
        with OwnRandomness():
            out = self.whole(ordered(self._subject.x, self.whole.images), self.whole.views(self._subject.W))
        assert isinstance(out, Tensor)
        return max(1, min(BATCH, self.most, LARGEST * len(out) // max(out.nbytes, 1)))

    @property
    def under_way(self) -> int:
        """How many rows of a test are computed at once, at most."""
        return self.workers.n * min(self.rows, max(map(len, self.tests), default=0))

    @torch.no_grad()
    def pooled(self, W: Vectors) -> Scores:
        """Score the global model on all test rows."""
        chain = [(self.whole, self.whole.views(W), 0)]
        batches = [batch for test in self.tests for batch in self._batches(test)]
        tally, streams = Tally(self.metric), any(test.order == "stream" for test in self.tests)
        for part in self._in_turn(batches, lambda batch: [self._scored(batch, chain)], Batch.read if streams else None):
            tally.add(part)
        return tally.scores()

    @torch.no_grad()
    def by_client(
        self, W: Vectors, front: Front, sampled: Collection[int], ever: Collection[int], everybody: bool
    ) -> Mapping[str, Series]:
        """Return the three series (only `sampled`, unless `everybody`); `front(j)`: the front that j keeps, or None."""
        clients = range(len(self.tests)) if everybody else sorted(sampled)
        whole = [(self.whole, self.whole.views(W), 0)]
        back = (self.back, self.back.views(W.split(self.front.sizes)[1]), 0)

        def one(j: int) -> list[Computed]:
            own, chain = front(j), whole
            if own is not None:
                stages = [(self.front, self.front.views(own), stage) for stage in range(len(self.front.stages))]
                chain = [stages[0], back, *stages[1:]]
            return [self._scored(batch, chain) for batch in self._batches(self.tests[j])]

        groups = {"sampled": sampled, "ever": ever, "all": clients} if everybody else {"sampled": sampled}
        tallies = {name: Tally(self.metric) for name in groups}
        counts = dict.fromkeys(groups, 0)
        for j, part in zip(clients, self._in_turn(list(clients), one), strict=True):
            for name in (name for name, group in groups.items() if j in group):
                tallies[name].add(part)
                counts[name] += len(part.y) > 0
        return {name: series(tally, counts[name]) for name, tally in tallies.items()}

    def _batches(self, test: Source) -> list[Batch]:
        return [Batch(test, start, self.rows, self.whole.device) for start in range(0, len(test), self.rows)]

    def _in_turn(
        self, jobs: Sequence[J], work: Callable[[J], list[Computed]], ready: Callable[[J], None] | None = None
    ) -> Iterator[Outputs]:
        """Yield the outputs of all jobs, in order; a few jobs are done at a time, by all threads and ranks. `ready`:
        what is to be done for a job before that, in order; then no more jobs are under way than there are threads."""
        many = (GROUP if ready is None else 1) * self.workers.n * self.processes.size
        for start in range(0, len(jobs), many):
            mine = self.processes.mine(jobs[start : start + many])
            if ready is not None:
                for job in mine:
                    ready(job)
            yield from self._everybodys(_arrived(self.workers.map(work, mine)))

    def _everybodys(self, mine: Sequence[Outputs]) -> list[Outputs]:
        """Return the outputs of all ranks, in order."""
        if self.processes.size == 1:
            return list(mine)
        named = {
            f"{k}/{name}": tensor for k, part in enumerate(mine) for name, tensor in (("out", part.out), ("y", part.y))
        }
        losses = self.processes.everyones([part.loss for part in mine])
        return [
            Outputs(loss, found[f"{k}/out"], found[f"{k}/y"])
            for found, some in zip(self.processes.all_tensors(named), losses, strict=True)
            for k, loss in enumerate(some)
        ]

    def _scored(self, batch: Batch, chain: Chain) -> Computed:
        x, y = batch.taken()
        out: Inputs = ordered(x, self.whole.images)
        with OwnRandomness(address(0, 0, EVERYBODY, f"test/{batch.start}")):  # the same numbers in every round
            for part, views, stage in chain:
                out = part(out, views, stage)
            assert isinstance(out, Tensor)
            loss = torch.as_tensor(self.loss(out, y)).reshape(())
        return Computed(loss, out.cpu() if out.nbytes > LARGE else out, y)


def _arrived(jobs: Sequence[Sequence[Computed]]) -> list[Outputs]:
    """The outputs of each job, on the host."""
    flat = [part for job in jobs for part in job]
    if not flat:
        return [NONE for _ in jobs]
    losses, *rest = to_host([torch.stack([part.loss for part in flat]), *(t for part in flat for t in part[1:])])
    here = zip(losses.tolist(), rest[::2], rest[1::2], strict=True)
    found = []
    for job in jobs:
        own = [Outputs(loss * len(y), out, y) for loss, out, y in itertools.islice(here, len(job))]
        found.append(_joined(own) if len(own) > 1 else own[0] if own else NONE)
    return found


def _joined(parts: Sequence[Outputs]) -> Outputs:
    total = math.fsum(part.loss for part in parts)
    return Outputs(total, torch.cat([part.out for part in parts]), torch.cat([part.y for part in parts]))


def _for_inference(half: Half) -> Half:
    """Return the half in inference mode."""
    half.train(False)
    return half
