"""`cl.partition`: the command line's parts, files of other tools, and clients without copies."""

from __future__ import annotations

import inspect
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset as MapStyle

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.data.dataset import Dataset
from cutlayer.data.rows import StoredRows, none_of
from cutlayer.data.transform import Values
from cutlayer.data.views import Population
from cutlayer.engine.inputs import test_sources as sources_of_tests
from cutlayer.errors import ContractError, StoreError
from cutlayer.experiment.config import parse
from cutlayer.experiment.population import divided
from cutlayer.registry import PARTITIONS

X = np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32)
Y = np.arange(120) % 3
OWNERS = np.arange(120) % 7
HELD = [[5, 1, 20], [2, 3, 21, 22], [9, 8, 7, 23]]


def rows_of(parts: Any) -> list[list[int]]:
    return [rows.tolist() for rows in parts]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("iid", {}),
        ("dirichlet", {"gamma": 0.3, "min_size": 4, "balance": False}),
        ("shards", {"shards": 3}),
        ("quantity", {"gamma": 0.7, "min_size": 2}),
        ("natural", {"min_size": 17, "max_size": 17}),
    ],
)
def test_the_parts_of_the_command_line(name: str, given: dict[str, Any]) -> None:
    rows = StoredRows(X, Y, OWNERS, tuple("abcdefg"))
    data = Dataset(rows, none_of(rows), 3, Values(), Values())
    config = parse({"partition": {"name": name, **given}, "clients": 5, "seed": 3})
    expected = divided(config, data)[1]
    of = OWNERS if name == "natural" else torch.from_numpy(Y)
    parts = getattr(cl.partition, name)(of, clients=5, seed=3, **given)
    assert rows_of(parts) == rows_of(expected) and parts.rows == 120 and parts[4].dtype == np.int64
    assert parts.sizes.tolist() == [len(rows) for rows in parts]
    other = getattr(cl.partition, name)(of, clients=5, seed=4, **given)
    assert rows_of(other) != rows_of(parts)
    taken = inspect.signature(getattr(cl.partition, name)).parameters
    defaults = {parameter: taken[parameter].default for parameter in PARTITIONS[name].about}
    assert defaults == {parameter: about.default for parameter, about in PARTITIONS[name].about.items()}


def test_what_the_command_writes_is_what_python_divides_and_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("rows.npz", x=X, y=Y)
    command = ["partition", "--data", "rows.npz"]
    assert main([*command, "--clients", "5", "--dirichlet", "0.2", "--seed", "5", "--parts", "p.json"]) == 0
    read, parts = cl.partition.load("p.json"), cl.partition.dirichlet(Y, clients=5, gamma=0.2, seed=5)
    assert rows_of(read) == rows_of(parts) and read.origin == "cutlayer" and read.rows == parts.rows == 120
    parts.save("again.json")
    assert Path("again.json").read_bytes() == Path("p.json").read_bytes()

    Path("partition.pkl").write_bytes(pickle.dumps(fl_bench()))
    command += ["--partition", "file", "--partition.path", "partition.pkl"]
    assert main([*command, "--parts", "p.npz"]) == 0
    assert "form of the file: FL-bench" in capsys.readouterr().out
    assert rows_of(cl.partition.load("p.npz")) == rows_of(cl.partition.load("partition.pkl"))
    Path("partition.pkl").write_bytes(pickle.dumps({"data_indices": [{"train": [120], "test": []}]}))
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "expected 0..119, the rows the data have; FL-bench numbers training and test rows together" in said


LABELS = st.lists(st.integers(0, 4), min_size=40, max_size=80)


@given(LABELS, st.integers(1, 4), st.sampled_from(["iid", "dirichlet", "shards", "quantity", "natural"]), st.integers())
@settings(max_examples=40, deadline=None)
def test_every_row_once(y: list[int], clients: int, name: str, seed: int) -> None:
    many = {"clients": None, "min_size": 1} if name == "natural" else {"clients": clients}
    parts = getattr(cl.partition, name)(y, seed=seed, **many)
    assert sorted(np.concatenate(list(parts)).tolist()) == list(range(len(y)))
    assert len(parts) == (len(set(y)) if name == "natural" else clients)


