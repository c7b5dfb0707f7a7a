"""Options that a device rules out. (The device's own figures: tests/standin.)"""

from __future__ import annotations

import pytest
import torch

from cutlayer.engine import options
from cutlayer.engine.options import Options
from cutlayer.errors import ContractError

META = torch.device("meta")


def test_on_a_gpu_no_operation_has_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "chosen", lambda given: META)
    with pytest.raises(
        ContractError, match="torch_threads = 2: expected 1: on meta the device computes, and one thread"
    ):
        Options(torch_threads=2, device="meta").check(None)
    Options(torch_threads=1, device="meta").check(None)


def test_on_the_cpu_an_operation_may_have_several_threads() -> None:
    Options(torch_threads=2).check(None)
