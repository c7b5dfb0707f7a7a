"""Data larger than memory: arrays mapped from a file are never copied whole."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

import cutlayer as cl
from cutlayer.data import given
from cutlayer.data.parts import Parts
from cutlayer.data.rows import StoredRows
from cutlayer.data.transform import Values
from cutlayer.data.views import Population
from tests.forks import forked

GIB = 2**30
SHAPE = (4, 64, 64)
N = 8 * GIB // (2 * 4 * 64 * 64)  # rows of float16 in 8 GiB


def status(field: str) -> int:
    """Bytes that this process has, as the kernel counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


class Anonymous:
    """The most anonymous memory that the process has had while this is entered."""

    def __init__(self) -> None:
        self.most, self._over = 0, threading.Event()

    def __enter__(self) -> Anonymous:
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, status("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.most = max(self.most, status("RssAnon"))


class Fetched:
    """A map-style dataset that fetches rows of the file together."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitems__(self, rows: list[int]) -> list[Any]:
        return list(zip(self.x[rows], self.y[rows], strict=True))

    def __getitem__(self, row: int) -> Any:
        return self.__getitems__([row])[0]


def train(path: str) -> None:
    """Train on 8 GiB with 2 GiB for everything, in three forms, each with clients that share the file."""
    import resource

    with open(path, "wb") as file:
        file.truncate(2 * N * int(np.prod(SHAPE)))  # all of it is a hole
    x = np.memmap(path, np.float16, "r", shape=(N, *SHAPE))
    y = np.arange(N) % 3
    assert x.nbytes == 8 * GIB
    limit = status("VmData") + 2 * GIB
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # a copy fails at once, rather than filling the machine
    half = N // 2
    order = np.random.default_rng(0).permutation(N)
    forms: dict[str, Any] = {
        "slices": [(x[:half], y[:half]), (x[half:], y[half:]), (x, y)],
        "subsets": [Subset(Fetched(x, y), part.tolist()) for part in (order[:1000], order[1000:])],  # type: ignore[arg-type]
        "parts": Population(StoredRows(x, y), Parts(order, np.array([half, N])), Values()),
    }
    torch.default_generator.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(SHAPE)), 4)), nn.Linear(4, 3))
    more: dict[str, Any] = {"rounds": 2, "local_steps": 2, "batch_size": 2, "threads": 2}
    with Anonymous() as memory:
        for clients in forms.values():
            cl.train(model, clients, test=(x[:20], y[:20]), cut=0, **more)
        out = f"{path}.run"
        next(cl.rounds(model, [(x, y)], cut=0, out=out, **more))
        assert len(cl.train(model, [(x, y)], cut=0, out=out, **more).history) == 2
    print(memory.most)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the kernel does not say")
def test_a_run_over_8_gib_stays_below_2() -> None:
    """The file is on a disk; `tmp_path` may be in memory."""
    with (
        tempfile.TemporaryDirectory() as folder,
        forked(train, f"{folder}/x.bin", env={"OMP_NUM_THREADS": "1"}) as process,
    ):
        assert process.wait() == 0, process.err
        assert 0 < int(process.out.split()[-1]) < 2 * GIB, process.out


def test_what_is_wrong_in_a_file_is_named_when_it_is_read(tmp_path: Path) -> None:
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float64, (40, 4))
    y = np.arange(40) % 3
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    settings: dict[str, Any] = {"cut": 0, "rounds": 1, "batch_size": 4}
    cl.train(model, [(x, y)], **settings)
    with pytest.raises(cl.ContractError, match=r"clients\[0\]: lengths of x and y"):
        cl.train(model, [(x, y[:7])], **settings)
    with pytest.raises(cl.ContractError, match=r"clients\[0\]: labels = '.*3': expected 0..2"):
        cl.train(model, [(x, y + 1)], **settings)
    x[30, 2] = np.nan
    with pytest.raises(cl.ContractError, match=r"clients\[0\], one of rows .* holds NaN"):
        cl.train(model, [(x, y)], **settings)
    text = np.memmap(tmp_path / "text", "S4", "w+", shape=(40, 4))
    with pytest.raises(cl.ContractError, match=r"clients\[0\]: x and y must be arrays of numbers"):
        cl.train(model, [(text, y)], **settings)


def test_a_task_that_returns_a_map_leaves_it_in_its_file(tmp_path: Path) -> None:
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float64, (5000, 4))
    y = np.arange(5000) % 3
    data = given.load("mine", lambda: (x, y))
    assert np.shares_memory(data.train.x, x) and data.train.x.dtype == np.float64
    x[4999] = np.inf
    with pytest.raises(cl.ContractError, match="task 'mine': x = 'NaN or infinity'"):
        given.load("mine", lambda: (x, y))


def test_a_map_of_other_rows_is_known(tmp_path: Path) -> None:
    def mapped(change: float) -> Tensor:
        x = np.lib.format.open_memmap(tmp_path / f"{change}.npy", "w+", np.float32, (40, 4))
        x[:, 0] += change
        return x

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    settings: dict[str, Any] = {"cut": 0, "rounds": 2, "batch_size": 4, "out": tmp_path / "run"}
    next(cl.rounds(model, [(mapped(0.0), np.arange(40) % 3)], **settings))
    with pytest.raises(cl.StoreError, match="have changed"):
        cl.train(model, [(mapped(0.5), np.arange(40) % 3)], **settings)