def test_labels_and_owners_may_be_names() -> None:
    names = np.array(["ant", "bee", "cow"])
    assert rows_of(cl.partition.shards(names[Y], 4)) == rows_of(cl.partition.shards(Y, 4))
    assert rows_of(cl.partition.natural(names.astype(object)[Y])) == rows_of(cl.partition.natural(Y))
    assert rows_of(cl.partition.iid(120, 4)) == rows_of(cl.partition.iid(Y, 4))


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_a_round_trip(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "fl.pkl").write_bytes(pickle.dumps(fl_bench()))
    for parts in (cl.partition.quantity(Y, 6), cl.partition.load(tmp_path / "fl.pkl")):
        path = tmp_path / f"parts{suffix}"
        parts.save(path)
        read = cl.partition.load(str(path))
        assert rows_of(read) == rows_of(parts) and read.rows == parts.rows and read.origin == "cutlayer"
        assert (read.tests is None) == (parts.tests is None)
        assert read.tests is None or rows_of(read.tests) == rows_of(parts.tests)


def flower(folder: Path) -> list[Path]:
    """Partition ids and rows, as users of flwr-datasets save them."""
    held = dict(enumerate(HELD * 4))
    (folder / "indices.json").write_text(json.dumps(held))
    (folder / "sorted.json").write_text(json.dumps({str(j): held[j] for j in held}, sort_keys=True, indent=1))
    (folder / "config_indices.yaml").write_text(json.dumps(held))
    (folder / "indices.pkl").write_bytes(pickle.dumps({j: np.array(rows) for j, rows in held.items()}))
    return list(folder.iterdir())


def test_flowers_files(tmp_path: Path) -> None:
    for path in flower(tmp_path):
        parts = cl.partition.load(path)
        assert rows_of(parts) == [sorted(rows) for rows in HELD * 4] and parts.origin == "Flower", path
    whose = np.array([1, 0, 10, 2, 1, 3, 4, 5, 6, 7, 8, 9])
    for column in (whose, [str(who) for who in whose]):
        table = pa.table({"partition_id": column, "label": whose})
        pyarrow.parquet.write_table(table, tmp_path / "hub.parquet")
        parts = cl.partition.load(tmp_path / "hub.parquet")
        assert rows_of(parts)[:3] == [[1], [0, 4], [3]] and len(parts) == 11 and parts.rows == 12


def fl_bench(val: int = 0) -> dict[str, Any]:
    """What FL-bench's generate_data.py dumps with --split sample: the last row of each client for its test."""
    everybody = list(range(len(HELD)))
    each = []
    for rows in HELD:
        array = np.array(rows, dtype=np.int32)
        each.append({"train": array[val:-1], "val": array[:val], "test": array[-1:]})
    separation = {"train": everybody, "val": everybody, "test": everybody, "total": len(HELD)}
    return {"separation": separation, "data_indices": each}


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("val", [0, 1])
def test_fl_benchs_file(tmp_path: Path, protocol: int, val: int) -> None:
    path = tmp_path / "partition.pkl"
    path.write_bytes(pickle.dumps(fl_bench(val), protocol=protocol))
    parts = cl.partition.load(path)
    assert rows_of(parts) == [sorted(rows[val:-1]) for rows in HELD] and parts.tests is not None
    assert rows_of(parts.tests) == [rows[-1:] for rows in HELD]
    assert parts.origin == "FL-bench" + val * ", without its rows for validation"


