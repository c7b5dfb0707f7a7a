"""Devices other than the CPU: which one to compute on, and copies that the host does not wait for."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor


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
        torch.get_device_module(device).synchronize(device)
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
