"""`cutlayer bench --device`: what it says of memory is of one run alone."""

from __future__ import annotations

import gc
import types

import pytest
import torch
from torch import nn
from torch._C._functorch import is_batchedtensor

from cutlayer.bench import accelerator

CPU = torch.device("cpu")


def living() -> int:
    """Bytes of all plain tensors of this process; other tests may have left some that have no memory of their own."""
    gc.collect()
    tensors = [t for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter) and not is_batchedtensor(t)]
    tensors = [t for t in tensors if t.device == CPU and t.layout == torch.strided]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that counts its tensors, as the module of a GPU does; its peak is what there is after a round."""
    module = types.SimpleNamespace(
        memory_allocated=lambda device: living(),
        max_memory_allocated=lambda device: living(),
        reset_peak_memory_stats=lambda device: None,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)


@pytest.mark.usefixtures("counting")
def test_the_peak_of_a_run_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of a process in which nothing else is trained, and so are those that follow."""
    kept = torch.zeros(2**22)  # what somebody else has on the device is not the run's
    both = list(accelerator.rows(["tiny-cnn", "tiny-cnn"], CPU, quick=True, repeats=1))
    monkeypatch.setattr(accelerator, "BACKENDS", ("loop",))
    (alone,) = accelerator.rows(["tiny-cnn"], CPU, quick=True, repeats=1)
    assert kept.nbytes / accelerator.MIB == 16 > alone["loop_peak"] > 0
    for row in both:
        assert row["loop_peak"] == pytest.approx(alone["loop_peak"], rel=0.1)
        assert row["stacked_peak"] > row["loop_peak"] / 2
