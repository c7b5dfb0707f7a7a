"""Data sets by name, in memory: inputs in [0, 1] or standardised, labels from 0.

`digits` ships with scikit-learn. The others are read from a data folder that holds `NAME/train.parquet` and
`NAME/test.parquet` in the public hub's schema (an image column of encoded bytes, a label column). `femnist` has
no test file; its rows come with owners, the writers.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutlayer.data.partition import Labels, Owners
from cutlayer.errors import ContractError, StoreError, expect, unknown
from cutlayer.rng import EVERYBODY, rng

FOLDER_VARIABLE = "CUTLAYER_DATA"


@dataclass(frozen=True)
class Dataset:
    """A task's rows; `owners`: who of 0..k-1 each training row belongs to, if the data come with natural clients."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    owners: Owners | None = None

    @property
    def labels(self) -> Labels:
        return np.asarray(self.y.numpy(), dtype=np.int64)


@dataclass(frozen=True)
class Task:
    """A data set by name, with the model and cut it is trained with unless others are named."""

    load: Callable[[Path | None], Dataset]
    line: str
    source: str
    model: str
    cut: int
    shipped: bool = False
    splits: tuple[str, ...] = ("train", "test")


def digits(folder: Path | None = None) -> Dataset:
    """1,797 handwritten digits of 8x8 pixels; every fifth of each class is kept for the test."""
    from sklearn.datasets import load_digits  # only here: it takes as long to import as torch

    bunch = load_digits()
    x = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(bunch.target, dtype=torch.int64)
    held = torch.zeros(len(y), dtype=torch.bool)
    for label in range(10):
        held[(y == label).nonzero().flatten()[::5]] = True
    return Dataset(x[~held], y[~held], x[held], y[held], 10)


def _parquet(name: str, mean: tuple[float, ...], std: tuple[float, ...]) -> Callable[[Path | None], Dataset]:
    def load(folder: Path | None) -> Dataset:
        where = _folder(name, folder)
        shift, scale = (torch.tensor(v)[:, None, None] for v in (mean, std))
        rows = [read_images(where / f"{split}.parquet") for split in ("train", "test")]
        (x, y), (x_test, y_test) = (((pixels.float() / 255 - shift) / scale, labels) for pixels, labels in rows)
        return Dataset(x, y, x_test, y_test, int(max(y.max(), y_test.max())) + 1)

    return load


def femnist(folder: Path | None) -> Dataset:
    """Handwritten characters with their writers as owners, in [0, 1] as LEAF keeps them; no test rows."""
    path = _folder("femnist", folder) / "train.parquet"
    owners = read_owners(path, "writer_id")
    pixels, y = read_images(path)
    low, high = int(y.min()), int(y.max())
    expect(low >= 0 and high < 62, f"{path}: labels", f"{low}..{high}", "0..61")
    x = pixels.float() / 255
    return Dataset(x, y, x[:0], y[:0], 62, owners)


def read_owners(path: Path, column: str) -> Owners:
    """The owner of every row of a Parquet file: the names in a column, numbered in sorted order."""
    table = _table(path)
    if column not in table.column_names:
        raise ContractError(f"{path}: columns {table.column_names}, expected an owner column {column!r}")
    names = table.column(column)
    expect(names.null_count == 0, f"{path}: rows without {column}", names.null_count, "none")
    return np.unique(names.to_numpy(), return_inverse=True)[1].astype(np.int64)


def read_images(path: Path) -> tuple[Tensor, Tensor]:
    """The images of a Parquet file as uint8 [n, channels, height, width], and their labels."""
    from PIL import Image

    table = _table(path)
    image = next((c for c in ("img", "image") if c in table.column_names), None)
    label = next((c for c in ("label", "fine_label", "character") if c in table.column_names), None)
    if image is None or label is None:
        raise ContractError(f"{path}: columns {table.column_names}, expected an image and a label column")
    labels = table.column(label)
    whole = str(labels.type).startswith(("int", "uint")) and labels.null_count == 0
    expect(whole, f"{path}: column {label}", str(labels.type), "a whole number in every row")
    pixels = []
    for row, cell in enumerate(table.column(image).to_pylist()):
        try:
            pixels.append(np.asarray(Image.open(io.BytesIO(cell["bytes"]))))
        except (OSError, SyntaxError, ValueError, TypeError, KeyError) as error:  # Pillow raises three of them
            raise ContractError(f"{path}, row {row}: not a readable image: {error}") from error
    shapes = sorted({cell.shape for cell in pixels})
    expect(len(shapes) == 1, f"{path}: image shapes", shapes, "rows of one shape")
    x = torch.from_numpy(np.stack(pixels))
    x = x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()
    return x, torch.from_numpy(labels.to_numpy().astype(np.int64))


def _table(path: Path) -> Any:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise StoreError(f"{path}: not a readable Parquet file: {error}") from error


def data_folder(folder: Path | None = None) -> Path | None:
    """The folder given, or the one the environment names."""
    named = os.environ.get(FOLDER_VARIABLE)
    return folder or (Path(named) if named else None)


def _folder(name: str, folder: Path | None) -> Path:
    root = data_folder(folder)
    if root is None:
        raise StoreError(f"task {name!r} needs a data folder: give --data-dir, or set {FOLDER_VARIABLE}")
    for split in TASKS[name].splits:
        if not (root / name / f"{split}.parquet").is_file():
            raise StoreError(f"task {name!r}: no file {root / name / f'{split}.parquet'}; put the Parquet file there")
    return root / name


TASKS: dict[str, Task] = {
    "digits": Task(
        digits, "1,797 handwritten digits, 8x8, 10 classes; no download", "Alpaydin and Kaynak, 1998", "cnn", 0, True
    ),
    "mnist": Task(
        _parquet("mnist", (0.1307,), (0.3081,)), "handwritten digits, 28x28, 10 classes", "LeCun et al., 1998", "cnn", 1
    ),
    "fashion_mnist": Task(
        _parquet("fashion_mnist", (0.2860,), (0.3530,)), "clothes, 28x28, 10 classes", "Xiao et al., 2017", "cnn", 1
    ),
    "cifar10": Task(
        _parquet("cifar10", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        "photographs, 32x32, 10 classes",
        "Krizhevsky, 2009",
        "resnet",
        1,
    ),
    "cifar100": Task(
        _parquet("cifar100", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        "photographs, 32x32, 100 classes",
        "Krizhevsky, 2009",
        "resnet",
        1,
    ),
    "femnist": Task(
        femnist,
        "handwritten characters by writer, 28x28, 62 classes; no test rows",
        "Caldas et al. (LEAF), 2018",
        "leaf_cnn",
        1,
        splits=("train",),
    ),
}


def load_task(name: str, folder: Path | None, train_rows: int | None, seed: int) -> Dataset:
    """The rows of a task, or a random `train_rows` of its training rows."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    data = TASKS[name].load(folder)
    if train_rows is None:
        return data
    expect(1 <= train_rows <= len(data.y), "train_rows", train_rows, f"a whole number from 1 to {len(data.y)}")
    rows = np.sort(rng(seed, 0, EVERYBODY, "rows").permutation(len(data.y))[:train_rows])
    owners = None if data.owners is None else data.owners[rows]
    return replace(data, x=data.x[rows], y=data.y[rows], owners=owners)
