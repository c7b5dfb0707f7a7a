"""Data sets by name: the digits that ship, a folder in one form or another, the hub, a user's own, real ones."""

from __future__ import annotations

import io
import os
import struct
import sys
import types
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from cutlayer.data import cache, hub, tasks
from cutlayer.data.partition import Natural
from cutlayer.data.tasks import FOLDER_VARIABLE, SOURCES, digits, load_task
from cutlayer.errors import ContractError, StoreError
from cutlayer.experiment.config import parse
from cutlayer.experiment.experiment import assemble
from cutlayer.experiment.population import load_data

REAL = Path(os.environ.get(FOLDER_VARIABLE) or Path(__file__).parents[3] / "shared" / "data")
WITHOUT = f"no real data: set {FOLDER_VARIABLE}"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path_factory.mktemp("cache")))


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def noise(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def write(path: Path, images: list[bytes], labels: list[int], column: str = "image") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": image, "path": None} for image in images]
    pyarrow.parquet.write_table(pa.table({column: cells, "label": labels}), path)


def write_mnist(folder: Path, n: int = 60) -> np.ndarray:
    pixels = noise(n, 28, 28)
    for split in ("train", "test"):
        write(folder / "mnist" / f"{split}.parquet", [png(p) for p in pixels], [i % 10 for i in range(n)])
    return pixels


def write_idx(folder: Path, n: int = 20) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = noise(n, 28, 28, seed=1)
    for side in ("train", "t10k"):
        head = struct.pack(">IIII", 0x803, n, 28, 28)
        (folder / f"{side}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        labels = bytes(i % 10 for i in range(n))
        (folder / f"{side}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, n) + labels)
    return pixels


def write_femnist(folder: Path, writers: list[str | None], **columns: object) -> np.ndarray:
    """A femnist folder with a row for each writer named; `columns` replace or, where None, remove some."""
    path = folder / "femnist" / "train.parquet"
    path.parent.mkdir(exist_ok=True)
    pixels = noise(len(writers), 28, 28)
    cells = [{"bytes": png(p), "path": None} for p in pixels]
    table = {"image": cells, "writer_id": writers, "character": [i % 62 for i in range(len(writers))], **columns}
    pyarrow.parquet.write_table(pa.table({name: column for name, column in table.items() if column is not None}), path)
    return pixels


def test_digits_keep_a_fifth_of_every_class_for_the_test() -> None:
    data = digits()
    assert len(data.y) + len(data.y_test) == 1797
    assert data.y_test.bincount().tolist() == [36, 37, 36, 37, 37, 37, 37, 36, 35, 36]
    assert data.x.shape[1:] == data.shape == (1, 8, 8) and float(data.x.min()) >= 0 and float(data.x.max()) == 1


@pytest.mark.parametrize("found", [True, False])
def test_digits_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch, found: bool) -> None:
    """Read from its file, or, should that have another place, by its function."""
    if not found:
        monkeypatch.setattr(tasks, "find_spec", lambda name: None)
    from sklearn.datasets import load_digits  # here, because it takes a while and few tests use it

    rows, theirs = tasks._scanned(), load_digits()
    assert rows.dtype == theirs.data.dtype and rows.shape == (1797, 65)
    assert np.array_equal(rows[:, :-1], theirs.data) and np.array_equal(rows[:, -1], theirs.target)


def test_a_task_from_a_folder_trains(tmp_path: Path) -> None:
    pixels = write_mnist(tmp_path)
    config = parse(
        {"task": "mnist", "data_dir": str(tmp_path), "clients": 3, "rounds": 1, "local_epochs": 1, "batch_size": 8}
    )
    x = torch.from_numpy(pixels)[:, None].float() / 255
    assert torch.allclose(load_data(config).x, (x - 0.1307) / 0.3081, atol=1e-6)
    assert next(assemble(config)).participants == 3


def test_parquet_comes_before_the_usual_form(tmp_path: Path) -> None:
    idx = write_idx(tmp_path / "mnist")
    assert np.array_equal(load_task("mnist", tmp_path).train.x[:, 0], idx)
    parquet = write_mnist(tmp_path)
    assert np.array_equal(load_task("mnist", tmp_path).train.x[:, 0], parquet)


class Fake(types.ModuleType):
    """A `datasets` that has one data set, or none."""

    def __init__(self, table: pa.Table | None) -> None:
        super().__init__("datasets")
        self.table, self.asked = table, []
        self.__spec__ = types.SimpleNamespace()

    def load_dataset(self, path: str, split: str) -> Fake:
        self.asked.append((path, split))
        if self.table is None:
            raise ConnectionError("no route to host")
        return self

    def to_parquet(self, path: str) -> None:
        pyarrow.parquet.write_table(self.table, path)


def test_the_hub_comes_last_and_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = noise(8, 28, 28, seed=2)
    fake = Fake(pa.table({"image": [{"bytes": png(p), "path": None} for p in pixels], "label": list(range(8))}))
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert hub.installed()
    for _ in range(2):
        assert np.array_equal(load_task("mnist", tmp_path).train.x[:, 0], pixels)
    assert fake.asked == [("ylecun/mnist", "train"), ("ylecun/mnist", "test")]
    idx = write_idx(tmp_path / "mnist")
    assert np.array_equal(load_task("mnist", tmp_path).train.x[:, 0], idx)


def test_a_hub_out_of_reach_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", Fake(None))
    with pytest.raises(StoreError, match=r"task 'cifar10': uoft-cs/cifar10 cannot be fetched.*no route to host"):
        load_task("cifar10", tmp_path)
    with pytest.raises(StoreError, match=r"Without it: nothing to read in .*Put into .*cifar-10-batches-py"):
        load_task("cifar10", tmp_path)
    assert not list(cache.folder().rglob("*.parquet"))


@pytest.mark.parametrize("name", [name for name, task in SOURCES.items() if task.forms])
def test_what_to_put_where_is_said(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(hub, "installed", lambda: False)
    with pytest.raises(
        StoreError, match=f"task '{name}': no data folder: give --data-dir FOLDER, or set CUTLAYER_DATA"
    ):
        load_task(name, None)
    with pytest.raises(StoreError) as raised:
        load_task(name, tmp_path)
    said = str(raised.value)
    assert f"nothing to read in {tmp_path / name}. Put into {tmp_path / name}: " in said
    assert all(form.needs in said for form in SOURCES[name].forms)
    assert ("install cutlayer[hf]" in said) is (SOURCES[name].hub is not None)


def test_femnist_comes_with_its_writers_and_no_test_rows(tmp_path: Path) -> None:
    pixels = write_femnist(tmp_path, ["f9", "f10", "f9", "e1", "f10", "f9"])
    data = load_task("femnist", tmp_path)
    assert torch.equal(data.x, torch.from_numpy(pixels)[:, None].float() / 255)
    assert data.y.tolist() == [0, 1, 2, 3, 4, 5] and data.classes == 62
    assert data.owners is not None and data.owners.tolist() == [2, 1, 2, 0, 1, 2]
    assert list(data.train.owner_names) == ["e1", "f10", "f9"]
    assert data.x_test.shape == (0, 1, 28, 28) and data.y_test.shape == (0,)


def test_a_choice_of_rows_keeps_their_owners(tmp_path: Path) -> None:
    write_femnist(tmp_path, [f"w{i // 10}" for i in range(60)])  # row i is of class i and writer i // 10
    data = load_task("femnist", tmp_path, 25, 3)
    assert data.owners is not None and data.owners.tolist() == (data.y // 10).tolist()
    assert load_task("digits", None, 25, 3).owners is None
    with pytest.raises(ContractError, match=r"train_rows = 61: expected a whole number from 1 to 60"):
        load_task("femnist", tmp_path, 61)


def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path: Path) -> None:
    whole = png(np.zeros((28, 28), dtype=np.uint8))
    torn = [{"bytes": whole[:50], "path": None}] * 2
    for columns, said in [
        ({"writer_id": None}, "writer_id"),
        ({"writer_id": ["a", None]}, "row 1"),
        ({"image": None}, "image"),
        ({"character": None}, "character"),
        ({"character": ["a", "b"]}, "character"),
        ({"character": [1, None]}, "row 1"),
        ({"image": torn}, "row 0: not a readable image"),
    ]:
        write_femnist(tmp_path, ["a", "b"], **columns)
        with pytest.raises(ContractError, match=rf"task 'femnist': .*train\.parquet.*{said}"):
            load_task("femnist", tmp_path)
    write_femnist(tmp_path, ["a", "b"], character=[0, 62])
    with pytest.raises(ContractError, match=r"task 'femnist': label of training row 1 = 62: expected 0\.\.61"):
        load_task("femnist", tmp_path)
    (tmp_path / "femnist" / "train.parquet").write_bytes(b"nonsense")
    with pytest.raises(StoreError, match=r"train\.parquet: not a readable Parquet file"):
        load_task("femnist", tmp_path)


@pytest.mark.skipif(not (REAL / "femnist" / "train.parquet").is_file(), reason=WITHOUT)
def test_real_writers_are_clients() -> None:
    data = load_task("femnist", REAL)
    assert data.x.shape[1:] == (1, 28, 28) and float(data.x.min()) >= 0 and float(data.x.max()) == 1
    assert len(data.y.unique()) == data.classes == 62
    assert data.owners is not None
    assert sorted(set(data.owners.tolist())) == list(range(data.owners.max() + 1))
    parts = Natural()(data.labels, None, np.random.default_rng(0), data.owners)
    assert min(len(part) for part in parts) >= 32
    assert all(len(set(data.owners[part].tolist())) == 1 for part in parts)
    assert len(Natural()(data.labels, 50, np.random.default_rng(0), data.owners)) == 50


@pytest.mark.skipif(not (REAL / "mnist" / "train.parquet").is_file(), reason=WITHOUT)
def test_real_digits_are_learned() -> None:
    values = {"task": "mnist", "data_dir": str(REAL), "train_rows": 1000, "clients": 5, "rounds": 3, "batch_size": 16}
    run = assemble(parse({**values, "partition": "iid", "update": "fedavgm", "local_epochs": 2, "evaluate_every": 3}))
    *_, last = run
    assert last.accuracy is not None and last.accuracy > 0.6


@pytest.mark.parametrize(
    ("name", "shape", "train", "test"),
    [
        ("cifar100", (3, 32, 32), 10_000, 2_000),
        ("shakespeare", (80,), 288_368, 0),
        ("speech_commands", (1, 32, 32), 800, 150),
    ],
)
def test_real_rows_are_all_there(name: str, shape: tuple[int, ...], train: int, test: int) -> None:
    if not (REAL / name / "train.parquet").is_file():
        pytest.skip(WITHOUT)
    data = load_task(name, REAL)
    assert (data.shape, len(data.train), len(data.test)) == (shape, train, test)
    assert int(data.train.y.min()) >= 0 and int(data.train.y.max()) < data.classes
    few = data.plain(torch.from_numpy(np.array(data.train.x[:200])), torch.float32, None)
    if few.is_floating_point():
        assert abs(float(few.mean())) < 0.5 and 0.5 < float(few.std()) < 1.5
    else:
        assert int(few.max()) < 80


def test_own_data_are_not_a_name_alone() -> None:
    with pytest.raises(ContractError, match="task = 'own': expected 'own' where own data are given"):
        load_task("own", None)
