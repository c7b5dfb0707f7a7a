"""Who holds which rows: `cl.partition`. Divide data over clients, save it, and read what other tools saved.

>>> import numpy as np, torch, cutlayer as cl
>>> x, y = torch.randn(600, 4), torch.arange(600) % 3
>>> parts = cl.partition.dirichlet(y, clients=5, gamma=0.5, seed=1)
>>> parts
<Partition: 5 clients, 600 rows>
>>> parts[3][:4], len(parts)
(array([ 4,  5, 19, 46]), 5)
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
>>> cl.train(model, parts.clients(x, y), rounds=1, local_epochs=1, batch_size=8).history[0].samples
576

Each function divides as the command line does with the same name, parameters and seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.core.files import as_path
from cutlayer.data import partition_file
from cutlayer.data.partition import IID, Dirichlet, Natural, QuantitySkew, Shards, generator
from cutlayer.data.partitioned import Partition
from cutlayer.errors import ContractError, expect, is_whole

__all__ = ["Partition", "dirichlet", "iid", "load", "natural", "quantity", "shards"]


def iid(y: Any, clients: int, *, seed: int = 0) -> Partition:
    """Divide rows at random into equal parts. `y`: anything with one item for each row, or how many there are.

    >>> iid(10, clients=3).sizes
    array([4, 3, 3])
    """
    labels = _counted(y)
    return Partition(IID()(labels, clients, _generator(seed)), len(labels))


def dirichlet(
    y: Any, clients: int, gamma: float = 0.2, *, balance: bool = True, min_size: int = 10, seed: int = 0
) -> Partition:
    """Divide rows with label skew: each class is spread over the clients by a draw of Dir(gamma).

    y           the class of each row
    gamma       evenness: smaller is more skewed (other tools call it alpha or beta)
    balance     whoever holds a fair share gets no more of the remaining classes
    min_size    the fewest rows of a client

    >>> y = np.arange(300) % 10
    >>> [len(set(y[rows])) for rows in dirichlet(y, clients=4, gamma=0.05)]          # classes of each client
    [3, 6, 5, 9]
    """
    labels = _classes("y", y)
    return Partition(Dirichlet(gamma, balance, min_size)(labels, clients, _generator(seed)), len(labels))


def shards(y: Any, clients: int, shards: int = 2, *, seed: int = 0) -> Partition:
    """Divide rows so that each client holds few classes: `shards` pieces of the rows sorted by their class `y`.

    >>> y = np.arange(600) % 6
    >>> [sorted(set(y[rows].tolist())) for rows in shards(y, clients=3)]
    [[1, 4], [3, 5], [0, 2]]
    """
    labels = _classes("y", y)
    return Partition(Shards(shards)(labels, clients, _generator(seed)), len(labels))


def quantity(y: Any, clients: int, gamma: float = 0.5, *, min_size: int = 1, seed: int = 0) -> Partition:
    """Divide rows in amounts drawn from Dir(gamma), with the same mix of classes for all; `y` as in `iid`.

    >>> quantity(1000, clients=4).sizes
    array([ 61, 230, 102, 607])
    """
    labels = _counted(y)
    return Partition(QuantitySkew(gamma, min_size)(labels, clients, _generator(seed)), len(labels))


def natural(
    owners: Any, clients: int | None = None, *, min_size: int = 32, max_size: int | None = None, seed: int = 0
) -> Partition:
    """Make each owner a client, in the owners' order.

    owners      whose each row is: numbers or names (the command line takes a column's numbers for names, 10 before 2)
    clients     how many of them to draw at random (default: all)
    min_size    owners with fewer rows are left out
    max_size    the most rows of an owner: of more, its first are taken (default: all)

    >>> [rows.tolist() for rows in natural(["ann", "bob", "ann", "eve", "bob"], min_size=2)]
    [[0, 2], [1, 4]]
    """
    whose = _classes("owners", owners)
    found = Natural(min_size, max_size)(np.zeros(len(whose), np.int64), clients, _generator(seed), whose)
    return Partition(found, len(whose))


def load(path: str | Path) -> Partition:
    """Read a partition that `save` or `cutlayer partition --parts` wrote, or Flower, FL-bench or another tool.

    The form is told by content, and `origin` names it. Pickles are read as plain data: nothing in them is run. A
    client may not hold a row twice, nor be tested on a row it trains on; several clients may hold one row.

    >>> import json, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "partitions.json")
    ...     _ = path.write_text(json.dumps({0: [4, 1], 1: [0, 2, 3]}))       # partition id -> rows
    ...     load(path)
    <Partition: 2 clients, 5 rows, form: Flower>
    """
    return Partition(partition_file.read(as_path("path", path)))


def _generator(seed: int) -> np.random.Generator:
    expect(is_whole(seed), "seed", seed, "a whole number")
    return generator(seed)


def _counted(y: Any) -> NDArray[np.int64]:
    """Return as many labels as there are rows, for what does not look at labels."""
    try:
        return np.broadcast_to(np.int64(0), (int(y) if is_whole(y) else len(y),))
    except (TypeError, ValueError) as error:
        raise ContractError(f"y = {y!r}: expected one item for each row, or how many rows there are") from error


def _classes(name: str, given: Any) -> NDArray[Any]:
    """Return the class or the owner of each row."""
    try:
        found = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ContractError(f"{name}: expected one whole number or name for each row: {error}") from error
    if found.dtype.kind == "O" and all(isinstance(one, str) for one in found.flat):
        found = found.astype(np.str_)
    good = found.ndim == 1 and found.dtype.kind in "iubU"
    expect(good, name, f"{found.dtype} {found.shape}", "one whole number or name for each row")
    return found
