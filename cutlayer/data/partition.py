"""Who holds which rows: partitions of a labelled data set over clients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cutlayer.errors import ContractError, expect, is_whole
from cutlayer.feed import Indices

Labels = NDArray[np.int64]
Owners = NDArray[np.int64]
DRAWS = 100


@dataclass(frozen=True)
class IID:
    """A random split into equal parts (sizes differ by one at most)."""

    def __call__(
        self, labels: Labels, clients: int, rng: np.random.Generator, owners: Owners | None = None
    ) -> list[Indices]:
        _enough(len(labels), clients, 1)
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


@dataclass(frozen=True)
class Dirichlet:
    """Label skew: each class is spread over the clients by a draw of Dir(gamma); smaller gamma, more skew.

    `balance` keeps a client that already holds its fair share out of the remaining classes' draws.
    Draws are repeated until every client holds `min_size` rows; after a bounded number of them, rows are
    moved from the largest clients to those still below it.
    """

    gamma: float = 0.2
    balance: bool = True
    min_size: int = 10

    def __post_init__(self) -> None:
        expect(0 < self.gamma < math.inf, "gamma", self.gamma, "a finite number above 0")
        expect(
            isinstance(self.min_size, int) and self.min_size >= 0,
            "min_size",
            self.min_size,
            "a whole number, at least 0",
        )

    def __call__(
        self, labels: Labels, clients: int, rng: np.random.Generator, owners: Owners | None = None
    ) -> list[Indices]:
        _enough(len(labels), clients, self.min_size)
        for _ in range(DRAWS):
            parts = self._draw(labels, clients, rng)
            if min(len(part) for part in parts) >= self.min_size:
                break
        else:
            _level(parts, self.min_size, rng)
        return [np.sort(part) for part in parts]

    def _draw(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Indices]:
        held: list[list[Indices]] = [[] for _ in range(clients)]
        sizes = np.zeros(clients, dtype=np.int64)
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            p = rng.dirichlet(np.full(clients, self.gamma))
            if self.balance:
                p = p * (sizes < len(labels) / clients)
            total = p.sum()
            if not total > 0:  # a tiny gamma can leave nothing to the clients that are still open
                p = (sizes < len(labels) / clients).astype(float)
                total = p.sum()
            ends = np.floor(np.cumsum(p / total)[:-1] * len(rows) + 1e-9).astype(np.int64)
            for client, part in enumerate(np.split(rows, ends)):
                held[client].append(part)
                sizes[client] += len(part)
        return [np.concatenate(parts) for parts in held]


@dataclass(frozen=True)
class Natural:
    """Each client is one natural owner (a writer, a role); those with fewer than `min_size` rows are left out.

    `clients` of them are drawn at random and kept in the owners' order; None: all.
    """

    min_size: int = 32

    def __post_init__(self) -> None:
        whole = is_whole(self.min_size) and self.min_size >= 1
        expect(whole, "min_size", self.min_size, "a whole number, at least 1")

    def __call__(
        self, labels: Labels, clients: int | None, rng: np.random.Generator, owners: Owners | None = None
    ) -> list[Indices]:
        if owners is None:
            raise ContractError("partition natural needs data that come with owners, such as femnist")
        expect(len(owners) == len(labels), "number of owners", len(owners), f"one for each of {len(labels)} rows")
        held = [part for part in _by_owner(owners) if len(part) >= self.min_size]
        expect(len(held) > 0, "min_size", self.min_size, "a number of rows that some owner has")
        if clients is None:
            return held
        expect(is_whole(clients) and clients >= 1, "clients", clients, "a whole number, at least 1, or None for all")
        enough = f"at most {len(held)}, the owners with at least {self.min_size} rows"
        expect(clients <= len(held), "clients", clients, enough)
        return [held[i] for i in np.sort(rng.choice(len(held), clients, replace=False))]


def holdout(rows: Indices, share: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """One client's rows, split at random into (train, test): `share` of them for the test, one at least of two."""
    expect(0 < share < 1, "share", share, "a number between 0 and 1")
    n = len(rows)
    test = min(max(math.floor(share * n + 1e-9), 1), n - 1) if n >= 2 else 0
    shuffled = rng.permutation(rows)
    return np.sort(shuffled[test:]), np.sort(shuffled[:test])


def _by_owner(owners: Owners) -> list[Indices]:
    """The rows of each owner, both in order."""
    _, sizes = np.unique(owners, return_counts=True)
    return np.split(np.argsort(owners, kind="stable"), np.cumsum(sizes)[:-1])


def _enough(rows: int, clients: int, min_size: int) -> None:
    expect(isinstance(clients, int) and clients >= 1, "clients", clients, "a whole number, at least 1")
    if clients * min_size > rows:
        raise ContractError(f"clients = {clients}: {rows} rows cannot give each of them at least {min_size}")


def _level(parts: list[Indices], min_size: int, rng: np.random.Generator) -> None:
    """Move rows, drawn at random, from whoever holds most to each client below `min_size`."""
    for client in range(len(parts)):
        while len(parts[client]) < min_size:
            donor = max(range(len(parts)), key=lambda j: len(parts[j]))
            place = int(rng.integers(len(parts[donor])))
            parts[client] = np.append(parts[client], parts[donor][place])
            parts[donor] = np.delete(parts[donor], place)
