"""Who holds which rows: partitions of a labelled data set over clients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cutlayer.errors import ContractError, expect
from cutlayer.feed import Indices

Labels = NDArray[np.int64]
DRAWS = 100


@dataclass(frozen=True)
class IID:
    """A random split into equal parts (sizes differ by one at most)."""

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Indices]:
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

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Indices]:
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
