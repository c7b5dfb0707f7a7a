"""Data sets by name. Each is looked for in FOLDER/NAME: as Parquet in the public hub's schema, then in the forms it is
usually published in; then on the hub itself, if the `hf` extra is installed. `digits` ships with scikit-learn.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutlayer.core.files import as_path, reached
from cutlayer.core.randomness import EVERYBODY, rng
from cutlayer.data import cache, given, hub
from cutlayer.data.dataset import Dataset
from cutlayer.data.own import Own
from cutlayer.data.read import cifar, idx, leaf, parquet_forms, speech, tiny
from cutlayer.data.rows import Bundle, Form, StoredRows
from cutlayer.data.transform import Codes, Pixels, Transform, Values
from cutlayer.errors import ContractError, CutlayerError, StoreError, expect, unknown
from cutlayer.registry import OWN, TASKS
from cutlayer.registry.data import FOLDER_VARIABLE


@dataclass(frozen=True)
class Source:
    """Where the rows of a task come from, and the transforms that turn them into a model's inputs."""

    classes: int
    forms: Sequence[Form]
    plain: Transform = field(default_factory=Values)
    changed: Transform | None = None
    hub: hub.Place | None = None
    gap: int | None = None

    @property
    def shipped(self) -> bool:
        return not self.forms


def digits() -> Dataset:
    """1,797 handwritten digits of 8x8 pixels; every fifth of each class is kept for the test."""
    rows = _scanned()
    x = rows[:, :-1].reshape(-1, 1, 8, 8).astype(np.float32) / np.float32(16)
    y = rows[:, -1].astype(np.int64)
    held = np.zeros(len(y), dtype=bool)
    for label in range(10):
        held[np.flatnonzero(y == label)[::5]] = True
    return Dataset(StoredRows(x[~held], y[~held]), StoredRows(x[held], y[held]), 10, Values(), Values())


