"""Which device is computed on; copies to the host. (What a GPU does with them: tests/standin.)"""

from __future__ import annotations

import types

import pytest
import torch

from cutlayer.core.devices import chosen, identity, onto, to_host
from cutlayer.errors import ContractError

CPU = torch.device("cpu")


def test_the_cpu_by_name_and_where_there_is_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen("cpu") == chosen(CPU) == CPU
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert chosen("auto") == CPU


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "meta"])
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(ContractError, match=f"device = '{name}': not one of this machine's"):
        chosen(name)


def test_each_rank_needs_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: types.SimpleNamespace(device_count=lambda: 2))
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ContractError, match="one for each rank of a machine: this is rank 2 of it, and it has 2"):
        chosen("cuda")


def test_a_rank_of_a_machine_whose_kind_of_device_has_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """mps: one device, and no `set_device`."""
    monkeypatch.setattr(torch, "get_device_module", lambda device: types.SimpleNamespace(device_count=lambda: 1))
    monkeypatch.setattr(torch, "empty", lambda *sizes, device: torch.zeros(*sizes))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert chosen("mps") == torch.device("mps:0")


def test_a_kind_of_device_that_torch_does_not_know_enough_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: types.SimpleNamespace())
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ContractError, match="device = 'xpu': not one of this machine's"):
        chosen("xpu")


def test_a_device_goes_by_the_name_that_its_maker_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes may each see one GPU of several, and call it 0."""
    numbered = types.SimpleNamespace(current_device=lambda: 1)
    named = types.SimpleNamespace(**vars(numbered), get_device_properties=lambda i: types.SimpleNamespace(uuid=f"u{i}"))
    assert identity(CPU) == "cpu"
    for module, mine, other in ((numbered, "xpu:1", "xpu:0"), (named, "xpu:u1", "xpu:u0")):
        monkeypatch.setattr(torch, "get_device_module", lambda device, module=module: module)
        assert (identity(torch.device("xpu")), identity(torch.device("xpu:0"))) == (mine, other)
    monkeypatch.setattr(torch, "get_device_module", lambda device: types.SimpleNamespace())
    assert identity(torch.device("mps")) == "mps:0"


def test_on_the_cpu_nothing_is_copied() -> None:
    tensors = [torch.arange(3), torch.zeros(2, 2)]
    assert all(onto(CPU, t) is t for t in tensors)
    assert all(here is t for here, t in zip(to_host(tensors), tensors, strict=True))
    assert to_host([]) == []
