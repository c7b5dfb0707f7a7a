"""Rows on an accelerator, and stacks that fit into its memory. What runs on a device is in tests/standin."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.core.devices import Memory, memory
from cutlayer.data.parts import Parts
from cutlayer.data.rows import StoredRows
from cutlayer.data.source import source
from cutlayer.data.tensors import Tensors
from cutlayer.data.transform import Pixels
from cutlayer.data.views import Population, View, take_together
from cutlayer.engine import backend, resident
from cutlayer.errors import NoEffect

CPU, META = torch.device("cpu"), torch.device("meta")  # a device without memory stands for one with too little
STORED = StoredRows(np.random.default_rng(0).integers(0, 256, (40, 3, 4, 4), dtype=np.uint8), np.arange(40) % 5)
STORED.x.flags.writeable = False  # as where it is mapped from a file
PARTS = Parts(np.arange(40), np.array([10, 25, 40]))


def pair(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=draw), torch.randint(0, 3, (n,), generator=draw)


def test_a_copy_of_the_data_set_gives_the_same_rows() -> None:
    plain = Population(STORED, PARTS, Pixels())
    near = plain.moved(resident._copy(plain, CPU, {}))
    rows = np.array([3, 0, 9])
    for j in range(3):
        assert all(map(torch.equal, plain[j].take(rows, CPU), near[j].take(rows, CPU)))
    together = [take_together([one[0], one[2]], [rows, rows], CPU) for one in (plain, near)]
    assert together[0] is not None and together[1] is not None
    assert all(map(torch.equal, *together))
    assert near.digest() == plain.digest() and near.everybody().near is near.near


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Any:
    def free(size: int) -> None:
        monkeypatch.setattr(resident, "memory", lambda device: Memory(size, 2 * size))

    return free


def test_rows_are_kept_where_they_fit(room: Any) -> None:
    shared, own = Population(STORED, PARTS, Pixels()), [source(pair(6), torch.float32, "own")]
    test = View(STORED, np.arange(5), Pixels())
    size = STORED.x.nbytes + STORED.y.nbytes + 6 * 4 * 4 + 6 * 8  # the data set once
    room(4 * size)
    population, tensors, tests = resident.near("auto", (shared, own, [test]), META)
    assert isinstance(population, Population) and isinstance(tests[0], View) and isinstance(tensors[0], Tensors)
    assert population.near is tests[0].near is not None and tensors[0].y.device == META
    assert own[0].take(np.arange(2), CPU)[1].device == CPU  # the caller's stay where they are
    for free, asked, there in ((4 * size - 1, "auto", False), (size, "yes", True), (4 * size, "no", False)):
        room(free)
        found, *_ = resident.near(asked, (shared, own, [test]), META)  # type: ignore[arg-type]
        assert isinstance(found, Population) and (found.near is not None) is there
    room(size - 1)
    with pytest.raises(cl.ContractError, match="data_on_device = 'yes': rows of = '0 MiB': expected at most the 0 MiB"):
        resident.near("yes", (shared, own, [test]), META)
    assert resident.near("yes", (shared, own), CPU) == [shared, own]


class Decoded(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Makes each row when it is asked for."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((4,), float(index)), index % 3


def test_rows_that_are_read_one_by_one_are_sent(room: Any) -> None:
    room(2**30)
    items = [source(Decoded(), torch.float32, "items")]
    assert resident.near("auto", (items,), META) == [items]
    with pytest.raises(cl.ContractError, match="data_on_device = 'yes': some rows are read one by one"):
        resident.near("yes", (items,), META)
    assert memory(CPU) is None


# ---- Stacks ------------------------------------------------------------------------------------------------------

CLIENTS = [pair(24, j) for j in range(12)]
FAST: dict[str, Any] = {"cut": 0, "rounds": 2, "batch_size": 8, "local_epochs": 1, "threads": 1}


def network() -> nn.Sequential:
    torch.default_generator.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Sequential(nn.Tanh(), nn.Linear(16, 3)))


def test_a_stack_is_chosen_once(tmp_path: Path) -> None:
    begun = cl.rounds(network(), CLIENTS, stack=3, out=tmp_path, **FAST)
    next(begun)
    begun.close()
    assert tomllib.loads((tmp_path / "config.toml").read_text())["stack"] == 3
    resumed = cl.rounds(network(), CLIENTS, out=tmp_path, **FAST)
    assert resumed.setup.backend.size == resumed.setup.stack == 3
    *_, last = resumed
    *_, alone = cl.rounds(network(), CLIENTS, stack=3, **FAST)
    assert last.train_loss == alone.train_loss
    with pytest.raises(cl.ContractError, match="stack was 3, is 4"):
        cl.rounds(network(), CLIENTS, stack=4, out=tmp_path, **FAST)


def test_on_a_cpu_nothing_is_remembered(tmp_path: Path) -> None:
    cl.train(network(), CLIENTS, out=tmp_path, **FAST)
    assert "stack" not in tomllib.loads((tmp_path / "config.toml").read_text())


def test_stacks_fit_into_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(free: float) -> cl.Run:
        monkeypatch.setattr(backend, "memory", lambda device: Memory(int(free), 2**40))
        return cl.rounds(network(), CLIENTS, **FAST)

    need = begun(2**30).setup.need().total
    assert begun(need / 0.75 + 1).setup.backend.size == 10
    smaller = begun(need / 0.75 - 2).setup
    assert smaller.backend.size == 5 and smaller.need().total <= need
    loop = begun(1).setup.backend
    assert (loop.name, loop.size, loop.why) == ("loop", 1, "two clients in one graph do not fit into memory")
    assert backend.room(CPU, alone=False) == 0.5 * 2**40


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "many"])
def test_a_stack_is_a_number_of_clients(wrong: Any) -> None:
    with pytest.raises(cl.ContractError, match=r"^stack = "):
        cl.rounds(network(), CLIENTS, stack=wrong, **FAST)


def test_a_stack_that_is_none_is_said() -> None:
    with pytest.warns(NoEffect, match=r"stack = 4 has no effect here: loop \(as asked\)"):
        cl.rounds(network(), CLIENTS, stack=4, backend="loop", **FAST)
