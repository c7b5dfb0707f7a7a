"""Who holds which rows, for a few clients or a million: one array of row numbers, and where each client's part ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cutlayer.core.lazy import Lazy
from cutlayer.core.randomness import rng
from cutlayer.data.schedule import Indices
from cutlayer.errors import expect


class Parts(Lazy[Indices]):
    """Client j holds the rows order[ends[j-1]:ends[j]], in ascending order.

    tests     each client's test rows, if given
    rows      how many rows were divided, if known
    origin    if they come from a file: its form, by the name of a tool that writes it
    """

    def __init__(
        self, order: Indices, ends: Indices, tests: Parts | None = None, rows: int | None = None, origin: str = ""
    ) -> None:
        self.order, self.ends, self.tests, self.rows, self.origin = order, ends, tests, rows, origin

    @staticmethod
    def of(parts: Iterable[Indices], tests: Parts | None = None, rows: int | None = None, origin: str = "") -> Parts:
        held = [np.asarray(part, dtype=np.int64) for part in parts]
        order = np.concatenate(held) if held else np.empty(0, dtype=np.int64)
        return Parts(order, np.cumsum([len(part) for part in held], dtype=np.int64), tests, rows, origin)

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def sizes(self) -> Indices:
        return np.diff(self.ends, prepend=0)

    def at(self, j: int) -> Indices:
        return np.sort(self.order[self.ends[j - 1] if j else 0 : self.ends[j]])

    def of_rows(self, index: Indices) -> Parts:
        """Return the same parts, where row i is row index[i] of a larger set."""
        return Parts(index[self.order], self.ends, rows=len(index), origin=self.origin)


class Split(Protocol):
    """Divides a client's rows into those it trains on and those it is tested on."""

    def sizes(self, n: Indices) -> tuple[Indices, Indices]:
        """Return how many of n rows are for training, and how many for the test."""

    def __call__(self, rows: Indices, client: int) -> tuple[Indices, Indices]:
        """Return (train, test)."""


class Holdout:
    """Takes a random `share` of a client's rows for its test: at least one, if the client has two or more.
    `use`: part of the address of its random numbers."""

    def __init__(self, share: float, seed: int, use: str = "holdout") -> None:
        expect(0 < share < 1, "share", share, "a number between 0 and 1")
        self.share, self.seed, self.use = share, seed, use

    def sizes(self, n: Indices) -> tuple[Indices, Indices]:
        test = np.clip(np.floor(self.share * n + 1e-9).astype(np.int64), 1, np.maximum(n - 1, 1))
        test = np.where(n >= 2, test, 0)
        return n - test, test

    def __call__(self, rows: Indices, client: int) -> tuple[Indices, Indices]:
        test = int(self.sizes(np.array([len(rows)]))[1][0])
        shuffled = rng(self.seed, 0, client, self.use).permutation(rows)
        return np.sort(shuffled[test:]), np.sort(shuffled[:test])


class Tail:
    """Takes the last `share` of a client's rows for its test, less a gap that belongs to neither: for rows that
    overlap, such as windows over a text."""

    def __init__(self, share: float, gap: int) -> None:
        expect(0 < share < 1, "share", share, "a number between 0 and 1")
        self.share, self.gap = share, gap

    def sizes(self, n: Indices) -> tuple[Indices, Indices]:
        train = np.floor((1 - self.share) * n + 1e-9).astype(np.int64)
        return train, np.maximum(n - train - self.gap, 0)

    def __call__(self, rows: Indices, client: int) -> tuple[Indices, Indices]:
        end = int(self.sizes(np.array([len(rows)]))[0][0])
        return rows[:end], rows[end + self.gap :]


class Side(Lazy[Indices]):
    """The training or the test rows of every client, split when they are asked for."""

    def __init__(self, parts: Parts | Side, split: Split, test: bool) -> None:
        self.parts, self.split, self.test = parts, split, test

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def sizes(self) -> Indices:
        return self.split.sizes(self.parts.sizes)[self.test]

    def at(self, j: int) -> Indices:
        return self.split(self.parts[j], j)[self.test]


def histograms(parts: Parts, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Count the rows of each class that every client holds, [clients, classes]."""
    whose = np.repeat(np.arange(len(parts)), parts.sizes)
    counts = np.bincount(whose * classes + labels[parts.order], minlength=len(parts) * classes)
    return counts.reshape(len(parts), classes)


def divergence(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Jensen-Shannon divergence, base 2, of each client's label histogram from the uniform one: 0 if equal, below 1."""
    p = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    q = np.full_like(p, 1 / p.shape[1])
    middle = (p + q) / 2

    def from_middle(a: NDArray[np.float64]) -> NDArray[np.float64]:
        ratio = np.divide(a, middle, out=np.ones_like(a), where=a > 0)
        total: NDArray[np.float64] = (a * np.log2(ratio)).sum(axis=1)
        return total

    return (from_middle(p) + from_middle(q)) / 2
