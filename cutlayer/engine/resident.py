"""What a run keeps on an accelerator besides its model: the rows of its data, where they fit.

Otherwise rows are gathered in the host's memory and sent when their step comes. Nobody waits for that: the host is
ahead of the device, which still computes while the next batches are on their way. Where rows are changes no bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.core.devices import memory
from cutlayer.data.batch import CHUNK
from cutlayer.data.source import Source
from cutlayer.data.tensors import Tensors
from cutlayer.data.views import Near, Population, View
from cutlayer.errors import ContractError, expect

OnDevice = Literal["auto", "yes", "no"]
ON_DEVICE = ("auto", "yes", "no")
SHARE = 0.25  # of the free memory, with "auto"
MIB = 2**20


def near(asked: OnDevice, groups: Sequence[Sequence[Source]], device: torch.device) -> list[Sequence[Source]]:
    """Return groups of sources (training, test) with their rows on the device, where they belong there."""
    if asked == "no" or device.type == "cpu":
        return list(groups)
    room, size = memory(device), _size(groups)
    if asked == "auto" and (size is None or room is None or size > SHARE * room.free):
        return list(groups)
    if size is None:
        raise ContractError("data_on_device = 'yes': some rows are read one by one; expected tensors, arrays or a task")
    if room is not None and size > room.free:
        free = f"at most the {room.free / MIB:,.0f} MiB that are free on {device}, or 'auto'"
        expect(False, "data_on_device = 'yes': rows of", f"{size / MIB:,.0f} MiB", free)
    made: dict[int, Near] = {}
    return [
        group.moved(_copy(group, device, made))
        if isinstance(group, Population)
        else [_moved(source, device, made) for source in group]
        for group in groups
    ]


def _size(groups: Sequence[Sequence[Source]]) -> int | None:
    """The bytes of all rows, of each data set once; None if some are not in memory or in a mapped file."""
    sizes: dict[int, int] = {}
    for group in groups:
        for source in [group] if isinstance(group, Population) else group:
            if isinstance(source, View | Population):
                sizes[id(source.rows)] = source.rows.x.nbytes + source.rows.y.nbytes
            elif isinstance(source, Tensors):
                sizes[id(source)] = source.nbytes
            else:
                return None
    return sum(sizes.values())


def _moved(source: Source, device: torch.device, made: dict[int, Near]) -> Source:
    if isinstance(source, Tensors):
        return source.to(device)
    assert isinstance(source, View), "rows that are not in memory"
    return source.moved(_copy(source, device, made))


def _copy(source: View | Population, device: torch.device, made: dict[int, Near]) -> Near:
    """The data set of a source on the device; several sources share one."""
    rows = source.rows
    if id(rows) not in made:
        made[id(rows)] = _sent(rows.x, device), _sent(rows.y, device)
    return made[id(rows)]


def _sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy of an array on the device, sent piece by piece: it may be mapped from a file, and larger than memory."""
    there = torch.empty(array.shape, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype, device=device)
    for start in range(0, len(array), CHUNK):
        piece = np.array(array[start : start + CHUNK])
        there[start : start + len(piece)] = torch.from_numpy(piece).to(device)
    return there
