"""Partitions: every row once, the promised minimum, the promised skew, the natural owners."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.data.partition import IID, Dirichlet, Natural
from cutlayer.data.parts import Holdout
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
    with pytest.raises(ContractError, match="clients = None: expected a whole number"):
        IID()(y, None, np.random.default_rng(0))
    with pytest.raises(ContractError, match="clients = None: expected a whole number"):
        Dirichlet(0.2)(y, None, np.random.default_rng(0))


def test_owners_change_nothing_where_they_are_not_asked_for() -> None:
    y = np.arange(500) % 10
    for partition in (IID(), Dirichlet(0.2)):
        without = partition(y, 10, np.random.default_rng(3))
        given_them = partition(y, 10, np.random.default_rng(3), np.arange(500) % 7)
        assert all(np.array_equal(a, b) for a, b in zip(without, given_them, strict=True))


SIZES = [5, 40, 31, 32, 1, 60, 33]  # rows of owner 0, 1, ..
OWNERS = np.random.default_rng(0).permutation(np.repeat(np.arange(len(SIZES)), SIZES))
ROWS = np.zeros(len(OWNERS), dtype=np.int64)


def who(parts: list[np.ndarray]) -> list[int]:
    """The owner of each part, which holds all of that owner's rows in order."""
    found = [int(OWNERS[part[0]]) for part in parts]
    assert all(np.array_equal(part, np.flatnonzero(j == OWNERS)) for j, part in zip(found, parts, strict=True))
    return found


@pytest.mark.parametrize(("min_size", "expected"), [(32, [1, 3, 5, 6]), (1, [0, 1, 2, 3, 4, 5, 6]), (60, [5])])
def test_every_owner_with_enough_rows_is_a_client(min_size: int, expected: list[int]) -> None:
    assert who(Natural(min_size)(ROWS, None, np.random.default_rng(0), OWNERS)) == expected
    assert who(Natural(min_size)(ROWS, len(expected), np.random.default_rng(0), OWNERS)) == expected


def test_owners_without_a_row_left_are_no_clients() -> None:
    kept = np.flatnonzero(OWNERS != 3)
    parts = Natural()(ROWS[kept], None, np.random.default_rng(0), OWNERS[kept])
    assert [set(OWNERS[kept][part].tolist()) for part in parts] == [{1}, {5}, {6}]


def test_owners_are_drawn_at_random_and_the_same_at_the_same_generator() -> None:
    draws = [who(Natural()(ROWS, 2, np.random.default_rng(seed), OWNERS)) for seed in range(50)]
    assert draws == [who(Natural()(ROWS, 2, np.random.default_rng(seed), OWNERS)) for seed in range(50)]
    assert all(draw == sorted(draw) for draw in draws)
    assert {tuple(draw) for draw in draws} == {(1, 3), (1, 5), (1, 6), (3, 5), (3, 6), (5, 6)}


def test_natural_refuses_what_it_cannot_do() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ContractError, match="natural needs data that come with owners, such as femnist"):
        Natural()(ROWS, 2, rng)
    with pytest.raises(ContractError, match="clients = 5: expected at most 4, the owners with at least 32 rows"):
        Natural()(ROWS, 5, rng, OWNERS)
    with pytest.raises(ContractError, match="clients = 0: expected a whole number"):
        Natural()(ROWS, 0, rng, OWNERS)
    with pytest.raises(ContractError, match="min_size = 61: expected a number of rows that some owner has"):
        Natural(61)(ROWS, None, rng, OWNERS)
    with pytest.raises(ContractError, match="number of owners = 201: expected one for each of 202 rows"):
        Natural()(ROWS, None, rng, OWNERS[1:])
    for wrong in (0, 1.5, True):
        with pytest.raises(ContractError, match="min_size = "):
            Natural(wrong)


@given(st.integers(0, 200), st.floats(0.001, 0.999), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_holdout_splits_every_row_once(n: int, share: float, seed: int) -> None:
    rows = 3 * np.arange(n)
    train, test = Holdout(share, seed)(rows, 0)
    assert sorted([*train, *test]) == rows.tolist()
    assert np.all(np.diff(train) > 0) and np.all(np.diff(test) > 0)
    assert n < 2 or (len(test) >= 1 and len(train) >= 1)


@pytest.mark.parametrize(
    ("n", "share", "test"), [(0, 0.5, 0), (1, 0.9, 0), (2, 0.1, 1), (39, 0.1, 3), (40, 0.1, 4), (100, 0.29, 29)]
)
def test_the_size_of_a_holdout(n: int, share: float, test: int) -> None:
    first, second = (Holdout(share, 1)(np.arange(n), 3) for _ in range(2))
    assert len(first[1]) == test
    assert np.array_equal(first[1], second[1])


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan")])
def test_a_holdout_is_a_part(share: float) -> None:
    with pytest.raises(ContractError, match="share = "):
        Holdout(share, 0)
