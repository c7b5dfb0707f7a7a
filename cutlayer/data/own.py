"""A user's own data: images in folders by class, or by client and class; an NPZ or Parquet file, or one per client; or
text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from cutlayer.core.files import as_path, reached
from cutlayer.data import cache
from cutlayer.data.dataset import Dataset
from cutlayer.data.read import arrays, clients, folders, text_rows
from cutlayer.data.read.text_rows import Text
from cutlayer.data.rows import Bundle, Form, StoredRows
from cutlayer.data.transform import Codes, Pixels, Transform, Values
from cutlayer.errors import ContractError, StoreError, expect
from cutlayer.registry import OWN

PLENTY = 1000  # this many classes are accepted even with fewer rows


@dataclass(frozen=True)
class Own:
    """Where the rows are, and which columns and layout they have."""

    path: str
    test: str | None = None
    x: str = "x"
    y: str = "y"
    owner: str | None = None
    layout: Literal["auto", "class", "client"] = "auto"
    size: int | None = None
    text: Text | None = None  # how text becomes rows, if the data are text

    def load(self) -> Dataset:
        bundle = self.read(as_path("data", self.path))
        if self.test is not None:
            other = self.read(as_path("data_test", self.test))
            bundle = Bundle(bundle.train, _renamed(bundle, other, self.test), bundle.class_names)
        train = bundle.train
        expect(len(train) > 0, "data", self.path, "at least one row")
        classes = len(bundle.class_names) if self.text is None else self.text.vocabulary
        classes = classes or classes_of(f"data: largest label in {self.y!r}", train, bundle.test)
        how = seen_as(train)
        return Dataset(train, bundle.test, classes, how, how, None, bundle.class_names)

    def held(self) -> str:
        """A digest of the files as they are now."""
        forms, both = self._forms(), [Path(path) for path in (self.path, self.test) if path is not None]
        return " ".join(cache.held(forms[:1] if path.is_file() else forms, path) for path in both)

    def _forms(self) -> list[Form]:
        if self.text is not None:
            return [text_rows.form(self.text, self.x, self.owner)]
        return [
            arrays.form(self.x, self.y, self.owner, self.size),
            clients.form(self.x, self.y, self.size),
            folders.form(self.size, self.layout),
        ]

    def read(self, path: Path) -> Bundle:
        with reached(f"data = {str(path)!r}"):
            return self._read(path)

    def _read(self, path: Path) -> Bundle:
        if not path.exists():
            raise StoreError(f"data = {str(path)!r}: no such folder or file")
        forms = self._forms()
        options = repr((self.x, self.y, self.owner, self.layout, self.size))
        options += "" if self.text is None else f"{self.text.length} {self.text.fingerprint}"
        for form in forms[:1] if path.is_file() else forms:
            if form.files(path):
                return cache.through(path.stem or OWN, form, path, options)
        needs = "; or ".join(form.needs for form in forms)
        raise StoreError(f"data = {str(path)!r}: nothing to read there; expected {needs}")


def pictures(path: Path) -> bool:
    """Whether there are images to read, judging by file names."""
    return path.is_dir() and not arrays.form().files(path) and not clients.form().files(path)


def by_client(path: Path, layout: str, owner: str | None) -> bool:
    """Whether the rows name their owners, judging by file names."""
    if owner is not None or layout == "client":
        return True
    if layout == "class" or not path.is_dir() or arrays.form().files(path):
        return False
    return bool(clients.form().files(path)) or folders.by_client(path)


def classes_of(what: str, train: StoredRows, test: StoredRows) -> int:
    """Return the number of classes, from the highest label. A model has an output for each class, so labels that are
    too high to be classes are refused."""
    most = int(max(train.y.max(), test.y.max(initial=0)))
    enough = max(len(train), PLENTY)
    below = f"classes numbered from 0, below {enough}; numbers that are names of classes can be given as text"
    expect(most < enough, what, most, below)
    return most + 1


def seen_as(rows: StoredRows) -> Transform:
    """Choose the transform for the rows by their dtype and shape."""
    if rows.x.dtype == np.uint8 and rows.x.ndim == 4:
        return Pixels()
    return Codes() if rows.x.dtype.kind in "iu" else Values()


def _renamed(first: Bundle, other: Bundle, path: str) -> StoredRows:
    """Return the rows of another file as test rows, with its classes matched by name to those of the first."""
    rows = other.train
    if rows.x.shape[1:] != first.train.x.shape[1:]:
        shapes = rows.x.shape[1:], first.train.x.shape[1:]
        raise ContractError(f"data_test = {path!r}: rows of shape {shapes[0]}, expected {shapes[1]} as in data")
    if seen_as(rows) != seen_as(first.train):
        kinds = rows.x.dtype, first.train.x.dtype
        raise ContractError(f"data_test = {path!r}: rows of {kinds[0]}, expected {kinds[1]} as in data")
    named = ["names" if names else "numbers" for names in (other.class_names, first.class_names)]
    expect(named[0] == named[1], f"data_test = {path!r}: labels", named[0], f"{named[1]} as in data")
    if tuple(other.class_names) == tuple(first.class_names):
        return rows
    for name in other.class_names:
        expect(name in first.class_names, f"data_test = {path!r}: class", name, "one that the training rows have")
    codes = np.array([list(first.class_names).index(name) for name in other.class_names], dtype=np.int64)
    return StoredRows(rows.x, codes[rows.y], rows.owners, rows.owner_names)
