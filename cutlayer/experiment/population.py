"""Divide the rows that a config names over the clients, for training and for testing."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cutlayer.core.randomness import EVERYBODY
from cutlayer.data.dataset import Dataset
from cutlayer.data.own import Own
from cutlayer.data.partition import generator
from cutlayer.data.parts import Holdout, Parts, Side, Split, Tail
from cutlayer.data.read.text_rows import Text
from cutlayer.data.rows import StoredRows
from cutlayer.data.schedule import Indices
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
    divide = config.part("partition")
    if not _before(config, data):
        return rows, divide(rows.y, clients, generator(config.seed), rows.owners)
    some, _ = _set_aside(config, rows)
    owners = None if rows.owners is None else rows.owners[some]
    return rows, divide(rows.y[some], clients, generator(config.seed), owners).of_rows(some)


def populate(config: Config, data: Dataset) -> tuple[Population, View | Population]:
    """Return the clients' training rows, and the test rows: the task's or, in cyclesl and where the task has none, some
    of each client's own; or validation rows in their place, taken from the training rows."""
    rows, parts = divided(config, data)
    seen = training_view(config, data)
    natural = config.partition["name"] == "natural"
    if config.protocol != "cyclesl" and len(data.test):
        if _before(config, data):
            return Population(rows, parts, seen), View(rows, _set_aside(config, rows)[1], data.plain)
        if config.validation is not None:
            train, test = (Side(parts, _split(config, data, "validation"), side) for side in (False, True))
            kept = [test[j] for j in range(len(test))]
            return Population(rows, train, seen), View(rows, np.sort(np.concatenate(kept)), data.plain)
        of_clients = natural and _shared(data) == "all"  # leave out owners that are not clients
        tested = np.sort(_by_owner(parts, rows, data.test).order) if of_clients else np.arange(len(data.test))
        return Population(rows, parts, seen), View(data.test, tested, data.plain)
    trained: Parts | Side = parts
    own: Population | None = None
    if parts.tests is not None:
        own = Population(rows, parts.tests, data.plain)
    elif natural and _shared(data):
        own = Population(data.test, _by_owner(parts, rows, data.test), data.plain)
    else:
        trained, test = (Side(parts, _split(config, data, "holdout"), side) for side in (False, True))
        own = Population(rows, test, data.plain)
    if config.validation is not None:
        trained, test = (Side(trained, _split(config, data, "validation"), side) for side in (False, True))
        own = Population(rows, test, data.plain)
    return Population(rows, trained, seen), own


def _before(config: Config, data: Dataset) -> bool:
    """Whether validation rows are set aside before the others are divided: where all clients share one test set, and
    no row says something of another. Otherwise they are taken from each client's part."""
    pooled = config.protocol != "cyclesl" and len(data.test) > 0 and data.gap is None
    return config.validation is not None and pooled and config.partition["name"] != "file"


def _set_aside(config: Config, rows: StoredRows) -> tuple[Indices, Indices]:
    """Return the rows for training and the rows for validation."""
    assert config.validation is not None
    split = Holdout(config.validation, config.seed, "validation")
    return split(np.arange(len(rows), dtype=np.int64), EVERYBODY)


def _split(config: Config, data: Dataset, use: Literal["holdout", "validation"]) -> Split:
    """Return how a client's rows are divided into those it trains on and those it is tested on."""
    share = config.holdout if use == "holdout" else config.validation
    assert share is not None
    return Holdout(share, config.seed, use) if data.gap is None else Tail(share, data.gap)


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
