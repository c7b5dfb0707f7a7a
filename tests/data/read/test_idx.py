"""IDX files under all their usual names, plain and gzipped; headers are not believed."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from cutlayer.data.read.idx import FORM
from cutlayer.errors import ContractError, StoreError

RNG = np.random.default_rng(0)
IMAGES = {
    "train": RNG.integers(0, 256, (5, 4, 3), dtype=np.uint8),
    "t10k": RNG.integers(0, 256, (2, 4, 3), dtype=np.uint8),
}
LABELS = {"train": np.array([3, 1, 4, 1, 5], dtype=np.uint8), "t10k": np.array([9, 2], dtype=np.uint8)}


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return struct.pack(">BBBB", 0, 0, kind, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(folder: Path, dot: str = "-", end: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for side in IMAGES:
        for what, arrays in (("images", IMAGES), ("labels", LABELS)):
            data = idx(arrays[side])
            name = f"{side}-{what}{dot}idx{arrays[side].ndim}-ubyte{end}"
            (folder / name).write_bytes(gzip.compress(data) if end else data)


@pytest.mark.parametrize("inside", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize(("dot", "end"), [("-", ""), (".", ""), ("-", ".gz"), (".", ".gz")])
def test_bytes_come_out_as_they_went_in(tmp_path: Path, dot: str, end: str, inside: str) -> None:
    assert FORM.files(tmp_path) == []
    write(tmp_path / inside, dot, end)
    assert len(FORM.files(tmp_path)) == 4
    bundle = FORM.read(tmp_path)
    for rows, side in ((bundle.train, "train"), (bundle.test, "t10k")):
        assert rows.x.dtype == np.uint8 and np.array_equal(rows.x, IMAGES[side][:, None])
        assert rows.y.dtype == np.int64 and np.array_equal(rows.y, LABELS[side])


@pytest.mark.parametrize("end", ["", ".gz"])
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, end: str) -> None:
    write(tmp_path, end=end)
    images, labels = (tmp_path / f"train-{what}-ubyte{end}" for what in ("images-idx3", "labels-idx1"))
    good = idx(IMAGES["train"])
    huge = struct.pack(">BBBBIII", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    large = struct.pack(">BBBBIII", 0, 0, 8, 3, 5, 4, 300)
    for data, said in [
        (b"", "bytes = 0: expected an IDX header"),
        (good[:9], "bytes = 9: expected an IDX header"),
        (idx(IMAGES["train"], 13), "starts with 00000d03, expected 00000803"),
        (idx(LABELS["train"]) + bytes(11), "starts with 00000801, expected 00000803"),
        (good + b"x", "bytes = 61: expected 60 for shape"),
        (huge, r"shape = \(4294967295, 4294967295, 4294967295\): expected no more than the file"),
        (good[:-1], r"(shape|bytes) = "),
        (large + bytes(50), r"(shape|bytes) = "),
        (idx(IMAGES["train"][:4]), "labels = 5: expected 4, one for each image in train-images"),
        (idx(IMAGES["train"][:, :3]), r"rows of uint8 \(1, 4, 3\), labels as numbers, expected uint8 \(1, 3, 3\)"),
    ]:
        images.write_bytes(gzip.compress(data) if end else data)
        with pytest.raises(ContractError, match=rf"-ubyte(\.gz)?: {said}"):
            FORM.read(tmp_path)
    images.write_bytes(gzip.compress(good) if end else good)
    labels.unlink()
    with pytest.raises(StoreError, match="no train-labels file; train-images-idx3-ubyte"):
        FORM.read(tmp_path)


def test_damaged_gzip_is_said(tmp_path: Path) -> None:
    write(tmp_path, end=".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for data in (b"nonsense", whole[:-20], whole[:30] + b"\xff\xff\xff" + whole[33:]):
        path.write_bytes(data)
        with pytest.raises(StoreError, match=r"train-images-idx3-ubyte\.gz: not readable: "):
            FORM.read(tmp_path)
