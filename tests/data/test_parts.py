"""Parts for a few clients or a million; partitions by shards and by size; tails; files; divergence."""

from __future__ import annotations

import json
import math
import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.data import partition_file
from cutlayer.data.dataset import Dataset
from cutlayer.data.partition import IID, Natural, QuantitySkew, Shards
from cutlayer.data.partition_file import FromFile
from cutlayer.data.parts import Holdout, Parts, Side, Tail, divergence, histograms
from cutlayer.data.rows import StoredRows, none_of
from cutlayer.data.transform import Values
from cutlayer.errors import ContractError, StoreError
from cutlayer.experiment.config import parse
from cutlayer.experiment.population import divided, populate

Y = np.arange(600) % 6


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def same(one: Parts, other: Parts) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_shards_give_few_classes_and_every_row_once(clients: int, shards: int, seed: int) -> None:
    parts = Shards(shards)(Y, clients, rng(seed))
    assert np.array_equal(np.sort(parts.order), np.arange(600)) and len(parts) == clients
    longest = math.ceil(600 / (clients * shards))
    spans = math.ceil(longest / 100) + 1  # classes of a hundred rows that one shard can touch
    assert all(len(set(Y[part].tolist())) <= min(shards * spans, 6) for part in parts)


def test_two_shards_of_one_class_each() -> None:
    parts = Shards(2)(Y, 3, rng())
    assert [sorted(np.bincount(Y[part], minlength=6).tolist()) for part in parts] == [[0, 0, 0, 0, 100, 100]] * 3


