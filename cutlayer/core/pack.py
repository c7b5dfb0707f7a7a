"""Plain data and tensors to bytes, and back: a JSON header, then the tensors' raw bytes. Reading them runs no code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

LENGTH = 8  # bytes that hold the length of the header


def pack(words: Any, tensors: Sequence[Tensor] = ()) -> Tensor:
    """Return `words` (plain data) and tensors as bytes.

    An image keeps its channels_last order, because the bits of the next step may depend on it.
    """
    about, raw = [], []
    for tensor in tensors:
        tensor = tensor.detach().cpu()
        last = is_channels_last(tensor)
        about.append([str(tensor.dtype)[6:], list(tensor.shape), last])
        straight = tensor.permute(0, 2, 3, 1) if last else tensor
        raw.append(straight.contiguous().reshape(-1).view(torch.uint8))
    header = json.dumps([words, about]).encode()
    front = len(header).to_bytes(LENGTH, "little") + header
    return torch.cat([torch.frombuffer(bytearray(front), dtype=torch.uint8), *raw])


def unpack(blob: Tensor) -> tuple[Any, list[Tensor]]:
    """Return what `pack` was given; the tensors are copies."""
    front = LENGTH + int.from_bytes(_bytes(blob[:LENGTH]), "little")
    words, about = json.loads(_bytes(blob[LENGTH:front]))
    tensors = []
    for name, shape, last in about:
        dtype = getattr(torch, name)
        ordered = [shape[i] for i in (0, 2, 3, 1)] if last else shape
        size = int(np.prod(ordered, dtype=np.int64)) * dtype.itemsize
        tensor = blob[front : front + size].clone().view(dtype).view(ordered)
        tensors.append(tensor.permute(0, 3, 1, 2) if last else tensor)
        front += size
    return words, tensors


def is_channels_last(tensor: Tensor) -> bool:
    """Whether the strides are channels_last. For an image with one channel or one pixel torch reports both orders, but
    computes by the strides."""
    if tensor.ndim != 4:
        return False
    _, c, h, w = tensor.shape
    return tensor.stride() == (h * w * c, 1, w * c, c) != (c * h * w, h * w, w, 1)


def _bytes(blob: Tensor) -> bytes:
    return bytes(blob.numpy().data)
