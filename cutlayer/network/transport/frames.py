"""Frames: what travels on a stream. A typed header, then the tensors' raw bytes; nothing in a frame is executed.

    | length of the header, 4 bytes | header, msgpack | bytes of the first tensor | of the second | ...

A frame is sent in pieces. Each begins with one byte: 1 if more pieces follow, 0 if it is the last. Limits are checked
before the header is read, and sizes against the header before a tensor is made.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch
import zstandard
from torch import Tensor

from cutlayer.core.pack import is_channels_last
from cutlayer.errors import FrameError, Garbled
from cutlayer.network.transport import Code

VERSION = 2
CHUNK = 2**20  # bytes of a piece; gRPC's own limit is four times that
HEADER = 2**16  # bytes of a header, at most
LARGEST = torch.finfo(torch.float16).max
LENGTH = struct.Struct("<I")
CRC = 4  # bytes of a checksum
WINDOW = 2**10  # bytes: the smallest window of zstd
MORE, LAST = b"\x01", b"\x00"
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


class Spec(msgspec.Struct, array_like=True, frozen=True):
    """One tensor: its type and shape, and how it is written as bytes."""

    dtype: str
    shape: tuple[int, ...]
    last: bool = False  # in channels_last order
    code: Code = "raw"
    scale: float = 1.0  # for int8

    @property
    def nbytes(self) -> int:
        size = {"raw": DTYPES[self.dtype].itemsize, "float16": 2, "int8": 1}[self.code]
        return math.prod(self.shape) * size


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A frame's header: its kind, its plain values, and the tensors that follow."""

    kind: str
    words: dict[str, Any]
    tensors: tuple[Spec, ...] = ()
    packed: bool = False  # whether zstd has compressed the tensors' bytes
    check: bytes | None = None  # without TLS: crc32 of the rest, in the header's last four bytes


class Frame(msgspec.Struct, frozen=True):
    """A frame that has arrived completely."""

    kind: str
    words: dict[str, Any]
    tensors: tuple[Tensor, ...]
    nbytes: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Head).decode


def written(
    kind: str,
    words: dict[str, Any],
    tensors: Sequence[Tensor] = (),
    code: Code = "raw",
    zstd: bool = False,
    check: bool = False,
) -> Iterator[bytes]:
    """Yield the pieces of a frame. `code`: how floating-point tensors, except scalars, are shortened."""
    coded = [_coded(tensor.detach().cpu(), code) for tensor in tensors]
    body = [raw for _, raw in coded]
    if zstd:
        body = [memoryview(zstandard.compress(b"".join(body)))]
    head = _encode(Head(kind, words, tuple(spec for spec, _ in coded), zstd, bytes(CRC) if check else None))
    if check:
        head = head[:-CRC] + _crc([head[:-CRC], *body])
    if len(head) > HEADER:
        raise FrameError(f"a header of {len(head):,} bytes, expected at most {HEADER:,}")
    yield from _pieces([LENGTH.pack(len(head)), head, *body])


def _pieces(parts: Sequence[bytes | memoryview]) -> Iterator[bytes]:
    held: list[bytes | memoryview] = []
    room = CHUNK
    for whole in parts:
        part = memoryview(whole)
        while len(part) > room:
            yield b"".join([MORE, *held, part[:room]])
            part, held, room = part[room:], [], CHUNK
        held.append(part)
        room -= len(part)
    yield b"".join([LAST, *held])


