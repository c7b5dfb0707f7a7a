"""MNIST and similar data sets as published: IDX files, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutlayer.data.read import room
from cutlayer.data.read.common import Raw, bundle, there
from cutlayer.data.rows import Bundle, Form
from cutlayer.errors import ContractError, StoreError, expect

SIDES = ("train", "t10k")
MOST = 1032  # gzip unpacks to at most this many times the size of a file
FOLDERS = (".", "raw", "MNIST/raw", "FashionMNIST/raw")


def array(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read the bytes of an IDX file as an array."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _array(path, file, dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise StoreError(f"{path}: not readable: {error}") from error


def _array(path: Path, file: Any, dimensions: int) -> NDArray[np.uint8]:
    start = file.read(4 + 4 * dimensions)
    expect(len(start) == 4 + 4 * dimensions, f"{path}: bytes", len(start), "an IDX header")
    if start[:4] != bytes([0, 0, 8, dimensions]):
        raise ContractError(f"{path}: starts with {start[:4].hex()}, expected 000008{dimensions:02}")
    shape = tuple(int(length) for length in np.frombuffer(start, dtype=">u4")[1:])
    size = path.stat().st_size
    most = size * MOST if path.suffix == ".gz" else size - len(start)  # check before reading that many bytes
    expect(math.prod(shape) <= most, f"{path}: shape", shape, f"no more than the file's {size} bytes hold")
    room.check(path, math.prod(shape), size)
    data = file.read(math.prod(shape) + 1)
    expect(len(data) == math.prod(shape), f"{path}: bytes", len(data), f"{math.prod(shape)} for shape {shape}")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _find(folder: Path, side: str, what: str) -> Path | None:
    """Find a file by its usual names: train-images-idx3-ubyte, train-images.idx3-ubyte, either with .gz."""
    names = [f"{side}-{what}{dot}ubyte{end}" for dot in ("-idx?-", ".idx?-") for end in ("", ".gz")]
    names = [name.replace("?", "3" if what == "images" else "1") for name in names]
    return next(iter(there(folder / inside / name for inside in FOLDERS for name in names)), None)


def _files(folder: Path) -> list[Path]:
    found = (_find(folder, side, what) for side in SIDES for what in ("images", "labels"))
    return [path for path in found if path is not None]


def _side(folder: Path, side: str) -> Raw:
    images, labels = (_find(folder, side, what) for what in ("images", "labels"))
    if images is None or labels is None:
        raise StoreError(f"{folder}: no {side}-{'labels' if images else 'images'} file; {FORM.needs}")
    x, y = array(images, 3), array(labels, 1)
    expect(len(x) == len(y), f"{labels}: labels", len(y), f"{len(x)}, one for each image in {images.name}")
    return Raw(images, x[:, None], y.astype(np.int64))


def _read(folder: Path) -> Bundle:
    return bundle([_side(folder, side) for side in SIDES])


FORM = Form("train-images-idx3-ubyte, train-labels-idx1-ubyte and t10k-..., plain or .gz", _files, _read)
