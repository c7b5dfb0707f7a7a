"""A real accelerator gives the CPU's results, up to rounding: pytest -m gpu, for whoever has one.

What the stand-in checks to the bit, with tolerances; but not launches, and waits only where CUDA tells of them.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.standin import cases, ranks, runs

FOUND = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
KIND = "none" if FOUND is None else FOUND.type
MODULE = None if FOUND is None else torch.get_device_module(FOUND)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(FOUND is None, reason="there is no GPU on this machine"),
]
tells_of_waits = pytest.mark.skipif(KIND != "cuda", reason="torch tells of waits on CUDA alone")
ROUGH = ("slowmo", "dropout", "autocast")
"""A step along a sign, or divided by a root, turns rounding into a difference; draws, and bfloat16, are a GPU's own."""
GIVEN: dict[str, dict[str, Any]] = {name: arguments for name, arguments in cases.cases() if not name.startswith(ROUGH)}
ALL: dict[str, dict[str, Any]] = dict(cases.cases())
CLOSE = 1e-3
WIDE = ((100_000, 4),)  # widths and batch sizes of models beside which the kernels' own memory is small
ROOM = 64 * 2**20  # bytes for that


@pytest.fixture(autouse=True)
def precise() -> None:
    runs.precise()


def waits(arguments: dict[str, Any]) -> dict[str, int]:
    """For how many operations of a run the host waits."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            cases.train(KIND, arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return {"waits": sum("called a synchronizing" in str(warning.message) for warning in seen)}


@pytest.mark.parametrize("name", GIVEN)
def test_the_results_are_the_cpus(name: str) -> None:
    there, here = (cases.weights(cases.train(device, GIVEN[name])) for device in (KIND, "cpu"))
    for key, w in here.items():
        torch.testing.assert_close(there[key], w, rtol=1e-3, atol=1e-4, msg=lambda said, key=key: f"{key}: {said}")


def test_a_run_repeats_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is asked for kernels that repeat themselves. Dropout included: its random numbers have addresses on a
    GPU too."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one, two = (cases.weights(cases.train(KIND, ALL["dropout"])) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(w.equal(two[key]) for key, w in one.items())


def test_attention_with_dropout_is_stacked_with_the_loops_draws() -> None:
    """torch's fused kernels would draw in another way."""
    assert FOUND is not None
    given = {name: arguments for name, arguments in cases.cases() if name.startswith("dropout in attention")}
    looped, stacked = (cases.weights(cases.train(FOUND.type, arguments)) for arguments in given.values())
    for key, w in looped.items():
        torch.testing.assert_close(stacked[key], w, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scheme", runs.SERVED)
def test_a_server_and_its_clients(scheme: str) -> None:
    assert runs.served(KIND, scheme) <= CLOSE
    assert runs.served("cpu", scheme, KIND) <= CLOSE
    assert runs.served(KIND, scheme, KIND) <= CLOSE


def test_data_on_the_device_and_a_resumed_run() -> None:
    stored = runs.stored(KIND)
    assert len(stored) == 3 and max(stored.values()) <= CLOSE, stored


@pytest.mark.parametrize("where", runs.PLACES)
def test_rows_on_the_device_and_rows_that_are_sent(where: str) -> None:
    for clients in runs.placed().values():
        assert runs.distance(runs.near(KIND, clients, where), runs.near("cpu", clients, where)) <= CLOSE


def test_what_a_round_was_for_each_client() -> None:
    assert runs.detailed(KIND) <= CLOSE


@pytest.mark.timeout(600)
def test_two_ranks_each_with_a_device_of_its_own(tmp_path: Path) -> None:
    assert MODULE is not None
    if MODULE.device_count() < 2:
        pytest.skip("two ranks need two GPUs")
    found = ranks.launched(KIND, tmp_path / "found")
    assert [rank["device"] for rank in found] == [f"{KIND}:0", f"{KIND}:1"]
    for rank in found:
        assert rank["shared"].startswith(f"device = '{KIND}:0': expected one device for each rank of a machine")
        for name, weights in rank["weights"].items():
            alone = cases.weights(cases.train("cpu", ALL[name.partition(",")[0]]))
            assert ranks.farthest(weights, alone) <= CLOSE, name


@tells_of_waits
@pytest.mark.parametrize("name", ALL)
def test_the_host_does_not_wait_inside_a_step(name: str) -> None:
    cases.train(KIND, ALL[name])  # the first run of its kind loads kernels
    assert runs.added(waits, ALL[name]) == {"waits": 0}


@tells_of_waits
@pytest.mark.parametrize("backend", ["loop", "stacked"])
@pytest.mark.parametrize("scheme", cases.SCHEMES)
def test_waits_depend_on_neither_weights_nor_clients(scheme: str, backend: str) -> None:
    runs.budget(waits, scheme, backend)  # the first runs of their kind load kernels
    budget = {name: cost["waits"] for name, cost in runs.budget(waits, scheme, backend).items()}
    assert budget["more clients"] == budget["more weights"] == budget["base"]
    assert budget["more rounds"] - budget["base"] <= 6


@pytest.mark.skipif(not hasattr(MODULE, "max_memory_allocated"), reason="this kind of device tells no peak of memory")
@pytest.mark.parametrize("scheme", runs.MEASURED)
def test_a_run_uses_no_more_memory_than_was_said(scheme: str) -> None:
    runs.peaks(KIND, scheme, runs.SIZES[:1])  # kernels keep memory of their own
    for name, (need, peak) in runs.peaks(KIND, scheme, WIDE).items():
        assert 0 < peak <= need + ROOM, (name, need, peak)