class Reader:
    """Joins pieces into frames. `limit`: bytes of a frame, at most; it may change from frame to frame."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = bytearray()

    def read(self, piece: bytes) -> Frame | None:
        """Return the frame that this piece completes, or None."""
        if not piece or piece[:1] not in (MORE, LAST):
            raise FrameError("a message that is no piece of a frame")
        if len(self._held) + len(piece) - 1 > self.limit:
            raise FrameError(f"a frame of more than {self.limit:,} bytes, the most that is expected here")
        self._held += memoryview(piece)[1:]
        if piece[:1] == MORE:
            return None
        blob, self._held = self._held, bytearray()
        return decoded(blob, self.limit)


def decoded(blob: bytearray, limit: int) -> Frame:
    """Decode a complete frame; raise a FrameError for whatever is wrong with it."""
    if len(blob) < LENGTH.size:
        raise FrameError("a frame without a header")
    (size,) = LENGTH.unpack_from(blob)
    if size > min(HEADER, len(blob) - LENGTH.size):
        raise FrameError(f"a header of {size:,} bytes in a frame of {len(blob):,}")
    try:
        head = _decode(memoryview(blob)[LENGTH.size : LENGTH.size + size])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a header that cannot be read: {error}") from error
    body = memoryview(blob)[LENGTH.size + size :]
    if head.check is not None and _crc([memoryview(blob)[LENGTH.size : LENGTH.size + size - CRC], body]) != head.check:
        raise Garbled("damaged on its way: the checksum differs")
    for spec in head.tensors:
        _check(spec)
    wanted = sum(spec.nbytes for spec in head.tensors)
    if wanted > limit:
        raise FrameError(f"tensors of {wanted:,} bytes, expected at most {limit:,} here")
    if head.packed:
        body = _unpacked(body, wanted)
    if len(body) != wanted:
        raise FrameError(f"{len(body):,} bytes for tensors of {wanted:,}")
    tensors, at = [], 0
    for spec in head.tensors:
        tensors.append(_tensor(spec, body[at : at + spec.nbytes]))
        at += spec.nbytes
    return Frame(head.kind, head.words, tuple(tensors), len(blob))


def _crc(parts: Sequence[bytes | memoryview]) -> bytes:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc.to_bytes(CRC, "little")


def _unpacked(body: memoryview, wanted: int) -> memoryview:
    """Decompress a body. Check zstd's own header first, because zstd allocates whatever that announces."""
    try:
        announced = zstandard.get_frame_parameters(body)
        if announced.content_size != wanted or announced.window_size > max(wanted, WINDOW):
            raise FrameError(f"{announced.content_size:,} compressed bytes for tensors of {wanted:,}")
        return memoryview(bytearray(zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)))
    except zstandard.ZstdError as error:
        raise FrameError(f"compressed bytes that cannot be read: {error}") from error


def _check(spec: Spec) -> None:
    good = (
        spec.dtype in DTYPES
        and len(spec.shape) <= 8
        and all(0 <= side < 2**31 for side in spec.shape)
        and math.prod(max(side, 1) for side in spec.shape) < 2**48  # also bounds an empty tensor's strides
        and (not spec.last or len(spec.shape) == 4)
        and (spec.code == "raw" or DTYPES[spec.dtype].is_floating_point)
        and math.isfinite(spec.scale)
    )
    if not good:
        raise FrameError(f"an invalid tensor: {spec}")


def _coded(tensor: Tensor, code: Code) -> tuple[Spec, memoryview]:
    last = is_channels_last(tensor)
    dtype, shape = str(tensor.dtype)[6:], tuple(tensor.shape)
    if dtype not in DTYPES:
        raise FrameError(f"a tensor of {dtype}; expected one of {', '.join(DTYPES)}")
    straight = (tensor.permute(0, 2, 3, 1) if last else tensor).contiguous()
    scale, used = 1.0, "raw"
    if code != "raw" and tensor.is_floating_point() and tensor.ndim and straight.numel():  # a scalar is short already
        used = code
        if code == "float16":
            straight = straight.clamp(-LARGEST, LARGEST).to(torch.float16)
        else:
            scale = float(straight.abs().max()) / 127 or 1.0
            straight = (straight / scale).round().clamp(-127, 127).to(torch.int8)
    raw = straight.reshape(-1).view(torch.uint8).numpy().data if straight.numel() else memoryview(b"")
    return Spec(dtype, shape, last, used, scale), raw  # type: ignore[arg-type]


def _tensor(spec: Spec, raw: memoryview) -> Tensor:
    dtype = DTYPES[spec.dtype]
    stored = {"raw": dtype, "float16": torch.float16, "int8": torch.int8}[spec.code]
    shape = [spec.shape[i] for i in (0, 2, 3, 1)] if spec.last else spec.shape
    if not len(raw):
        return torch.zeros(spec.shape, dtype=dtype)
    if dtype is torch.bool and raw.tobytes().strip(b"\x00\x01"):
        raise FrameError("a tensor of bool with other bytes than 0 and 1")
    flat = torch.frombuffer(bytearray(raw), dtype=stored)
    if spec.code != "raw":
        flat = flat.to(dtype) * (spec.scale if spec.code == "int8" else 1)
    tensor = flat.view(shape)
    return tensor.permute(0, 3, 1, 2) if spec.last else tensor