class Alien:
    """Whatever a pickle runs when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


ONE = {"train": [0], "test": [1]}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({0: [1], 1: Alien()}, r"a pickle that holds more than plain data: it names \w+\.mkdir"),
        ({0: [1], 1: torch.arange(2)}, "it names torch._utils._rebuild_tensor_v2"),
        ({"data_indices": [ONE, {"train": [2]}]}, r"data_indices\[1\] has no 'test'"),
        ({"data_indices": [ONE, np.arange(3)]}, r"data_indices\[1\] has no 'train'"),
        ({"data_indices": [ONE, {"train": [], "test": [4]}]}, "client 1 never trains, as with FL-bench's --split user"),
        ({"data_indices": 3}, "data_indices of type int: expected a list"),
        ({"separation": {"train": [0]}}, "'data_indices' is missing"),
        ({"data_indices": [{"train": [3, 4], "test": [4]}]}, "client 0 has row 4 twice"),
        ({0: [1], 2: [0]}, r"client 1 is missing: expected 0\.\.1, each once"),
        ({0: [1], 1: [3, 3]}, "client 1 has row 3 twice"),
        ({0: [1], 1: [-2]}, r"rows = '-2\.\.1': expected no negative row"),
        ({0: [1], 1: ["a"]}, r"\['a'\]: expected a list of row numbers"),
        (b"", "expected JSON, NPZ, Parquet or a pickle"),
        (b"alpha: 0.2\nnum_partitions: 3\n", "expected JSON, NPZ, Parquet or a pickle"),
        (b'{"dataset": "cifar10", "client_num": 20}', "cifar10: expected a list of row numbers"),
        (b'{"clients": 3}', "clients of type int: expected a list"),
        (b'{"rows": "x", "clients": [[1]]}', "rows = 'x': expected how many rows"),
        (b'{"rows": 9, "clients": [[9]]}', r"rows = '9\.\.9': expected 0\.\.8"),
        (b"PAR1PAR1", "not a readable Parquet file"),
    ],
)
def test_what_is_no_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: Any, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("parts").write_bytes(held if isinstance(held, bytes) else pickle.dumps(held))
    with pytest.raises((ContractError, StoreError), match=rf"^partition file parts: .*{said}") as caught:
        cl.partition.load("parts")
    assert "\n" not in str(caught.value) and not Path("ran").exists()


def test_a_row_may_be_with_several_clients(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("[[1, 2], [2, 3]]")
    assert repr(cl.partition.load(tmp_path / "p.json")) == (
        "<Partition: 2 clients, 4 rows, form: a list of rows per client>"
    )


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("dirichlet", {"y": Y, "clients": 0}, "clients = 0: expected a whole number"),
        ("dirichlet", {"y": Y, "clients": 2, "gamma": "0.2"}, "gamma = '0.2': expected a finite number above 0"),
        ("dirichlet", {"y": X, "clients": 2}, r"y = 'float32 \(120, 4\)': expected one whole number or name for each"),
        ("dirichlet", {"y": [[0], [1, 2]], "clients": 2}, "y: expected one whole number or name for each row"),
        ("dirichlet", {"y": Y, "clients": 2, "seed": 0.5}, "seed = 0.5: expected a whole number"),
        ("iid", {"y": Y, "clients": 121}, "clients = 121: 120 rows cannot give each"),
        ("iid", {"y": -1, "clients": 1}, "y = -1: expected one item for each row"),
        ("quantity", {"y": 1.5, "clients": 1}, "y = 1.5: expected one item for each row"),
        ("natural", {"owners": [None, "a"]}, "owners = 'object"),
    ],
)
def test_what_cannot_be_divided(name: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        getattr(cl.partition, name)(**given)


def trained(clients: Any, **given: Any) -> torch.Tensor:
    """The weights after two rounds, in float64, which the rows are not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    settings = {"rounds": 2, "local_epochs": 1, "batch_size": 6, **given}
    result = cl.train(model, clients, **settings)
    return torch.cat([weight.flatten() for weight in result.model.state_dict().values()])


class Squares(MapStyle[Any]):
    """A map-style dataset that counts what is asked of it."""

    def __init__(self) -> None:
        self.asked: set[int] = set()

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        assert type(row) is int
        self.asked.add(row)
        return X[row], int(Y[row])


