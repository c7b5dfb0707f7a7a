"""Files of JSON or tensors that contain a checksum of their content (the seal).

The seal is checked whenever such a file is read, so that a flipped bit raises an error and never changes a number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from cutlayer.core.files import write_aside
from cutlayer.errors import StoreError

SEAL, SIZE = "seal", 32  # its name, and how many characters it has
LENGTH = 8  # bytes at the start of a safetensors file that hold the length of its header


def parsed(content: bytes | str) -> Any:
    """Parse JSON; raise a ValueError if it is not JSON, or nested too deeply to read."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def seal(values: Mapping[str, Any], indent: int | None = 1) -> str:
    """Return values as JSON with a checksum in it."""
    return json.dumps({**values, SEAL: _checksum(values)}, indent=indent, allow_nan=False)


def unseal(content: bytes | str, older: bool = False) -> dict[str, Any]:
    """Return what was sealed; raise a ValueError if it has changed. `older`: accept files of versions without seals."""
    values = parsed(content)
    if not isinstance(values, dict):
        raise ValueError(f"expected an object, not {type(values).__name__}")
    if older and not _was_sealed(values):
        return values
    if SEAL not in values:
        raise ValueError("it has no checksum")
    if values.pop(SEAL) != _checksum(values):
        raise ValueError("it does not match its checksum")
    return values


def _was_sealed(values: Mapping[str, Any]) -> bool:
    """Whether a file has a seal, also if one letter of the seal's name is damaged: it is no older file then."""
    return SEAL in values or any(
        isinstance(value, str) and len(value) == SIZE and len(key) == len(SEAL) and _differ(key, SEAL) <= 1
        for key, value in values.items()
    )


def _differ(one: str, other: str) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


def _checksum(values: Mapping[str, Any]) -> str:
    plain = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()[:SIZE]


def tensor_bytes(tensor: Tensor) -> bytes:
    """The values of a tensor, little-endian, in row-major order."""
    array = (
        tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        if tensor.numel()
        else torch.empty(0, dtype=torch.uint8)
    )
    return array.numpy().tobytes()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """One sha256 for all tensors, over their sorted names and their little-endian bytes."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(name.encode())
        sha.update(tensor_bytes(tensors[name]))
    return sha.hexdigest()


def pack(tensors: Mapping[str, Tensor], words: Mapping[str, str] = {}) -> bytes:
    """Return a safetensors file of tensors and a few words, with a checksum of both."""
    named = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    plain = save_tensors(named)
    start = LENGTH + int.from_bytes(plain[:LENGTH], "little")
    said = {"__metadata__": {**words, SEAL: _sealed(named, words)}}  # safetensors would not keep their order
    header = json.dumps({**said, **json.loads(plain[LENGTH:start])}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % LENGTH)
    return len(header).to_bytes(LENGTH, "little") + header + plain[start:]


def save_model(path: Path, tensors: Mapping[str, Tensor], words: Mapping[str, str]) -> None:
    """Write a state dict, whose tensors may share memory, as a sealed safetensors file."""
    write_aside(path, pack({name: tensor.detach().clone() for name, tensor in tensors.items()}, words))


def unpack(content: bytes, older: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and words of `pack`; raise a StoreError if they have changed. `older`: accept files without a
    seal, from other programs or older versions."""
    words = _words(content)
    try:
        tensors = load_tensors(content)
    except SafetensorError as error:
        raise StoreError(f"damaged: {error}") from error
    if older and not _was_sealed(words):
        return tensors, words
    if words.pop(SEAL, None) != _sealed(tensors, words):
        raise StoreError("damaged: it does not match its checksum")
    return tensors, words


def seal_of(content: bytes) -> str:
    """The checksum in a file of `pack`; "" if there is none."""
    return _words(content).get(SEAL, "")


def _words(content: bytes) -> dict[str, str]:
    """The words in the header of a safetensors file, including the checksum."""
    try:
        size = int.from_bytes(content[:LENGTH], "little")
        words: dict[str, str] = dict(parsed(content[LENGTH : LENGTH + size]).get("__metadata__", {}))
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError(f"damaged: {error}") from error
    return words


def _sealed(tensors: Mapping[str, Tensor], words: Mapping[str, str]) -> str:
    shapes = {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()}
    return _checksum({"words": dict(words), "tensors": shapes, "values": digest(tensors)})
