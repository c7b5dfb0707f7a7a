"""Data sets by name: the digits that ship, Parquet files in the hub's schema, and real ones where they are."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from cutlayer.config import parse
from cutlayer.data.partition import Natural
from cutlayer.data.tasks import FOLDER_VARIABLE, TASKS, digits, load_task, read_images
from cutlayer.errors import ContractError, StoreError
from cutlayer.experiment import assemble

REAL = Path(os.environ.get(FOLDER_VARIABLE) or Path(__file__).parents[2] / "shared" / "data")


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def write(path: Path, images: list[bytes], labels: list[int], column: str = "image") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": image, "path": None} for image in images]
    pyarrow.parquet.write_table(pa.table({column: cells, "label": labels}), path)


def write_femnist(folder: Path, writers: list[str | None], **columns: object) -> np.ndarray:
    """A femnist folder with a row for each writer named; `columns` replace or, where None, remove some."""
    path = folder / "femnist" / "train.parquet"
    path.parent.mkdir(exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (len(writers), 28, 28), dtype=np.uint8)
    cells = [{"bytes": png(p), "path": None} for p in pixels]
    table = {"image": cells, "writer_id": writers, "character": [i % 62 for i in range(len(writers))], **columns}
    pyarrow.parquet.write_table(pa.table({name: column for name, column in table.items() if column is not None}), path)
    return pixels


def test_digits_keep_a_fifth_of_every_class_for_the_test() -> None:
    data = digits()
    assert len(data.y) + len(data.y_test) == 1797
    assert data.y_test.bincount().tolist() == [36, 37, 36, 37, 37, 37, 37, 36, 35, 36]
    assert data.x.shape[1:] == (1, 8, 8) and float(data.x.min()) >= 0 and float(data.x.max()) == 1


@pytest.mark.parametrize(("shape", "column"), [((28, 28), "image"), ((32, 32, 3), "img")])
def test_pixels_and_labels_come_out_as_they_were_written(tmp_path: Path, shape: tuple[int, ...], column: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, *shape), dtype=np.uint8)
    write(tmp_path / "x.parquet", [png(p) for p in pixels], [3, 1, 4, 1, 5], column)
    x, y = read_images(tmp_path / "x.parquet")
    expected = torch.from_numpy(pixels)
    expected = expected[:, None] if expected.ndim == 3 else expected.permute(0, 3, 1, 2)
    assert torch.equal(x, expected)
    assert y.tolist() == [3, 1, 4, 1, 5]


def test_a_task_from_a_folder_trains(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 28, 28), dtype=np.uint8)
    for split in ("train", "test"):
        write(tmp_path / "mnist" / f"{split}.parquet", [png(p) for p in pixels], [i % 10 for i in range(60)])
    config = parse({"task": "mnist", "data_dir": str(tmp_path), "clients": 3, "rounds": 1, "local_epochs": 1})
    assert next(assemble(config)).participants == 3


def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    with pytest.raises(StoreError, match="needs a data folder"):
        load_task("mnist", None, None, 0)
    with pytest.raises(StoreError, match=r"mnist.train\.parquet; put the Parquet file there"):
        load_task("mnist", tmp_path, None, 0)
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"nonsense")
    with pytest.raises(StoreError, match=r"bad\.parquet: not a readable Parquet file"):
        read_images(bad)
    write(bad, [png(np.zeros((4, 4), dtype=np.uint8)), b"torn"], [0, 1])
    with pytest.raises(ContractError, match=r"bad\.parquet, row 1: not a readable image"):
        read_images(bad)
    pyarrow.parquet.write_table(pa.table({"picture": [1]}), bad)
    with pytest.raises(ContractError, match="expected an image and a label column"):
        read_images(bad)
    write(bad, [png(np.zeros(shape, dtype=np.uint8)) for shape in ((4, 4), (5, 4))], [0, 1])
    with pytest.raises(ContractError, match=r"bad\.parquet: image shapes = \[\(4, 4\), \(5, 4\)\]"):
        read_images(bad)


def test_femnist_comes_with_its_writers_and_no_test_rows(tmp_path: Path) -> None:
    pixels = write_femnist(tmp_path, ["f9", "f10", "f9", "e1", "f10", "f9"])
    data = load_task("femnist", tmp_path, None, 0)
    assert torch.equal(data.x, torch.from_numpy(pixels)[:, None].float() / 255)
    assert data.y.tolist() == [0, 1, 2, 3, 4, 5] and data.classes == 62
    assert data.owners is not None and data.owners.dtype == np.int64
    assert data.owners.tolist() == [2, 1, 2, 0, 1, 2]
    assert data.x_test.shape == (0, 1, 28, 28) and data.y_test.shape == (0,)
    assert data.y_test.dtype == torch.int64
    assert TASKS["femnist"].splits == ("train",)


def test_a_choice_of_rows_keeps_their_owners(tmp_path: Path) -> None:
    write_femnist(tmp_path, [f"w{i // 10}" for i in range(60)])  # row i is of class i and writer i // 10
    data = load_task("femnist", tmp_path, 25, 3)
    assert data.owners is not None and len(data.owners) == 25
    assert data.owners.tolist() == (data.y // 10).tolist()
    assert load_task("digits", None, 25, 3).owners is None


def test_what_is_wrong_with_femnist_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"femnist.train\.parquet; put the Parquet file there"):
        load_task("femnist", tmp_path, None, 0)
    whole = png(np.zeros((28, 28), dtype=np.uint8))
    short = whole[:8] + b"\0\0\0\5" + whole[12:]  # a header of 5 bytes
    torn, bent = ([{"bytes": cell, "path": None}] * 2 for cell in (whole[:50], short))
    for columns, said in [
        ({"writer_id": None}, "expected an owner column 'writer_id'"),
        ({"writer_id": ["a", None]}, "rows without writer_id = 1: expected none"),
        ({"image": None}, "expected an image and a label column"),
        ({"character": None}, "expected an image and a label column"),
        ({"character": ["a", "b"]}, "column character = 'string': expected a whole number in every row"),
        ({"character": [1, None]}, "column character = 'int64': expected a whole number"),
        ({"character": [0, 62]}, r"labels = '0\.\.62': expected 0\.\.61"),
        ({"image": torn}, "row 0: not a readable image"),
        ({"image": bent}, "row 0: not a readable image"),
    ]:
        write_femnist(tmp_path, ["a", "b"], **columns)
        with pytest.raises(ContractError, match=rf"train\.parquet.*{said}"):
            load_task("femnist", tmp_path, None, 0)
    (tmp_path / "femnist" / "train.parquet").write_bytes(b"nonsense")
    with pytest.raises(StoreError, match="not a readable Parquet file"):
        load_task("femnist", tmp_path, None, 0)


@pytest.mark.skipif(not (REAL / "femnist" / "train.parquet").is_file(), reason=f"no real data: set {FOLDER_VARIABLE}")
def test_real_writers_are_clients() -> None:
    data = load_task("femnist", REAL, None, 0)
    assert data.x.shape[1:] == (1, 28, 28) and float(data.x.min()) >= 0 and float(data.x.max()) == 1
    assert len(data.y.unique()) == data.classes == 62
    assert data.owners is not None
    assert sorted(set(data.owners.tolist())) == list(range(data.owners.max() + 1))
    parts = Natural()(data.labels, None, np.random.default_rng(0), data.owners)
    assert min(len(part) for part in parts) >= 32
    assert all(len(set(data.owners[part].tolist())) == 1 for part in parts)
    assert len(Natural()(data.labels, 50, np.random.default_rng(0), data.owners)) == 50


@pytest.mark.skipif(not (REAL / "mnist" / "train.parquet").is_file(), reason=f"no real data: set {FOLDER_VARIABLE}")
def test_real_digits_are_learned() -> None:
    values = {"task": "mnist", "data_dir": str(REAL), "train_rows": 1000, "clients": 5, "rounds": 3, "batch_size": 16}
    run = assemble(parse({**values, "partition": "iid", "update": "fedavgm"}))
    accuracy = [record.accuracy or 0.0 for record in run]
    assert accuracy[-1] > 0.6