@given(st.integers(1, 50), st.floats(0.05, 50), st.integers(0, 5), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_quantity_skew_spreads_all_rows_and_keeps_its_minimum(n: int, gamma: float, least: int, seed: int) -> None:
    parts = QuantitySkew(gamma, least)(Y, n, rng(seed))
    assert np.array_equal(np.sort(parts.order), np.arange(600))
    assert len(parts) == n and int(parts.sizes.min()) >= least and int(parts.sizes.sum()) == 600


def test_quantity_skew_follows_gamma() -> None:
    y = np.zeros(20_000, dtype=np.int64)
    spread = [float(QuantitySkew(gamma)(y, 100, rng()).sizes.std()) for gamma in (100.0, 1.0, 0.1)]
    assert spread[0] < spread[1] < spread[2]


@pytest.mark.parametrize("partition", [IID(), QuantitySkew(0.5)], ids=["iid", "quantity"])
def test_a_million_clients_cost_a_few_numbers_each(partition: IID | QuantitySkew) -> None:
    y = np.zeros(2_000_000, dtype=np.int64)
    tracemalloc.start()
    parts = partition(y, 1_000_000, rng())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(parts) == 1_000_000 and len(parts[999_999]) == int(parts.sizes[999_999])
    assert peak < 150 * 2**20  # two numbers a row and a few a client, and no object for each
    train = Side(parts, Holdout(0.5, 0), test=False)
    assert len(train) == 1_000_000 and len(train[123_456]) == int(train.sizes[123_456])


def test_a_tail_leaves_a_gap() -> None:
    train, test = Tail(0.1, 79)(np.arange(1000, 2000), 0)
    assert train.tolist() == list(range(1000, 1900)) and test.tolist() == list(range(1979, 2000))
    for n in (1, 10, 790, 791, 800, 1000):
        one, other = Tail(0.1, 79)(np.arange(n), 0)
        sizes = Tail(0.1, 79).sizes(np.array([n]))
        assert (len(one), len(other)) == (int(sizes[0][0]), int(sizes[1][0]))
    assert len(Tail(0.1, 79)(np.arange(790), 0)[1]) == 0 and len(Tail(0.1, 79)(np.arange(791), 0)[1]) == 1


def test_an_owners_first_rows_are_taken_where_there_is_a_most() -> None:
    owners = np.repeat([0, 1, 2], [10, 50, 100])
    parts = Natural(min_size=20, max_size=60)(np.zeros(160, dtype=np.int64), None, rng(), owners)
    assert [part.tolist() for part in parts] == [list(range(10, 60)), list(range(60, 120))]
    with pytest.raises(ContractError, match="max_size = 5: expected a whole number, at least min_size = 20"):
        Natural(min_size=20, max_size=5)


def test_histograms_and_divergence_by_hand() -> None:
    parts = Parts.of([np.array([0, 6, 12]), np.array([1, 2, 3, 4, 5, 0]), np.array([], dtype=np.int64)])
    counts = histograms(parts, Y, 6)
    assert counts.tolist() == [[3, 0, 0, 0, 0, 0], [1] * 6, [0] * 6]
    m = [(1 + 1 / 6) / 2] + [1 / 12] * 5
    one_class = 0.5 * math.log2(1 / m[0]) + 0.5 * sum(1 / 6 * math.log2((1 / 6) / q) for q in m)
    found = divergence(counts)
    assert found[0] == pytest.approx(one_class) and found[1] == pytest.approx(0)
    assert divergence(np.array([[5, 0]]))[0] == pytest.approx(0.311278, abs=1e-6)


@pytest.mark.parametrize("suffix", [".json", ".npz"])
@pytest.mark.parametrize("with_tests", [True, False])
def test_a_file_gives_back_what_was_written(tmp_path: Path, suffix: str, with_tests: bool) -> None:
    parts = IID()(Y, 7, rng())
    if with_tests:
        parts.tests = Parts.of([parts[(j + 1) % 7][:1] for j in range(7)])
    path = tmp_path / f"parts{suffix}"
    partition_file.write(path, parts, 600)
    again = FromFile(str(path))(Y, None, rng())
    assert same(again, parts)
    assert (again.tests is not None) is with_tests
    if with_tests:
        assert again.tests is not None and parts.tests is not None and same(again.tests, parts.tests)
    with pytest.raises(ContractError, match=r"rows = 600: expected 599, as many as the data have"):
        FromFile(str(path))(Y[:599], None, rng())
    with pytest.raises(ContractError, match="clients = 8: expected 7"):
        FromFile(str(path))(Y, 8, rng())


@pytest.mark.parametrize("protocol", [2, 4])
def test_published_files_are_read(tmp_path: Path, protocol: int) -> None:
    held = [np.array([5, 1]), np.array([2, 3]), np.array([9, 8, 7])]
    plain = {"list.json": [h.tolist() for h in held], "dict.json": {str(j): h.tolist() for j, h in enumerate(held)}}
    for name, content in plain.items():
        (tmp_path / name).write_text(json.dumps(content))
        assert same(partition_file.read(tmp_path / name, 10), Parts.of(held))
    split = [{"train": h[:-1], "val": np.array([], dtype=np.int64), "test": h[-1:].tolist()} for h in held]
    (tmp_path / "partition.pkl").write_bytes(
        pickle.dumps({"data_indices": split, "separation": {"train": [0, 1, 2]}}, protocol=protocol)
    )
    read = partition_file.read(tmp_path / "partition.pkl", 10)
    assert same(read, Parts.of([h[:-1] for h in held])) and read.tests is not None
    assert same(read.tests, Parts.of([h[-1:] for h in held]))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[[0, 1], [2.5]]", "expected a list of row numbers"),
        (b"[]", "clients = 0"),
        (b"[[4], [], [5]]", "client 1 has no rows"),
        (b"[[0, 600]]", r"rows = '0\.\.600': expected 0\.\.599"),
        (b"[[-1, 3]]", r"rows = '-1\.\.3'"),
        (b'{"rows": 600, "cli', "not a partition"),
        (b'{"clients": [[1]], "tests": [[1], [2]]}', "tests = 2: expected 1, one per client"),
        (b"PK\x03\x04 not a zip", "not a partition"),
        (b"nonsense", "nonsense|pickle|partition"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "parts.json"
    path.write_bytes(content)
    with pytest.raises((ContractError, StoreError), match=rf"(?s)parts\.json.*({said})"):
        partition_file.read(path, 600)


def test_files_that_are_not_there_or_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        partition_file.read(tmp_path / "none.json")
    with pytest.raises(ContractError, match=r"ends with \.json or \.npz"):
        partition_file.write(tmp_path / "parts.csv", Parts.of([np.arange(3)]), 3)
    with pytest.raises(ContractError, match="path = ''"):
        FromFile()


def dataset(test_owners: bool = True, tests: int = 30) -> Dataset:
    """Rows whose only feature is their number; owners a, b, c, the test rows' in another order."""
    train = StoredRows(np.arange(90, dtype=np.float32)[:, None], np.arange(90) % 3, np.arange(90) % 3, ("a", "b", "c"))
    owners = np.arange(tests) % 3 if test_owners else None
    test = StoredRows(900 + np.arange(tests, dtype=np.float32)[:, None], np.arange(tests) % 3, owners, ("c", "a", "x"))
    return Dataset(train, test if tests else none_of(train), 3, Values(), Values())


def test_natural_clients_are_tested_on_their_own_test_rows() -> None:
    config = parse({"protocol": "cyclesl", "partition": {"name": "natural", "min_size": 1}})
    train, test = populate(config, dataset())
    assert [len(view) for view in train] == [30, 30, 30]
    rows = [sorted(test.rows.x[view.index].ravel().astype(int).tolist()) for view in test]
    assert rows == [list(range(901, 930, 3)), [], list(range(900, 930, 3))]  # a, b (has none), c


def test_without_owners_in_the_test_everything_is_divided() -> None:
    config = parse({"protocol": "cyclesl", "partition": "iid", "clients": 4})
    rows, parts = divided(config, dataset(test_owners=False))
    assert len(rows) == 120 and sorted(parts.order.tolist()) == list(range(120))
    train, test = populate(config, dataset(test_owners=False))
    assert [len(a) + len(b) for a, b in zip(train, test, strict=True)] == [30] * 4
    assert not any(set(a.index.tolist()) & set(b.index.tolist()) for a, b in zip(train, test, strict=True))


def test_a_file_with_tests_is_used_as_it_is(tmp_path: Path) -> None:
    parts = Parts.of([np.arange(10), np.arange(20, 40)], Parts.of([np.array([100, 101]), np.array([119])]))
    partition_file.write(tmp_path / "p.json", parts, 120)
    partition = {"name": "file", "path": str(tmp_path / "p.json")}
    config = parse({"protocol": "cyclesl", "partition": partition})
    train, test = populate(config, dataset(test_owners=False))
    assert [view.index.tolist() for view in train] == [list(range(10)), list(range(20, 40))]
    assert [view.index.tolist() for view in test] == [[100, 101], [119]]


def test_owners_of_the_one_side_only_are_divided_together() -> None:
    """As CelebA is published: nobody is in training and test."""
    base = dataset()
    test = StoredRows(base.test.x, base.test.y, base.test.owners, ("x", "y", "z"))
    config = parse({"protocol": "cyclesl", "partition": {"name": "natural", "min_size": 1}})
    rows, parts = divided(config, replace(base, test=test))
    assert len(rows) == 120 and parts.sizes.tolist() == [30, 30, 30, 10, 10, 10]
    assert [len(view) for view in populate(config, replace(base, test=test))[1]] == [3, 3, 3, 1, 1, 1]


def test_one_test_set_is_of_those_who_are_clients() -> None:
    base = dataset()
    test = StoredRows(base.test.x, base.test.y, base.test.owners, ("c", "a", "b"))
    config = parse({"partition": {"name": "natural", "min_size": 1}, "clients": 2})
    train, tested = populate(config, replace(base, test=test))
    owners = {int(base.train.owners[view.index[0]]) for view in train}
    assert len(owners) == 2 and {(test.owners[i] + 2) % 3 for i in tested.index} == owners and len(tested) == 20
    everybody = populate(config, base)[1]  # of whom one never trains: a test of its own
    assert len(everybody) == 30


@pytest.mark.parametrize("wrong", ["test_ends", "ends", "order"])
def test_arrays_that_are_no_partition(tmp_path: Path, wrong: str) -> None:
    held = {"rows": 9, "order": np.arange(6), "ends": [3, 6], "test_order": np.arange(6, 9), "test_ends": [1, 3]}
    np.savez(tmp_path / "fine.npz", **held)
    assert len(partition_file.read(tmp_path / "fine.npz", 9)) == 2
    np.savez(tmp_path / "p.npz", **{**held, wrong: [0.5, 7.5] if wrong == "order" else [5, 2]})
    with pytest.raises(StoreError, match="not a partition"):
        partition_file.read(tmp_path / "p.npz", 9)


@pytest.mark.parametrize("held", [[[0, 1], [5, 2, 5]], {"clients": [[1], [3, 5]], "tests": [[0], [5]]}])
def test_a_row_is_once_with_a_client(tmp_path: Path, held: object) -> None:
    (tmp_path / "p.json").write_text(json.dumps(held))
    with pytest.raises(ContractError, match="client 1 has row 5 twice"):
        partition_file.read(tmp_path / "p.json")
    (tmp_path / "p.json").write_text(json.dumps([[1, 2], [2, 3]]))
    assert len(partition_file.read(tmp_path / "p.json")) == 2
