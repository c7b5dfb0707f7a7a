"""On a stand-in for a GPU: the CPU's results, no wait of the host inside a step, and costs that do not grow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.standin import cases, ranks, runs
from tests.standin.build import compiler

FOLDER = os.environ.get("CUTLAYER_STANDIN")
pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(FOLDER is None, reason="the stand-in device takes a C++ build (make test-extras makes it)"),
    pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler for the stand-in device"),
]
ROOT = Path(__file__).parents[2]
NAMES = [name for name, _ in cases.cases()]
GROWN = ("", "clients", "weights", "rounds")
ROUNDED = ("lstm", "gru", "adaptive", "fused clients, adaptive", "attention")  # other kernels, or sums in another order
BOTH = [f"{scheme} {backend}" for scheme in cases.SCHEMES for backend in ("loop", "stacked")]


class Played:
    """The process with the device, and what it has found so far: what it is asked for, seconds each. If it has died of
    a finding, another one looks for the next."""

    def __init__(self, folder: Path) -> None:
        self.said = folder / "said.txt"
        self.found: dict[str, Any] = {}
        self.process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.standin.play", str(Path(FOLDER or "").absolute())]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with self.said.open("w") as said:
            return subprocess.Popen(command, **pipes, stderr=said, cwd=ROOT)

    def __call__(self, what: str) -> Any:
        if what not in self.found:
            if self.process.poll() is not None:
                self.close()
                self.process = self._started()
            assert self.process.stdin is not None and self.process.stdout is not None
            self.process.stdin.write(f"{what}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
            assert line, f"{what} was not found: {self.said.read_text()[-4000:]}"
            self.found[what] = json.loads(line)
        value, wrong = self.found[what]
        assert not wrong, wrong
        return value

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    played = Played(tmp_path_factory.mktemp("standin"))
    yield played
    played.close()


@pytest.mark.parametrize("name", NAMES)
def test_the_results_are_the_cpus(found: Played, name: str) -> None:
    difference = found(f"case {name}")["difference"]
    assert difference <= 1e-6 if name.startswith(ROUNDED) else difference == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_host_does_not_wait_inside_a_step(found: Played, name: str) -> None:
    added = found(f"case {name}")["added by more steps"]
    assert added["launches"] > 100, "there were no more steps"
    assert (added["waits"], added["blocking_uploads"], added["downloads"]) == (0, 0, 0)


@pytest.mark.parametrize("scheme", runs.SERVED)
def test_a_server_on_the_device(found: Played, scheme: str) -> None:
    assert found(f"served {scheme}") == 0


def test_clients_that_join_on_the_device(found: Played) -> None:
    assert found("joined") == found("joined a server on the CPU") == 0


def test_what_a_round_was_for_each_client(found: Played) -> None:
    """Cosines are divided on the device, in its own precision."""
    assert found("detailed") <= 1e-6


def test_data_on_the_device_and_a_resumed_run(found: Played) -> None:
    stored = found("stored")
    assert len(stored) == 3 and not any(stored.values()), stored


@pytest.mark.parametrize("rows", ["tensors", "shared"])
def test_rows_on_the_device_are_sent_once(found: Played, rows: str) -> None:
    uploaded = found("uploaded")
    sent, differences = zip(*(uploaded[f"{rows} {where}"] for where in ("yes", "no", "auto")), strict=True)
    assert sent[2] == sent[0] < sent[1] / 2
    assert not any(differences)


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
    assert begun == resumed == sizes[1] is not None and stacks["difference"] == 0


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
    found, given = ranks.launched("standin", tmp_path / "found"), dict(cases.cases())
    assert [rank["device"] for rank in found] == ["standin:0", "standin:1"]
    for rank in found:
        assert rank["shared"].startswith("device = 'standin:0': expected one device for each rank of a machine")
        assert list(rank["weights"]) == [*ranks.ORDERED, ranks.FAST, ranks.SENT]
        for name, weights in rank["weights"].items():
            alone = cases.weights(cases.train("cpu", given[name.partition(",")[0]]))
            within = 1e-6 if name in ("adaptive", ranks.FAST) else 0
            assert ranks.farthest(weights, alone) <= within, name


@pytest.mark.parametrize("scheme", runs.MEASURED)
def test_a_run_uses_no_more_memory_than_was_said(found: Played, scheme: str) -> None:
    peaks = found(f"peaks {scheme}")
    assert len(peaks) == 8
    for name, (need, peak) in peaks.items():
        assert 0 < peak <= need < 4 * peak, (name, need, peak)


@pytest.mark.parametrize("width", [width for width, _ in runs.SIZES])
def test_a_run_keeps_to_its_limit(found: Played, width: int) -> None:
    """... while it tests, too, on batches that would not fit whole."""
    for name, (limit, peak) in found(f"limited {width}").items():
        assert 0 < peak <= limit, (name, limit, peak)


@pytest.mark.parametrize("name", BOTH)
def test_waits_depend_on_neither_weights_nor_clients(found: Played, name: str) -> None:
    budget = found(f"budget {name}")
    base, clients, weights, rounds = (budget[f"more {what}"] if what else budget["base"] for what in GROWN)
    assert clients["waits"] == weights["waits"] == base["waits"]
    assert clients["launches"] > base["launches"] == weights["launches"]
    assert 0 < rounds["waits"] - base["waits"] <= 6


def test_four_batches_are_tested_without_a_wait(found: Played) -> None:
    """512 rows each; and of test sets that clients have, those of four clients. Two rounds are tested."""
    testing = found("testing")
    one, *batches = testing["batches"]
    assert [waits - one for waits in batches] == [0, 2, 2, 4]
    four, *clients = testing["clients"]
    assert [waits - four for waits in clients] == [2, 4]
