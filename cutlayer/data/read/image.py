"""Decode images to uint8 pixels."""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutlayer.data.read import room
from cutlayer.errors import ContractError

Pixels = NDArray[np.uint8]
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".pgm", ".tif", ".tiff")
GRAY = ("1", "L", "LA", "La")
DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N")
DAMAGE = (OSError, SyntaxError, ValueError, TypeError, EOFError, IndexError, KeyError, struct.error, zlib.error)


def decode(source: bytes | Path, where: object, size: int | None = None, mode: str | None = None) -> Pixels:
    """Decode an image to uint8 [channels, height, width].

    mode  "L" or "RGB"; None: gray stays gray, everything else becomes RGB (transparency is dropped, 16-bit gray is
          rounded to 8 bits, of an animation the first frame is taken)
    size  resized to size x size, bilinear with antialiasing
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            flat = _flat(image, mode)
        if size is not None and flat.size != (size, size):
            flat = flat.resize((size, size), Image.Resampling.BILINEAR)
    except (*DAMAGE, Image.DecompressionBombError) as error:
        raise ContractError(f"{where}: not a readable image: {error}") from error
    pixels = np.asarray(flat)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _flat(image: Any, mode: str | None) -> Any:
    """Convert a Pillow image to mode L or RGB."""
    from PIL import Image

    if image.mode in DEEP:
        deep = np.asarray(image, dtype=np.int64)
        if deep.min() < 0 or deep.max() > 65535:
            raise ValueError(f"gray values {deep.min()}..{deep.max()}, expected at most 16 bits")
        image = Image.fromarray(np.rint(deep / 257).astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("floating-point pixels, expected 8 or 16 bits")
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns about a direct conversion to RGB
    return image.convert(mode or ("L" if image.mode in GRAY else "RGB"))


def _room(where: object, shape: tuple[int, ...]) -> Pixels:
    try:
        room.fits(where, math.prod(shape))  # the system may grant more, and kill the program when it is used
        return np.empty(shape, dtype=np.uint8)
    except (MemoryError, ContractError) as error:
        gib = math.prod(shape) / 2**30
        words = f"{shape[0]} images of {shape[2]}x{shape[3]} pixels are {gib:.1f} GiB, more than the memory holds"
        raise ContractError(f"{where}: {words}; smaller ones: --image-size") from error


def stack(
    sources: Iterable[tuple[object, bytes | Path]], count: int, size: int | None = None, mode: str | None = None
) -> Pixels:
    """Decode `count` images, each given with what errors call it, into one array [count, channels, height, width].

    Gray images among coloured ones become coloured.
    """
    pixels: Pixels = np.empty((0, 1, 1, 1), dtype=np.uint8)
    first: object = None
    for row, (where, source) in enumerate(sources):
        one = decode(source, where, size, mode)
        if row == 0:
            first, pixels = where, _room(where, (count, *one.shape))
        if one.shape[1:] != pixels.shape[2:]:
            raise ContractError(
                f"{where}: {one.shape[1]}x{one.shape[2]} pixels, expected {pixels.shape[2]}x{pixels.shape[3]} as in "
                f"{first}; images of several sizes need --image-size"
            )
        if len(one) > pixels.shape[1]:
            pixels = np.repeat(pixels, len(one), axis=1)
        pixels[row] = one
    return pixels
