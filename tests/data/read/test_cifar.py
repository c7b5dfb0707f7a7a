"""CIFAR in both of its published forms: the bytes of the archives come out bit for bit."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutlayer.data.read.cifar import BINARY10, BINARY100, PYTHON10, PYTHON100
from cutlayer.data.rows import Form
from cutlayer.errors import ContractError, StoreError

BATCHES = [f"data_batch_{k}" for k in range(1, 6)]
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def python2(value: Any) -> bytes:
    """A value as Python 2 pickles it in protocol 2."""
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(python2, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(python2(part) for pair in value.items() for part in pair) + b"u"
    start = b"cnumpy.core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nq\x01K\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = python2(value.shape[0]) + python2(value.shape[1]) + b"\x86"
    return start + b"(K\x01" + shape + dtype + b"\x89" + python2(value.tobytes()) + b"tb"


def batches(count: int, classes: int, rows: int = 3) -> list[tuple[np.ndarray, list[int]]]:
    rng = np.random.default_rng(count)
    return [
        (rng.integers(0, 256, (rows, 3072), dtype=np.uint8), rng.integers(0, classes, rows).tolist())
        for _ in range(count)
    ]


def write_python10(folder: Path, old: bool = True) -> list[tuple[np.ndarray, list[int]]]:
    folder.mkdir(parents=True, exist_ok=True)
    held = batches(6, 10)
    for name, (pixels, labels) in zip([*BATCHES, "test_batch"], held, strict=True):
        batch: dict[Any, Any] = {
            b"batch_label": b"of 5",
            b"labels": labels,
            b"data": pixels,
            b"filenames": [b"a.png"] * 3,
        }
        new = {key.decode(): value for key, value in batch.items()}
        (folder / name).write_bytes(b"\x80\x02" + python2(batch) + b"." if old else pickle.dumps(new))
    meta = {b"label_names": [name.encode() for name in NAMES], b"num_vis": 3072}
    (folder / "batches.meta").write_bytes(b"\x80\x02" + python2(meta) + b".")
    return held


def write_binary10(folder: Path) -> list[tuple[np.ndarray, list[int]]]:
    folder.mkdir(parents=True, exist_ok=True)
    held = batches(6, 10)
    for name, (pixels, labels) in zip([*BATCHES, "test_batch"], held, strict=True):
        records = (bytes([label]) + row.tobytes() for row, label in zip(pixels, labels, strict=True))
        (folder / f"{name}.bin").write_bytes(b"".join(records))
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
    return held


def write_100(folder: Path, form: Form) -> list[tuple[np.ndarray, list[int]]]:
    folder.mkdir(parents=True, exist_ok=True)
    held = batches(2, 100)
    for name, (pixels, fine) in zip(("train", "test"), held, strict=True):
        coarse = [label // 5 for label in fine]
        if form is PYTHON100:
            batch = {b"fine_labels": fine, b"coarse_labels": coarse, b"data": pixels}
            (folder / name).write_bytes(b"\x80\x02" + python2(batch) + b".")
        else:
            records = (bytes(two) + row.tobytes() for *two, row in zip(coarse, fine, pixels, strict=True))
            (folder / f"{name}.bin").write_bytes(b"".join(records))
    return held


def check(form: Form, folder: Path, held: list[tuple[np.ndarray, list[int]]], files: int) -> None:
    bundle = form.read(folder)
    for rows, parts in ((bundle.train, held[:-1]), (bundle.test, held[-1:])):
        assert np.array_equal(rows.x, np.concatenate([p for p, _ in parts]).reshape(-1, 3, 32, 32))
        assert rows.x.dtype == np.uint8 and rows.y.dtype == np.int64
        assert rows.y.tolist() == [label for _, labels in parts for label in labels]
        assert rows.owners is None
    assert len(form.files(folder)) == files and all(path.is_file() for path in form.files(folder))


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py"])
@pytest.mark.parametrize("old", [True, False])
def test_python_batches(tmp_path: Path, inside: str, old: bool) -> None:
    held = write_python10(tmp_path / inside, old)
    check(PYTHON10, tmp_path, held, 7)
    assert list(PYTHON10.read(tmp_path).class_names) == NAMES
    assert BINARY10.files(tmp_path) == PYTHON100.files(tmp_path) == []


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_binary_batches(tmp_path: Path, inside: str) -> None:
    held = write_binary10(tmp_path / inside)
    check(BINARY10, tmp_path, held, 7)
    assert list(BINARY10.read(tmp_path).class_names) == NAMES
    assert PYTHON10.files(tmp_path) == []


@pytest.mark.parametrize(("form", "inside"), [(PYTHON100, "cifar-100-python"), (BINARY100, "cifar-100-binary")])
def test_the_fine_labels_of_a_hundred(tmp_path: Path, form: Form, inside: str) -> None:
    held = write_100(tmp_path / inside, form)
    check(form, tmp_path, held, 2)
    assert form.read(tmp_path).class_names == ()
    assert inside in form.needs


def test_folders_named_train_are_no_batches(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    assert PYTHON100.files(tmp_path) == [] == PYTHON10.files(tmp_path / "nowhere")


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("exit 1",)


def test_what_is_wrong_with_a_python_batch_is_said(tmp_path: Path) -> None:
    write_python10(tmp_path)
    data, labels = batches(1, 10)[0]
    wrongs: list[tuple[Any, str]] = [
        ({"data": data, "labels": [0, 1, 10]}, r"data_batch_2, row 2: label 10, expected 0\.\.9"),
        ({"data": data, "labels": [0, -1, 1]}, r"data_batch_2, row 1: label -1, expected 0\.\.9"),
        ({"data": data, "labels": [0, 1]}, "data_batch_2: labels = 2: expected 3, one for each image"),
        ({"data": data, "labels": [0.0, 1, 2]}, r"data_batch_2, row 0: label 0\.0, expected 0\.\.9"),
        ({"data": data, "labels": [0, [1, 2], 3]}, r"data_batch_2, row 1: label \[1, 2\]"),
        (
            {"data": data[:, 1:], "labels": labels},
            r"data_batch_2: data = \(3, 3071\): expected bytes of shape \(n, 3072\)",
        ),
        ({"data": data.astype(np.int64), "labels": labels}, "data_batch_2: data"),
        ({"data": data.tolist(), "labels": labels}, "data_batch_2: data = 'list'"),
        ({"data": data, "labels": 10**30}, r"entries \['data', 'labels'\], expected a list or an array 'labels'"),
        ({"data": data, "labels": [10**30, 1, 2]}, r"data_batch_2, row 0: label 1000"),
        ({"labels": labels}, r"data_batch_2: entries \['labels'\], expected a list or an array 'data'"),
        ([1], "data_batch_2: content = 'list': expected a dict"),
        (
            {"data": Evil(), "labels": labels},
            r"data_batch_2: a pickle that holds more than plain data: it names \w+\.system",
        ),
    ]
    for wrong, said in wrongs:
        (tmp_path / "data_batch_2").write_bytes(pickle.dumps(wrong))
        with pytest.raises(ContractError, match=said):
            PYTHON10.read(tmp_path)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({"data": data})[:100])
    with pytest.raises(ContractError, match="data_batch_2: not a whole pickle"):
        PYTHON10.read(tmp_path)
    (tmp_path / "data_batch_2").unlink()
    assert len(PYTHON10.files(tmp_path)) == 6
    with pytest.raises(StoreError, match="data_batch_2: cannot be read: no such file"):
        PYTHON10.read(tmp_path)


def test_what_is_wrong_with_a_binary_batch_is_said(tmp_path: Path) -> None:
    write_binary10(tmp_path)
    bad = tmp_path / "test_batch.bin"
    whole = bad.read_bytes()
    for data, said in [
        (whole[:-1], r"test_batch\.bin: bytes = 9218: expected records of 3073"),
        (b"", r"test_batch\.bin: bytes = 0: expected records of 3073"),
        (whole[:3073] + b"\x0a" + whole[3074:], r"test_batch\.bin, row 1: label 10, expected 0\.\.9"),
    ]:
        bad.write_bytes(data)
        with pytest.raises(ContractError, match=said):
            BINARY10.read(tmp_path)