def _scanned() -> NDArray[np.float64]:
    """Return scikit-learn's digits: 64 pixels and a label in each row. Only their file is read, because scikit-learn
    takes as long to import as torch."""
    found = find_spec("sklearn")
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.exists():
            with gzip.open(path, "rt", encoding="ascii") as lines:
                return np.loadtxt(lines, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def _moved(pixels: Pixels, pad: int) -> Pixels:
    return replace(pixels, pad=pad, flip=True)


CIFAR10 = Pixels((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = Pixels((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
TINY = Pixels((0.4802, 0.4481, 0.3975), (0.2302, 0.2265, 0.2262))

SOURCES: dict[str, Source] = {
    "digits": Source(10, ()),
    "mnist": Source(
        10, (parquet_forms.images(), idx.FORM), Pixels((0.1307,), (0.3081,)), hub=hub.Place("ylecun/mnist")
    ),
    "fashion_mnist": Source(
        10,
        (parquet_forms.images(), idx.FORM),
        Pixels((0.2860,), (0.3530,)),
        hub=hub.Place("zalando-datasets/fashion_mnist"),
    ),
    "cifar10": Source(
        10,
        (parquet_forms.images(), cifar.PYTHON10, cifar.BINARY10),
        CIFAR10,
        _moved(CIFAR10, 4),
        hub.Place("uoft-cs/cifar10"),
    ),
    "cifar100": Source(
        100,
        (parquet_forms.images(y="fine_label"), cifar.PYTHON100, cifar.BINARY100),
        CIFAR100,
        _moved(CIFAR100, 4),
        hub.Place("uoft-cs/cifar100"),
    ),
    "tiny_imagenet": Source(
        200,
        (parquet_forms.images(test="valid", mode="RGB"), tiny.FORM),
        TINY,
        _moved(TINY, 8),
        hub.Place("zh-plus/tiny-imagenet", test="valid"),
    ),
    "femnist": Source(
        62,
        (parquet_forms.images(y="character", owner="writer_id", test=None), leaf.form("femnist")),
        Pixels(),
        hub=hub.Place("flwrlabs/femnist", test=None),
    ),
    "celeba": Source(
        2,
        (parquet_forms.images(y="Smiling", owner="celeb_id", size=84, mode="RGB"), leaf.form("celeba")),
        Pixels(),
        hub=hub.Place("flwrlabs/celeba"),
    ),
    "shakespeare": Source(
        80,
        (parquet_forms.windows(), leaf.form("shakespeare")),
        Codes(),
        hub=hub.Place("flwrlabs/shakespeare", test=None),
        gap=79,
    ),
    "speech_commands": Source(35, (parquet_forms.recordings(), speech.FORM), Values(-54.7, 21.3)),
    OWN: Source(0, ()),
}


def load_task(
    name: str, folder: Path | None, train_rows: int | None = None, seed: int = 0, own: Own | None = None
) -> Dataset:
    """Load the rows of a task, such as `cl.dataset("cifar10", Path("data"))`.

    `folder`: where data sets are stored (default: the environment variable CUTLAYER_DATA).
    `train_rows`: take only this many of the training rows, drawn at random.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    if name not in SOURCES:
        data = given.load(name, TASKS[name].maker)
        return data if train_rows is None else _some(data, train_rows, seed)
    task = SOURCES[name]
    expect((own is not None) == (name == OWN), "task", name, f"{OWN!r} where own data are given, and nowhere else")
    if own is not None:
        data = own.load()
    elif task.shipped:
        data = digits()
    else:
        data = _dataset(name, task, _bundle(name, task, folder))
    return data if train_rows is None else _some(data, train_rows, seed)


def held(name: str, folder: Path | None, own: Own | None = None) -> str:
    """A digest of the files of a task as they are now; "" if there are none, or they cannot be read."""
    root = data_folder(folder)
    try:
        if own is not None:
            return own.held()
        return cache.held(SOURCES[name].forms, root / name) if root is not None and name in SOURCES else ""
    except (CutlayerError, OSError, ValueError):  # reading the data will raise it
        return ""


def _dataset(name: str, task: Source, bundle: Bundle) -> Dataset:
    classes = len(bundle.class_names) or task.classes
    for split, rows in (("training", bundle.train), ("test", bundle.test)):
        wrong = np.flatnonzero((rows.y < 0) | (rows.y >= classes))
        if len(wrong):
            where = f"task {name!r}: label of {split} row {wrong[0]}"
            raise ContractError(f"{where} = {rows.y[wrong[0]]}: expected 0..{classes - 1}")
    changed = task.changed or task.plain
    return Dataset(bundle.train, bundle.test, classes, task.plain, changed, task.gap, bundle.class_names)


def _bundle(name: str, task: Source, folder: Path | None) -> Bundle:
    root = data_folder(None if folder is None else as_path("data_dir", folder))
    with reached(f"task {name!r}: data_dir = {str(root)!r}"):
        return _found(name, task, root)


def _found(name: str, task: Source, root: Path | None) -> Bundle:
    if root is not None and not root.is_dir():
        raise StoreError(f"task {name!r}: data_dir = {str(root)!r}: no such folder")
    found = cache.find(name, task.forms, root / name) if root is not None and (root / name).is_dir() else None
    if found is None and task.hub is not None and hub.installed():
        try:
            fetched = hub.fetch(name, task.hub)
        except StoreError as error:
            raise StoreError(f"{error}. Without it: {_missing(name, task, root)}") from error
        found = cache.find(name, task.forms, fetched)
    if found is None:
        raise StoreError(f"task {name!r}: {_missing(name, task, root)}")
    return found


def _missing(name: str, task: Source, root: Path | None) -> str:
    """Say which files to put where."""
    where = root / name if root is not None else Path("FOLDER") / name
    first = (
        f"nothing to read in {where}. "
        if root is not None
        else f"no data folder: give --data-dir FOLDER, or set {FOLDER_VARIABLE}. "
    )
    kinds = "; or ".join(form.needs for form in task.forms)
    or_hub = ""
    if task.hub is not None and not hub.installed():
        or_hub = f". Or install cutlayer[hf], to fetch {task.hub.path} from the Hugging Face hub"
    return f"{first}Put into {where}: {kinds}{or_hub}"


def _some(data: Dataset, train_rows: int, seed: int) -> Dataset:
    n = len(data.train)
    expect(1 <= train_rows <= n, "train_rows", train_rows, f"a whole number from 1 to {n}")
    return replace(data, train=chosen(data.train, np.sort(rng(seed, 0, EVERYBODY, "rows").permutation(n)[:train_rows])))


def chosen(rows: StoredRows, index: Any) -> StoredRows:
    """Return some of the rows, in memory."""
    owners = None if rows.owners is None else rows.owners[index]
    return StoredRows(rows.x[index], rows.y[index], owners, rows.owner_names)


def data_folder(folder: Path | None = None) -> Path | None:
    """The folder given, or else the one that the environment names."""
    named = os.environ.get(FOLDER_VARIABLE)
    return folder or (Path(named) if named else None)
