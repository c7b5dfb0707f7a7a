"""Partitions: every row once, the promised minimum, the promised skew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.data.partition import IID, Dirichlet
from cutlayer.errors import ContractError

labels = st.lists(st.integers(0, 4), min_size=40, max_size=120).map(lambda ys: np.asarray(ys, dtype=np.int64))


def every_row_once(parts: list[np.ndarray], rows: int) -> bool:
    return sorted(np.concatenate(parts).tolist()) == list(range(rows))


@given(labels, st.integers(1, 20), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_iid_is_an_even_split(y: np.ndarray, clients: int, seed: int) -> None:
    parts = IID()(y, clients, np.random.default_rng(seed))
    assert every_row_once(parts, len(y))
    sizes = [len(p) for p in parts]
    assert len(parts) == clients
    assert max(sizes) - min(sizes) <= 1


@given(labels, st.integers(1, 8), st.floats(1e-3, 100), st.booleans(), st.integers(0, 5), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_dirichlet_covers_every_row_once_and_keeps_its_minimum(
    y: np.ndarray, clients: int, gamma: float, balance: bool, min_size: int, seed: int
) -> None:
    parts = Dirichlet(gamma, balance, min_size)(y, clients, np.random.default_rng(seed))
    assert len(parts) == clients
    assert every_row_once(parts, len(y))
    assert min(len(p) for p in parts) >= min_size


def test_rows_are_moved_from_the_largest_when_no_draw_will_do() -> None:
    y = np.zeros(40, dtype=np.int64)  # one class, an extreme draw: one client gets nearly all
    parts = Dirichlet(1e-3, balance=False, min_size=10)(y, 4, np.random.default_rng(0))
    assert [len(p) for p in parts] == [10, 10, 10, 10]


def test_same_generator_same_partition() -> None:
    y = np.arange(500) % 10
    first, second = (Dirichlet(0.2)(y, 10, np.random.default_rng(3)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_smaller_gamma_means_more_skew() -> None:
    y = np.arange(5000) % 10

    def classes(gamma: float) -> float:
        parts = Dirichlet(gamma)(y, 20, np.random.default_rng(0))
        return float(np.mean([len(set(y[p].tolist())) for p in parts]))

    assert classes(0.1) < classes(1.0) < classes(100.0)


def test_the_published_statistics_of_cifar10() -> None:
    """50,000 rows, 100 clients, gamma 0.2, balance on: mean T 75.6 at B=32 and E=5, 5.9 classes a client."""
    y = np.arange(50_000) % 10
    draws = [Dirichlet(0.2)(y, 100, np.random.default_rng(seed)) for seed in range(10)]
    mean_T = np.mean([[5 * (len(p) // 32) for p in parts] for parts in draws])
    assert mean_T == pytest.approx(75.6, abs=0.6)
    assert np.mean([[len(set(y[p].tolist())) for p in parts] for parts in draws]) == pytest.approx(5.9, abs=0.6)


def test_the_impossible_is_refused() -> None:
    y = np.zeros(30, dtype=np.int64)
    with pytest.raises(ContractError, match="30 rows cannot give each of them at least 10"):
        Dirichlet(0.2)(y, 4, np.random.default_rng(0))
    with pytest.raises(ContractError, match="gamma = 0"):
        Dirichlet(0)
    with pytest.raises(ContractError, match="clients = 0"):
        IID()(y, 0, np.random.default_rng(0))
