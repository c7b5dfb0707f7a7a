"""Divide the rows that a config names over the clients, for training and for testing."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cutlayer.data.dataset import Dataset
from cutlayer.data.own import Own
from cutlayer.data.partition import generator
from cutlayer.data.parts import Holdout, Parts, Side, Tail
from cutlayer.data.read.text_rows import Text
from cutlayer.data.rows import StoredRows
from cutlayer.data.tasks import held, load_task
from cutlayer.data.transform import Transform
from cutlayer.data.views import Population, View
from cutlayer.errors import expect
from cutlayer.experiment.config import Config
from cutlayer.registry.own import HF

CLIENTS = 30
_known: dict[Any, str] = {}


@functools.lru_cache(maxsize=2)
def _load_once(holds: str, *task: Any) -> Dataset:
    return load_task(*task)


def look(config: Config) -> None:
    """Let `load_data` return the rows as the files hold them now. Called when a run begins."""
    task = _task(config)
    _known[task] = held(task[0], task[1], task[4])


def load_data(config: Config) -> Dataset:
    """Return the rows that a config names. They are read once: a run under way no longer needs the files."""
    task = _task(config)
    if task not in _known:
        look(config)
    return _load_once(_known[task], *task)


def _task(config: Config) -> tuple[str, Path | None, int | None, int, Own | None]:
    """Return the arguments of `load_task`."""
    own = None
    if config.data is not None:
        columns = config.x_column, config.y_column, config.owner_column
        text = None if config.tokens is None else Text(config.model["name"].removeprefix(HF), config.tokens)
        own = Own(config.data, config.data_test, *columns, config.layout, config.image_size, text)
    return config.task, Path(config.data_dir) if config.data_dir else None, config.train_rows, config.seed, own


def divided(config: Config, data: Dataset) -> tuple[StoredRows, Parts]:
    """Return the rows to divide over the clients, and each client's part of them.

    Where each client is tested on rows of its own, training and test rows are divided together, unless the owners have
    rows of both.
    """
    name, rows = config.partition["name"], data.train
    if config.protocol == "cyclesl" and not (name == "natural" and _shared(data)):
        rows = data.everything
    by_label = rows.y.ndim > 1 and name not in ("iid", "natural", "quantity", "file")
    expect(not by_label, "partition", name, "iid, natural, quantity or file: text has no classes")
    clients = config.clients if config.clients or name in ("natural", "file") else CLIENTS
    return rows, config.part("partition")(rows.y, clients, generator(config.seed), rows.owners)


def populate(config: Config, data: Dataset) -> tuple[Population, View | Population]:
    """Return the clients' training rows, and the test rows: the task's or, in cyclesl and where the task has none, some
    of each client's own."""
    rows, parts = divided(config, data)
    seen = training_view(config, data)
    natural = config.partition["name"] == "natural"
    if config.protocol != "cyclesl" and len(data.test):
        of_clients = natural and _shared(data) == "all"  # leave out owners that are not clients
        tested = np.sort(_by_owner(parts, rows, data.test).order) if of_clients else np.arange(len(data.test))
        return Population(rows, parts, seen), View(data.test, tested, data.plain)
    if parts.tests is not None:
        return Population(rows, parts, seen), Population(rows, parts.tests, data.plain)
    if natural and _shared(data):
        return Population(rows, parts, seen), Population(data.test, _by_owner(parts, rows, data.test), data.plain)
    split = Holdout(config.holdout, config.seed) if data.gap is None else Tail(config.holdout, data.gap)
    sides = (Side(parts, split, test) for test in (False, True))
    train, test = (Population(rows, side, how) for side, how in zip(sides, (seen, data.plain), strict=True))
    return train, test


def training_view(config: Config, data: Dataset) -> Transform:
    """Return how clients see their rows in training."""
    if not config.augment:
        return data.plain
    random = getattr(data.changed, "random", False)
    expect(random, "augment", True, f"false: nothing is known of how rows of {config.task!r} may be changed at random")
    return data.changed


def tested(data: Dataset) -> View | None:
    """Return the task's test rows, or None."""
    return View(data.test, np.arange(len(data.test)), data.plain) if len(data.test) else None


def _shared(data: Dataset) -> Literal["all", "some"] | None:
    """Whether the owners of test rows own training rows too, as in LEAF's split by sample: all, some or none of them.

    CelebA and Speech Commands are published with no owner on both sides.
    """
    train, test = (
        set() if rows.owners is None else {rows.owner_names[i] for i in np.unique(rows.owners)}
        for rows in (data.train, data.test)
    )
    return None if not test & train else "all" if test <= train else "some"


def _by_owner(parts: Parts, rows: StoredRows, test: StoredRows) -> Parts:
    """Return, for each client, the test rows of the owner whose training rows it holds."""
    assert rows.owners is not None and test.owners is not None
    theirs = {name: np.flatnonzero(test.owners == code) for code, name in enumerate(test.owner_names)}
    who = (rows.owner_names[int(rows.owners[part[0]])] for part in parts)
    return Parts.of(theirs.get(name, np.empty(0, dtype=np.int64)) for name in who)
