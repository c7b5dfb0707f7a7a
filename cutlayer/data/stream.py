"""Rows that come in an order of their own: an iterable, read pass by pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutlayer.core.randomness import OwnRandomness
from cutlayer.data.batch import Batches, Digest, Order, add_some
from cutlayer.data.samples import Samples
from cutlayer.data.schedule import Indices
from cutlayer.data.transform import Draw
from cutlayer.errors import ContractError
from cutlayer.nn.nested import Inputs

SOME = 8  # rows that are looked at to know it again
END = object()


class Stream:
    """Rows of an iterable, with a place in it: to take rows ahead, the rows before them are skipped; to take rows that
    have passed, it begins anew. Nothing but the rows that are taken is in memory.

    `draw` has the address of the pass, from which all its random numbers come: the same pass is always the same.
    """

    order: Order = "stream"

    def __init__(self, data: Iterable[Any], length: int, samples: Samples, batches: Batches | None = None) -> None:
        self.data, self.length, self.samples, self.batches = data, length, samples, batches
        self.name = samples.name
        self._pass: Iterator[Any] | None = None
        self._place, self._number = 0, 0

    def __len__(self) -> int:
        return self.length

    def expect_classes(self, classes: int) -> None:
        """From now on, refuse labels outside 0..classes-1 when they are taken."""
        self.samples.classes = classes

    def take(self, rows: Indices, device: torch.device, draw: Draw | None = None) -> tuple[Inputs, Tensor]:
        number = 0 if draw is None else int(draw().integers(2**63))
        with self.samples.errors(rows):
            found = self._read(rows, number)
            with OwnRandomness(number + 1 + int(rows[0])):  # a batch is made alike after any number of skipped rows
                return self.samples.batch([found[row] for row in rows.tolist()], rows, device)

    def _read(self, rows: Indices, number: int) -> dict[int, Any]:
        """Return these rows of a pass."""
        wanted = np.unique(rows)
        try:
            if self._pass is None or number != self._number or wanted[0] < self._place:
                self._begin(number)
            with self._random:
                found = {row: self._at(row) for row in wanted.tolist()}
                self._check_end()
        except BaseException:
            self._pass = None  # nobody knows where it is
            raise
        return found

    def _begin(self, number: int) -> None:
        self._number, self._random, self._place = number, OwnRandomness(number), 0
        with self._random:
            self._pass = iter(self.data)

    def _at(self, row: int) -> Any:
        """Return a row; skip those before it."""
        assert self._pass is not None
        sample = END
        while self._place <= row:
            sample = next(self._pass, END)
            if sample is END:
                raise ContractError(
                    f"{self.name}: a pass over it ended after {self._place} rows: expected {self.length}, as stated; "
                    "each pass begins with iter(), and must begin at the first row"
                )
            self._place += 1
        return sample

    def _check_end(self) -> None:
        assert self._pass is not None
        if self._place == self.length and next(self._pass, END) is not END:
            raise ContractError(f"{self.name}: a pass over it goes on after {self.length} rows, its stated length")

    def add_to(self, digest: Digest) -> None:
        """Add the length and the first rows."""
        digest.update(f"stream of {self.length} {self.samples.columns or ''}".encode())
        add_some(digest, self, np.arange(min(SOME, self.length)))