def test_clients_train_to_the_bits_of_copies_without_any(tmp_path: Path) -> None:
    parts = cl.partition.dirichlet(Y, clients=4, gamma=1.0)
    expected = trained([(torch.from_numpy(X[rows]), torch.from_numpy(Y[rows])) for rows in parts])
    np.save(tmp_path / "x.npy", X)
    mapped, data = np.load(tmp_path / "x.npy", mmap_mode="r"), StoredRows(X, Y)
    forms = {
        "arrays": parts.clients(X, Y),
        "tensors": parts.clients(torch.from_numpy(X).requires_grad_(), torch.from_numpy(Y.astype(np.uint8))),
        "mapped": parts.clients(mapped, Y),
        "items": parts.clients(Squares()),
        "named": parts.clients(Dataset(data, none_of(data), 3, Values(), Values())),
    }
    for name, clients in forms.items():
        assert torch.equal(trained(clients), expected), name
    assert all(np.shares_memory(forms[name].rows.x, X) for name in ("arrays", "tensors", "named"))
    assert forms["mapped"].rows.x is mapped


def test_a_dataset_is_read_when_it_is_needed() -> None:
    dataset = Squares()
    parts = cl.partition.iid(dataset, clients=30)
    clients = parts.clients(dataset)
    assert dataset.asked == set() and len(clients) == 30 and len(clients[7]) == 4
    assert np.array_equal(clients[7][2][0], X[parts[7][2]]) and dataset.asked == {int(parts[7][2])}


def test_several_inputs_and_labels_that_are_no_classes() -> None:
    parts = cl.partition.iid(120, clients=3)
    both = parts.clients({"a": X, "b": torch.from_numpy(X)}, Y)
    row = int(parts[1][5])
    assert np.array_equal(both[1][5][0]["a"], X[row]) and torch.equal(both[1][5][0]["b"], torch.from_numpy(X[row]))
    targets = X[:, :3] ** 2
    loss = nn.functional.mse_loss
    copies = [(torch.from_numpy(X[rows]), torch.from_numpy(targets[rows])) for rows in parts]
    assert torch.equal(trained(parts.clients(X, targets), loss=loss), trained(copies, loss=loss))


def test_each_client_is_tested_on_the_rows_the_file_says(tmp_path: Path) -> None:
    (tmp_path / "partition.pkl").write_bytes(pickle.dumps(fl_bench()))
    parts = cl.partition.load(tmp_path / "partition.pkl")
    tests = parts.tests.clients(X, Y)
    assert isinstance(tests, Population) and [test.index.tolist() for test in tests] == [[20], [22], [23]]
    assert sources_of_tests(tests, torch.float32, len(parts))[1]


def test_data_that_do_not_fit(tmp_path: Path) -> None:
    parts = cl.partition.iid(Y, 3)
    with pytest.raises(ContractError, match="rows of the data = 119: expected 120, as many as were divided"):
        parts.clients(X[1:], Y[1:])
    with pytest.raises(ContractError, match=r"lengths of x and y = \(120, 119\)"):
        parts.clients(X, Y[1:])
    with pytest.raises(ContractError, match="x = 'list': expected an array or a tensor"):
        parts.clients(X.tolist(), Y)
    with pytest.raises(ContractError, match="data = 'ndarray': expected x and y, or a dataset"):
        parts.clients(X)
    (tmp_path / "p.json").write_text("[[1, 119]]")
    with pytest.raises(ContractError, match="rows of the data = 119: expected more than 119, the last row"):
        cl.partition.load(tmp_path / "p.json").clients(X[1:], Y[1:])
    with pytest.raises(cl.CutlayerError, match="holds NaN or infinity"):
        trained(parts.clients(np.where(X > 2, np.inf, X).astype(np.float32), Y))
    with pytest.raises(ContractError, match=r"ends with \.json or \.npz"):
        parts.save(tmp_path / "parts.pkl")
    with pytest.raises(StoreError, match="cannot be written: "):
        parts.save(tmp_path / "none" / "parts.json")
