"""A user's own data: folders by class and by client, files with named columns, through the config and in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from cutlayer.data import cache
from cutlayer.errors import ContractError, StoreError
from cutlayer.experiment.config import parse
from cutlayer.experiment.experiment import assemble
from cutlayer.experiment.population import load_data, populate

FEW = {"rounds": 1, "local_epochs": 1, "batch_size": 2, "partition": "iid", "clients": 2}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path_factory.mktemp("cache")))


def picture(path: Path, seed: int, size: tuple[int, int] = (16, 16)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def config(**values: Any) -> Any:
    return parse({**FEW, **values})


def test_a_folder_by_class(tmp_path: Path) -> None:
    for c, name in enumerate(("cat", "dog")):
        for k in range(6):
            picture(tmp_path / name / f"{k}.png", 10 * c + k)
    given = config(data=str(tmp_path))
    data = load_data(given)
    assert (given.task, given.model["name"], given.cut) == ("own", "resnet", 1)
    assert data.shape == (3, 16, 16) and data.classes == 2 and list(data.class_names) == ["cat", "dog"]
    assert data.y.tolist() == [0] * 6 + [1] * 6 and not len(data.test)
    record = next(assemble(given))
    assert record.participants == 2 and record.accuracy is not None and record.series["all"]["clients"] == 2


def test_a_folder_by_client_is_its_natural_partition(tmp_path: Path) -> None:
    for c, client in enumerate(("north", "south", "west")):
        for k in range(4 + c):
            picture(tmp_path / client / ("cat" if k % 2 else "dog") / f"{k}.png", 10 * c + k)
    given = parse({"data": str(tmp_path), "rounds": 1, "local_epochs": 1, "batch_size": 2})
    assert given.partition["name"] == "natural"
    train, test = populate(given, load_data(given))
    assert len(train) == 3
    assert [len(a) + len(b) for a, b in zip(train, test, strict=True)] == [4, 5, 6]
    assert next(assemble(given)).participants == 3


def test_images_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    for k in range(8):
        picture(tmp_path / ("a" if k % 2 else "b") / f"{k}.png", k, (16, 16 + k))
    with pytest.raises(ContractError, match="--image-size"):
        load_data(config(data=str(tmp_path)))
    assert load_data(config(data=str(tmp_path), image_size=8)).shape == (3, 8, 8)


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_a_file_with_named_columns(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 5)).astype(np.float32), rng.integers(0, 3, 30)
    owner = np.array([f"h{i % 3}" for i in range(30)])
    path = tmp_path / f"wards.{kind}"
    if kind == "npz":
        np.savez(path, features=x, outcome=y, hospital=owner)
    else:
        table = {"features": list(x), "outcome": y, "hospital": owner}
        pyarrow.parquet.write_table(pa.table(table), path)
    columns = {"x_column": "features", "y_column": "outcome", "owner_column": "hospital"}
    given = config(data=str(path), **columns, partition={"name": "natural", "min_size": 5}, clients=None)
    data = load_data(given)
    assert (given.model["name"], given.cut) == ("mlp", 0)
    assert np.allclose(data.train.x, x) and data.y.tolist() == y.tolist()
    assert next(assemble(given)).participants == 3
    with pytest.raises(ContractError, match=r"features.*expected 'x' among them"):
        load_data(config(data=str(path), y_column="outcome"))


def test_test_rows_in_a_file_of_their_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, n, classes in (("train", 20, ["a", "b", "c"]), ("test", 8, ["c", "b"])):
        y = np.array([classes[i % len(classes)] for i in range(n)])
        np.savez(tmp_path / f"{name}_rows.npz", x=rng.normal(size=(n, 4)).astype(np.float32), y=y)
    given = config(data=str(tmp_path / "train_rows.npz"), data_test=str(tmp_path / "test_rows.npz"))
    data = load_data(given)
    assert data.classes == 3 and data.y_test.tolist() == [2, 1] * 4
    assert next(assemble(given)).accuracy is not None
    np.savez(tmp_path / "other.npz", x=rng.normal(size=(4, 4)), y=np.array(["d"] * 4))
    with pytest.raises(ContractError, match="class = 'd': expected one that the training rows have"):
        load_data(config(data=str(tmp_path / "train_rows.npz"), data_test=str(tmp_path / "other.npz")))


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such folder or file"):
        load_data(config(data=str(tmp_path / "nothing")))
    (tmp_path / "rows.csv").write_text("1,2")
    with pytest.raises(StoreError, match=r"nothing to read there; expected an \.npz or \.parquet file"):
        load_data(config(data=str(tmp_path / "rows.csv")))
    with pytest.raises(StoreError, match=r"nothing to read there; expected .*CLASS"):
        load_data(config(data=str(tmp_path)))
    with pytest.raises(ContractError, match="expected a named task, or data alone"):
        config(data=str(tmp_path), task="mnist")
    with pytest.raises(ContractError, match="task = 'own', data = None"):
        config(task="own")


def test_a_folder_of_client_files_has_a_model_for_rows(tmp_path: Path) -> None:
    for k in range(3):
        y = np.arange(12) % 3
        np.savez(tmp_path / f"ward-{k}.npz", x=np.random.default_rng(k).normal(size=(12, 4)), y=y)
    given = config(data=str(tmp_path), partition={"name": "natural", "min_size": 2}, clients=None)
    assert (given.model["name"], given.cut) == ("mlp", 0)
    assert next(assemble(given)).participants == 3


def test_codes_take_as_many_bytes_as_the_largest_of_all_files_needs(tmp_path: Path) -> None:
    for name, most in (("train", 300), ("test", 200)):
        np.savez(tmp_path / f"{name}.npz", x=np.full((6, 5), most), y=np.arange(6) % 2)
    data = load_data(config(data=str(tmp_path)))
    assert data.train.x.dtype == data.test.x.dtype == np.int32 and int(data.test.x.max()) == 200


def test_labels_that_are_no_classes_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((8, 3)), y=np.arange(8) * 10**9)
    with pytest.raises(ContractError, match="largest label in 'y' = 7000000000: expected classes numbered from 0"):
        load_data(config(data=str(tmp_path / "a.npz")))


def test_whole_numbers_for_a_model_of_floats(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(40).reshape(8, 5), y=np.arange(8) % 2)
    with pytest.raises(
        ContractError, match="taken for codes that an embedding looks up, so give measurements as floats"
    ):
        assemble(config(data=str(tmp_path / "a.npz")))


def test_test_rows_of_another_kind_are_refused(tmp_path: Path) -> None:
    shape = (8, 3, 6, 6)
    kinds = {"bytes": np.zeros(shape, np.uint8), "floats": np.zeros(shape)}
    for name, x in kinds.items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(8) % 2, named=np.array(["a", "b"] * 4))
    paths = [str(tmp_path / f"{name}.npz") for name in kinds]
    with pytest.raises(ContractError, match="rows of float32, expected uint8 as in data"):
        load_data(config(data=paths[0], data_test=paths[1]))
    np.savez(tmp_path / "numbers.npz", x=kinds["bytes"], named=np.arange(8) % 2)
    with pytest.raises(ContractError, match="labels = 'numbers': expected names as in data"):
        load_data(config(data=paths[0], data_test=str(tmp_path / "numbers.npz"), y_column="named"))
