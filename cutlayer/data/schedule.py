"""Which samples a client takes, step by step: batches of a round, drawn at the address (seed, round, client)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutlayer.core.randomness import rng
from cutlayer.errors import expect, is_whole

Indices = NDArray[np.int64]
OPTIONAL = {"optional": "left out where it has its default"}
"""The metadata of a field that is not sent to other machines where it has its default, so that older ones read it."""


class MicroBatch(NamedTuple):
    """The rows of one forward and backward pass; `last`: an optimizer step follows."""

    rows: Indices
    last: bool


@dataclass(frozen=True)
class BatchSchedule:
    """How clients take batches: T_j = E * floor(|D_j| / B), each epoch in a new order, the incomplete batch dropped.

    `steps` overrides `epochs`: passes follow each other, each in a new order, until that many steps are done.
    `last_batch="keep"` keeps the incomplete batch; `small_client="one_batch"` gives a client with fewer than B
    samples one batch of all of them per epoch instead of skipping it; None: it is skipped, except with `steps` and
    without `onward`, where it gets one batch.
    `onward`: a client continues where its last round ended, instead of starting a new pass each round.
    `accumulate`: a step is taken on the gradients of so many micro-batches. `batch_size` is the size of a micro-batch,
    and B above is the size of a step: `batch_size * accumulate`.
    """

    batch_size: int = 32
    epochs: int = 5
    steps: int | None = None
    shuffle: bool = True
    last_batch: Literal["drop", "keep"] = "drop"
    small_client: Literal["skip", "one_batch"] | None = None
    seed: int = 0
    onward: bool = False
    accumulate: int = field(default=1, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        for number in ("batch_size", "epochs", "steps", "accumulate"):
            value = getattr(self, number)
            name = {"epochs": "local_epochs", "steps": "local_steps"}.get(number, number)
            whole = is_whole(value) and value >= 1
            expect(whole or (number == "steps" and value is None), name, value, "a whole number, at least 1")
        expect(self.last_batch in ("drop", "keep"), "last_batch", self.last_batch, "'drop' or 'keep'")
        known = self.small_client in (None, "skip", "one_batch")
        expect(known, "small_client", self.small_client, "'skip' or 'one_batch'")

    @property
    def step_size(self) -> int:
        """B: the samples of a whole step."""
        return self.batch_size * self.accumulate

    def per_epoch(self, samples: int) -> int:
        """Steps in one pass over `samples` rows."""
        if 0 < samples < self.step_size:
            fixed = self.steps is not None and not self.onward
            one = self.small_client == "one_batch" or (self.small_client is None and fixed)
            return int(self.last_batch == "keep" or one)
        full, rest = divmod(samples, self.step_size)
        return full + int(rest > 0 and self.last_batch == "keep")

    def smallest(self, samples: int) -> int:
        """The size of the smallest batch, or 2 if it is larger: batch norm may not work with batches of 1."""
        incomplete = self.last_batch == "keep" or samples < self.step_size
        rest = samples % self.step_size % self.batch_size if incomplete else 0
        return min(2, self.batch_size, rest or self.batch_size)

    def epochs_of(self, samples: int) -> list[int]:
        """The steps of each pass of a round; their sum is T_j. An empty list: the client is skipped."""
        each = self.per_epoch(samples)
        if each == 0:
            return []
        if self.steps is None:
            return [each] * self.epochs
        full, rest = divmod(self.steps, each)
        return [each] * full + [rest] * (rest > 0)

    def total(self, samples: int) -> int:
        """T_j, computed without listing the steps."""
        each = self.per_epoch(samples)
        return 0 if each == 0 else each * self.epochs if self.steps is None else self.steps

    def pieces(self, samples: int, k: int) -> int:
        """The micro-batches of step k, counted over all passes; the incomplete last step of a pass has fewer."""
        rows = samples - k % self.per_epoch(samples) * self.step_size
        return -(-min(rows, self.step_size) // self.batch_size)

    def pass_of(self, samples: int, round: int, place: int, step: int) -> tuple[int, str]:
        """Return the round and the use that a pass over the samples has in its address; `step`: one of the round's that
        fall into it; `place` as in `batches`."""
        first, round = (place, 0) if self.onward else (0, round)
        return round, f"pass/{(first + step) // self.per_epoch(samples)}"

    def batches(self, samples: int, round: int, client: int, place: int = 0) -> Iterator[MicroBatch]:
        """Yield the batches of a round; `place`: the steps taken in earlier rounds, for `onward`."""
        each, total = self.per_epoch(samples), self.total(samples)
        first, round = (place, 0) if self.onward else (0, round)
        for k in range(first, first + total):
            epoch, step = divmod(k, each)
            if step == 0 or k == first:
                order = np.arange(samples)
                if self.shuffle:
                    order = rng(self.seed, round, client, f"batches/{epoch}").permutation(samples)
            rows = order[step * self.step_size : (step + 1) * self.step_size]
            for start in range(0, len(rows), self.batch_size):
                end = start + self.batch_size
                yield MicroBatch(rows[start:end], end >= len(rows))
