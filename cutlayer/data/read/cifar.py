"""CIFAR-10 and CIFAR-100 as their authors publish them: Python batches, read as plain data, and binary records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cutlayer.data.read.common import Raw, bundle, checked, content, lines, listed, place, there
from cutlayer.data.read.plain_pickle import loads
from cutlayer.data.rows import Bundle, Form
from cutlayer.errors import ContractError, expect

SHAPE = (3, 32, 32)
PIXELS = 3072


@dataclass(frozen=True)
class _Kind:
    """One archive: its folder, its files, and how a file and the class names are read."""

    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    read: Callable[[Path], Raw]
    read_names: Callable[[Path], tuple[str, ...]]

    def files(self, folder: Path) -> list[Path]:
        root = self.root(folder)
        found = there(root / name for name in (*self.train, self.test))
        return [*found, *there([root / self.names])] if found else []

    def bundle(self, folder: Path) -> Bundle:
        root = self.root(folder)
        parts = [self.read(root / name) for name in self.train]
        x, y = (np.concatenate([getattr(part, column) for part in parts]) for column in ("x", "y"))
        names = self.read_names(root / self.names) if (root / self.names).is_file() else ()
        return bundle([Raw(root, x, y), self.read(root / self.test)], names)

    def root(self, folder: Path) -> Path:
        return place(folder, [self.folder], (*self.train, self.test))

    def form(self) -> Form:
        return Form(f"{self.folder}/ ({self.train[0]} ... {self.test})", self.files, self.bundle)


def _python(key: str, classes: int) -> Callable[[Path], Raw]:
    def read(path: Path) -> Raw:
        batch = _dict(path)
        x, y = _entry(path, batch, "data"), list(_entry(path, batch, key))
        fits = isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim == 2 and x.shape[1] == PIXELS
        expect(fits, f"{path}: data", getattr(x, "shape", type(x).__name__), f"bytes of shape (n, {PIXELS})")
        expect(len(y) == len(x), f"{path}: {key}", len(y), f"{len(x)}, one for each image")
        return Raw(path, x.reshape(-1, *SHAPE), listed(path, y, classes))

    return read


def _python_names(key: str) -> Callable[[Path], tuple[str, ...]]:
    def read(path: Path) -> tuple[str, ...]:
        names = _entry(path, _dict(path), key)
        return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)

    return read


def _dict(path: Path) -> dict[Any, Any]:
    batch = loads(content(path), path)
    expect(isinstance(batch, dict), f"{path}: content", type(batch).__name__, "a dict")
    return dict(batch)


def _entry(path: Path, batch: dict[Any, Any], key: str) -> Any:
    for known in (key.encode(), key):  # Python 2's keys are bytes
        if isinstance(batch.get(known), list | np.ndarray):
            return batch[known]
    raise ContractError(f"{path}: entries {sorted(map(str, batch))}, expected a list or an array {key!r}")


def _binary(before: int, classes: int) -> Callable[[Path], Raw]:
    """Return a reader of records of `before` labels, of which the last is the fine one, and the pixels."""

    def read(path: Path) -> Raw:
        data, size = content(path), before + PIXELS
        expect(len(data) > 0 and len(data) % size == 0, f"{path}: bytes", len(data), f"records of {size}")
        records = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
        y = checked(path, records[:, before - 1].astype(np.int64), classes)
        return Raw(path, records[:, before:].reshape(-1, *SHAPE), y)

    return read


def _text_names(path: Path) -> tuple[str, ...]:
    return tuple(line.strip() for line in lines(path))


_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))
PYTHON10 = _Kind(
    "cifar-10-batches-py", _BATCHES, "test_batch", "batches.meta", _python("labels", 10), _python_names("label_names")
).form()
BINARY10 = _Kind(
    "cifar-10-batches-bin",
    tuple(f"{name}.bin" for name in _BATCHES),
    "test_batch.bin",
    "batches.meta.txt",
    _binary(1, 10),
    _text_names,
).form()
PYTHON100 = _Kind(
    "cifar-100-python", ("train",), "test", "meta", _python("fine_labels", 100), _python_names("fine_label_names")
).form()
BINARY100 = _Kind(
    "cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", _binary(2, 100), _text_names
).form()
