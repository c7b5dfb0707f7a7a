"""On a stand-in for a GPU: the CPU's results, no wait of the host inside a step, and costs that do not grow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.standin import cases
from tests.standin.build import compiler

FOLDER = os.environ.get("CUTLAYER_STANDIN")
pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(FOLDER is None, reason="the stand-in device takes a C++ build (make test-extras makes it)"),
    pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler for the stand-in device"),
]
NAMES = [name for name, _ in cases.cases()]
ROUNDED = ("lstm", "gru", "adaptive")  # other kernels, or sums in another order, than on the CPU
BOTH = [f"{scheme} {backend}" for scheme in cases.SCHEMES for backend in ("loop", "stacked")]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("standin") / "found.json"
    command = [sys.executable, "-m", "tests.standin.play", str(Path(FOLDER or "").absolute()), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(file.read_text())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_the_results_are_the_cpus(found: Any, name: str) -> None:
    difference = found["cases"][name]["difference"]
    assert difference <= 1e-6 if any(word in name for word in ROUNDED) else difference == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_host_does_not_wait_inside_a_step(found: Any, name: str) -> None:
    added = found["cases"][name]["added by more steps"]
    assert added["launches"] > 100, "there were no more steps"
    assert (added["waits"], added["blocking_uploads"]) == (0, 0)


@pytest.mark.parametrize("name", BOTH)
def test_waits_depend_on_neither_weights_nor_clients(found: Any, name: str) -> None:
    base, clients, weights = (found["budgets"][name][k] for k in ("base", "more clients", "more weights"))
    assert clients["waits"] == weights["waits"] == base["waits"]
    assert clients["launches"] > base["launches"] == weights["launches"]
