"""Devices other than the CPU: which one to compute on, and copies that the host does not wait for."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cutlayer.errors import ContractError, expect


def chosen(given: str | torch.device) -> torch.device:
    """Return the device that a name stands for; refuse one that this machine does not have.

    "auto": its accelerator, or else the CPU. A name without a number ("cuda") under torchrun: the one of this rank.
    """
    try:
        device = torch.device(_accelerator() if given == "auto" else given)
        ranks, local = (
            int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
        )
        if ranks > 1 and device.type == str(device) != "cpu":
            there = torch.get_device_module(device).device_count()
            words = f"one for each rank of a machine: this is rank {local} of it, and it has {there}"
            expect(local < there, "device", str(given), words)
            device = torch.device(device.type, local)
            if hasattr(torch.get_device_module(device), "set_device"):  # mps has one device, and nothing to choose
                torch.get_device_module(device).set_device(device)
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError, AttributeError, TypeError) as error:
        raise ContractError(f"device = {str(given)!r}: not one of this machine's: {error}") from error
    return device


def identity(device: torch.device) -> str:
    """Return what a device is called on its machine, whatever number this process knows it by."""
    if device.type == "cpu":
        return "cpu"
    module = torch.get_device_module(device)
    index = device.index if device.index is not None else getattr(module, "current_device", int)()
    about = module.get_device_properties(index) if hasattr(module, "get_device_properties") else None
    return f"{device.type}:{getattr(about, 'uuid', index)}"


def _accelerator() -> str:
    """The kind of accelerator that this machine has, or "cpu"."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if found is None else found.type


class Memory(NamedTuple):
    """Bytes of a device: those that are free, and all that it has."""

    free: int
    total: int


def memory(device: torch.device) -> Memory | None:
    """Return the memory of a device; None for the CPU, and for a device that does not say."""
    if device.type == "cpu":
        return None
    module = torch.get_device_module(device)
    if device.type == "mps":
        total = module.recommended_max_memory()
        return Memory(total - module.driver_allocated_memory(), total)
    return Memory(*module.mem_get_info(device)) if hasattr(module, "mem_get_info") else None


def onto(device: torch.device, tensor: Tensor) -> Tensor:
    """Return the tensor on a device. A copy to a GPU goes through pinned memory, so that nobody waits for it."""
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    return (tensor.pin_memory() if _pins(device.type) else tensor).to(device, non_blocking=True)


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of the tensors on the CPU; a GPU is waited for once, however many there are. Those that are on the
    CPU are returned as they are."""
    devices = {t.device for t in tensors if t.device.type != "cpu"}
    copies = [t if t.device.type == "cpu" else _asked_for(t) for t in tensors]
    for device in devices:
        torch.accelerator.synchronize(device)
    return copies


def _asked_for(tensor: Tensor) -> Tensor:
    """A copy on the CPU that is still on its way."""
    pinned = _pins(tensor.device.type)
    return torch.empty_like(tensor, device="cpu", pin_memory=pinned).copy_(tensor, non_blocking=pinned)


@functools.cache
def _pins(kind: str) -> bool:
    """Whether memory can be pinned for a kind of device."""
    try:
        return bool(torch.empty(1).pin_memory().is_pinned())
    except (RuntimeError, NotImplementedError):
        return False
