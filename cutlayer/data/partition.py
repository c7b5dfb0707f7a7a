"""Who holds which rows: partitions of a labelled data set over clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cutlayer.core.randomness import EVERYBODY, rng
from cutlayer.data.parts import Parts
from cutlayer.data.rows import Labels, Owners
from cutlayer.data.schedule import Indices
from cutlayer.errors import ContractError, expect, is_number, is_whole

DRAWS = 100


def generator(seed: int) -> np.random.Generator:
    """Return the generator that divides the rows of a run with this seed."""
    return rng(seed, 0, EVERYBODY, "partition")


@dataclass(frozen=True)
class IID:
    """A random split into equal parts (sizes differ by one at most)."""

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator, owners: Owners | None = None) -> Parts:
        _enough(len(labels), clients, 1)
        each, more = divmod(len(labels), clients)
        sizes = np.full(clients, each) + (np.arange(clients) < more)
        return Parts(rng.permutation(len(labels)), np.cumsum(sizes))


@dataclass(frozen=True)
class QuantitySkew:
    """The same mix of classes for all clients, in amounts drawn from Dir(gamma): smaller gamma, less equal."""

    gamma: float = 0.5
    min_size: int = 1

    def __post_init__(self) -> None:
        expect(is_number(self.gamma) and self.gamma > 0, "gamma", self.gamma, "a finite number above 0")
        whole = is_whole(self.min_size) and self.min_size >= 0
        expect(whole, "min_size", self.min_size, "a whole number, at least 0")

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator, owners: Owners | None = None) -> Parts:
        _enough(len(labels), clients, self.min_size)
        spread = len(labels) - clients * self.min_size
        share = rng.dirichlet(np.full(clients, self.gamma)) * spread
        sizes = np.floor(share).astype(np.int64)
        left = spread - int(sizes.sum())
        sizes[np.argsort(sizes - share, kind="stable")[:left]] += 1  # the largest remainders
        return Parts(rng.permutation(len(labels)), np.cumsum(sizes + self.min_size))


@dataclass(frozen=True)
class Shards:
    """Few classes per client: rows sorted by label are cut into equal shards, and each client gets `shards` of them."""

    shards: int = 2

    def __post_init__(self) -> None:
        expect(is_whole(self.shards) and self.shards >= 1, "shards", self.shards, "a whole number, at least 1")

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator, owners: Owners | None = None) -> Parts:
        _enough(len(labels), clients, self.shards)
        pieces = np.array_split(np.argsort(labels, kind="stable"), clients * self.shards)
        dealt = rng.permutation(len(pieces)).reshape(clients, self.shards)
        return Parts.of(np.concatenate([pieces[i] for i in hand]) for hand in dealt)


@dataclass(frozen=True)
class Dirichlet:
    """Label skew: each class is spread over the clients by a draw of Dir(gamma); smaller gamma, more skew.

    `balance` keeps a client that already holds its fair share out of the remaining classes' draws.
    Draws are repeated until every client holds `min_size` rows; after DRAWS of them, rows are moved from the
    largest clients to those that still hold fewer.
    """

    gamma: float = 0.2
    balance: bool = True
    min_size: int = 10

    def __post_init__(self) -> None:
        expect(is_number(self.gamma) and self.gamma > 0, "gamma", self.gamma, "a finite number above 0")
        whole = is_whole(self.min_size) and self.min_size >= 0
        expect(whole, "min_size", self.min_size, "a whole number, at least 0")

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator, owners: Owners | None = None) -> Parts:
        _enough(len(labels), clients, self.min_size)
        for _ in range(DRAWS):
            parts = self._draw(labels, clients, rng)
            if min(len(part) for part in parts) >= self.min_size:
                break
        else:
            _level(parts, self.min_size, rng)
        return Parts.of(parts)

    def _draw(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Indices]:
        held: list[list[Indices]] = [[] for _ in range(clients)]
        sizes = np.zeros(clients, dtype=np.int64)
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            p = rng.dirichlet(np.full(clients, self.gamma))
            if self.balance:
                p = p * (sizes < len(labels) / clients)
            total = p.sum()
            if not total > 0:  # with a tiny gamma, the clients below their fair share can all draw 0
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

    `clients` of them are drawn at random and kept in the owners' order; None: all. Of an owner with more than
    `max_size` rows, the first `max_size` are taken.
    """

    min_size: int = 32
    max_size: int | None = None

    def __post_init__(self) -> None:
        whole = is_whole(self.min_size) and self.min_size >= 1
        expect(whole, "min_size", self.min_size, "a whole number, at least 1")
        most = self.max_size is None or (is_whole(self.max_size) and self.max_size >= self.min_size)
        expect(most, "max_size", self.max_size, f"a whole number, at least min_size = {self.min_size}")

    def __call__(
        self, labels: Labels, clients: int | None, rng: np.random.Generator, owners: Owners | None = None
    ) -> Parts:
        if owners is None:
            raise ContractError("partition natural needs data that come with owners, such as femnist")
        expect(len(owners) == len(labels), "number of owners", len(owners), f"one for each of {len(labels)} rows")
        held = [part[: self.max_size] for part in by_owner(owners) if len(part) >= self.min_size]
        expect(len(held) > 0, "min_size", self.min_size, "a number of rows that some owner has")
        if clients is None:
            return Parts.of(held)
        expect(is_whole(clients) and clients >= 1, "clients", clients, "a whole number, at least 1, or None for all")
        enough = f"at most {len(held)}, the owners with at least {self.min_size} rows"
        expect(clients <= len(held), "clients", clients, enough)
        return Parts.of(held[i] for i in np.sort(rng.choice(len(held), clients, replace=False)))


def by_owner(owners: Owners) -> list[Indices]:
    """Return the rows of each owner, with owners and rows in ascending order."""
    _, sizes = np.unique(owners, return_counts=True)
    return np.split(np.argsort(owners, kind="stable"), np.cumsum(sizes)[:-1])


def _enough(rows: int, clients: int, min_size: int) -> None:
    expect(is_whole(clients) and clients >= 1, "clients", clients, "a whole number, at least 1")
    if clients * min_size > rows:
        raise ContractError(f"clients = {clients}: {rows} rows cannot give each of them at least {min_size}")


def _level(parts: list[Indices], min_size: int, rng: np.random.Generator) -> None:
    """Move rows, drawn at random, from the client that holds most to each client below `min_size`."""
    for client in range(len(parts)):
        while len(parts[client]) < min_size:
            donor = max(range(len(parts)), key=lambda j: len(parts[j]))
            place = int(rng.integers(len(parts[donor])))
            parts[client] = np.append(parts[client], parts[donor][place])
            parts[donor] = np.delete(parts[donor], place)
