"""A real accelerator gives the CPU's results, up to rounding: pytest -m gpu, for whoever has one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.standin import cases

FOUND = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(FOUND is None, reason="there is no GPU on this machine"),
]
GIVEN: dict[str, dict[str, Any]] = {  # a step along a sign, or divided by a root, turns rounding into a difference
    name: arguments for name, arguments in cases.cases() if not name.startswith(("slowmo", "dropout"))
}


@pytest.fixture(autouse=True)
def precise() -> None:
    """Sums of products in the precision of the numbers."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


@pytest.mark.parametrize("name", GIVEN)
def test_the_results_are_the_cpus(name: str) -> None:
    assert FOUND is not None
    there, here = (cases.weights(cases.train(device, GIVEN[name])) for device in (FOUND.type, "cpu"))
    for key, w in here.items():
        torch.testing.assert_close(there[key], w, rtol=1e-3, atol=1e-4, msg=lambda said, key=key: f"{key}: {said}")


def test_a_run_repeats_to_the_bit() -> None:
    """Dropout included: its random numbers have addresses on a GPU too."""
    assert FOUND is not None
    arguments = dict(cases.cases())["dropout"]
    one, two = (cases.weights(cases.train(FOUND.type, arguments)) for _ in range(2))
    assert all(w.equal(two[key]) for key, w in one.items())


def test_attention_with_dropout_is_stacked_with_the_loops_draws() -> None:
    """torch's fused kernels would draw in another way."""
    assert FOUND is not None
    given = {name: arguments for name, arguments in cases.cases() if name.startswith("dropout in attention")}
    looped, stacked = (cases.weights(cases.train(FOUND.type, arguments)) for arguments in given.values())
    for key, w in looped.items():
        torch.testing.assert_close(stacked[key], w, rtol=1e-3, atol=1e-4)
