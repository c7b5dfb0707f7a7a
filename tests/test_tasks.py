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
from cutlayer.data.tasks import FOLDER_VARIABLE, digits, load_task, read_images
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


@pytest.mark.skipif(not (REAL / "mnist" / "train.parquet").is_file(), reason=f"no real data: set {FOLDER_VARIABLE}")
def test_real_digits_are_learned() -> None:
    values = {"task": "mnist", "data_dir": str(REAL), "train_rows": 1000, "clients": 5, "rounds": 3, "batch_size": 16}
    run = assemble(parse({**values, "partition": "iid", "update": "fedavgm"}))
    accuracy = [record.accuracy or 0.0 for record in run]
    assert accuracy[-1] > 0.6
