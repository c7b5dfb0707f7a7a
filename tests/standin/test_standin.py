"""On a stand-in for a GPU: the CPU's results, no wait of the host inside a step, and costs that do not grow."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.standin import cases
from tests.standin.build import compiler
from tests.standin.play import RANKS, SERVED

FOLDER = os.environ.get("CUTLAYER_STANDIN")
pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(FOLDER is None, reason="the stand-in device takes a C++ build (make test-extras makes it)"),
    pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler for the stand-in device"),
]
ROOT = Path(__file__).parents[2]
NAMES = [name for name, _ in cases.cases()]
ROUNDED = ("lstm", "gru", "adaptive")  # other kernels, or sums in another order, than on the CPU
BOTH = [f"{scheme} {backend}" for scheme in cases.SCHEMES for backend in ("loop", "stacked")]


def _command(file: Path) -> list[str]:
    return [sys.executable, "-m", "tests.standin.play", str(Path(FOLDER or "").absolute()), str(file)]


class Played:
    """The process with the device, and what it has found so far. It takes minutes, each finding seconds."""

    def __init__(self, folder: Path) -> None:
        self.file, self.said = folder / "found.jsonl", folder / "said.txt"
        self.file.touch()
        with self.said.open("w") as said:
            self.process = subprocess.Popen(_command(self.file), stdout=subprocess.DEVNULL, stderr=said, cwd=ROOT)

    def __call__(self, what: str) -> Any:
        """Wait until this is found."""
        while True:
            ended = self.process.poll() is not None
            whole, _, _ = self.file.read_text().rpartition("\n")
            found = dict(map(json.loads, whole.splitlines()))
            if what in found:
                return found[what]
            assert not ended, f"{what} was not found: {self.said.read_text()[-4000:]}"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    played = Played(tmp_path_factory.mktemp("standin"))
    yield played
    played.process.kill()
    played.process.wait()


@pytest.mark.parametrize("name", NAMES)
def test_the_results_are_the_cpus(found: Played, name: str) -> None:
    difference = found(f"case {name}")["difference"]
    assert difference <= 1e-6 if any(word in name for word in ROUNDED) else difference == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_host_does_not_wait_inside_a_step(found: Played, name: str) -> None:
    added = found(f"case {name}")["added by more steps"]
    assert added["launches"] > 100, "there were no more steps"
    assert (added["waits"], added["blocking_uploads"], added["downloads"]) == (0, 0, 0)


@pytest.mark.parametrize("scheme", SERVED)
def test_a_server_on_the_device(found: Played, scheme: str) -> None:
    assert found(f"served {scheme}")


def test_data_on_the_device_and_a_resumed_run(found: Played) -> None:
    stored = found("stored")
    assert len(stored) == 3 and all(stored.values()), stored


@pytest.mark.parametrize("rows", ["tensors", "shared"])
def test_rows_on_the_device_are_sent_once(found: Played, rows: str) -> None:
    """That the weights are the CPU's is checked where they are."""
    sent = found("uploaded")[rows]
    assert sent["auto"] == sent["yes"] < sent["no"] / 2


def test_stacks_fit_into_the_free_memory_and_a_resumed_run_keeps_them(found: Played) -> None:
    stacks = found("stacks")
    sizes = [stacks[f"{mib} MiB"][0] for mib in (64, 4, 2, 1)]
    assert sizes[0] == 256 and all(a is None or b is None or a >= b for a, b in pairwise(sizes))
    assert len(set(sizes)) > 2
    for mib in (64, 4, 2, 1):
        size, need = stacks[f"{mib} MiB"]
        assert size is None or need <= 0.75 * mib * 2**20
    assert stacks["asked"] == 16
    begun, resumed = stacks["begun and resumed"]
    assert begun == resumed == sizes[1] is not None and stacks["same bits"]


def test_threads_beside_a_device_are_refused(found: Played) -> None:
    threads, inside = found("refused")
    assert threads.startswith("threads = 2: expected 1 or None: on standin")
    assert inside.startswith("torch_threads = 2: expected 1: on standin")


def test_a_block_of_figures_to_paste(found: Played) -> None:
    head, _, columns, rule, *models = found("bench").splitlines()
    assert head.startswith("cutlayer ") and "stand-in (standin" in head and "1.0 GiB" in head
    assert columns.count("|") == rule.count("|") == 11
    assert [line.split("|")[1].strip() for line in models] == ["tiny-cnn", "mlp"]
    for line in models:
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        assert all(float(cells[i]) > 0 for i in (2, 3, 5, 6, 8)) and int(cells[9]) == 256


@pytest.mark.timeout(600)
def test_two_ranks_each_with_a_device_of_its_own(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "STANDIN_DEVICES": "2"}
    ranks = [
        subprocess.Popen(_command(tmp_path / "found.json"), env={**common, "RANK": r, "LOCAL_RANK": r}, cwd=ROOT)
        for r in ("0", "1")
    ]
    assert [rank.wait() for rank in ranks] == [0, 0]
    there, given = json.loads((tmp_path / "found.json").read_text()), dict(cases.cases())
    assert list(there) == list(RANKS)
    for name, weights in there.items():
        for key, w in cases.weights(cases.train("cpu", given[name])).items():
            difference = (torch.tensor(weights[key], dtype=torch.float64) - w.double()).abs()
            assert not w.numel() or float(difference.max()) <= (1e-6 if name == "adaptive" else 0), (name, key)


def test_a_run_uses_no_more_memory_than_was_said(found: Played) -> None:
    peaks = found("peaks")
    assert len(peaks) == 56
    for name, (need, peak) in peaks.items():
        assert 0 < peak <= need < 4 * peak, (name, need, peak)


@pytest.mark.parametrize("name", BOTH)
def test_waits_depend_on_neither_weights_nor_clients(found: Played, name: str) -> None:
    base, clients, weights = (found(f"budget {name}")[k] for k in ("base", "more clients", "more weights"))
    assert clients["waits"] == weights["waits"] == base["waits"]
    assert clients["launches"] > base["launches"] == weights["launches"]
