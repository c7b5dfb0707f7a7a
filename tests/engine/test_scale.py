"""A million clients may be registered: a round costs what those who train in it cost."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.data.parts import Parts
from cutlayer.data.rows import StoredRows
from cutlayer.data.transform import Values
from cutlayer.data.views import Population

EACH, FEW, MANY = 4, 10_000, 1_000_000
ROWS = StoredRows(np.arange(160, dtype=np.float32).reshape(40, 4) / 160, np.arange(40) % 3)


class Cost(NamedTuple):
    """Bytes of Python and numpy: held once it is set up, at the most until then, in a round more than that, and at the
    most; and those of torch."""

    held: int
    most: int
    more: int
    peak: int
    tensors: int


def population(n: int) -> Population:
    """Everybody has four of forty rows."""
    order = np.resize(np.arange(len(ROWS)), n * EACH)
    return Population(ROWS, Parts(order, np.arange(EACH, EACH * n + 1, EACH)), Values())


def rounds(clients: Population, **more: Any) -> cl.Run:
    """Two rounds of 20 of them."""
    fixed: dict[str, Any] = {"participation": 20, "rounds": 2, "batch_size": 2, "local_epochs": 1, "profile": "lte"}
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return cl.rounds(model, clients, **fixed, **more, backend="loop", threads=1)


def cost(n: int, **more: Any) -> Cost:
    """Besides the parts, which are there already."""
    clients = population(n)
    gc.collect()
    gc.freeze()
    tracemalloc.start()
    try:
        run = rounds(clients, **more)
        held, most = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        records = list(run)
        after, peak = tracemalloc.get_traced_memory()
        storages = [t.untyped_storage() for t in gc.get_objects() if issubclass(type(t), Tensor)]
        tensors = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    assert [record.participants for record in records] == [20, 20] and records[0].steps >= 20
    assert len({j for record in records for j in record.clients}) > 30 and max(records[0].clients) > n // 2
    return Cost(held, most, after - held, peak - held, tensors)


@pytest.mark.parametrize(
    ("n", "more"),
    [(MANY, {"scheme": "smofi"}), (MANY // 20, {"scheme": "psl", "protocol": "cyclesl"})],
    ids=["smofi", "psl"],
)
def test_who_is_only_registered_costs_eight_bytes(n: int, more: dict[str, Any]) -> None:
    """For its size (and some room to grow); three times that while sizes are counted. A round costs the same."""
    list(rounds(population(20), **more))  # what is imported or made once
    few, many = cost(FEW, **more), cost(n, **more)
    assert many.held - few.held < 9 * (n - FEW)
    assert many.most - few.most < 24 * (n - FEW)
    assert abs(many.more - few.more) < 2**16 and abs(many.peak - few.peak) < 2**16
    assert many.tensors == few.tensors > 0


def test_a_client_exists_when_it_is_asked_for() -> None:
    clients = population(MANY)
    assert len(clients) == MANY and len(clients[MANY - 1]) == EACH
    x, y = clients[-1].take(np.arange(EACH), torch.device("cpu"))
    assert torch.equal(x, torch.from_numpy(ROWS.x[36:])) and y.tolist() == [0, 1, 2, 0]
