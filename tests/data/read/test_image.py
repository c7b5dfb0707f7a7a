"""Images of every kind to pixels: as they are where that is possible, and damage is named."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cutlayer.data.read import image
from cutlayer.data.read.image import decode, stack
from cutlayer.errors import ContractError

COLOUR = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
SHADES = COLOUR[..., 0]


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def png(pixels: np.ndarray) -> bytes:
    return encoded(Image.fromarray(pixels))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF", "WEBP"])
def test_pixels_come_out_as_they_went_in(kind: str, tmp_path: Path) -> None:
    lossless = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(Image.fromarray(COLOUR), kind, **lossless)
    assert np.array_equal(decode(data, "f"), COLOUR.transpose(2, 0, 1))
    (tmp_path / "x.img").write_bytes(data)
    assert np.array_equal(decode(tmp_path / "x.img", "f"), COLOUR.transpose(2, 0, 1))
    if kind != "WEBP":
        assert np.array_equal(decode(encoded(Image.fromarray(SHADES), kind), "f"), SHADES[None])


def test_every_mode_becomes_gray_or_colour() -> None:
    colour, gray = Image.fromarray(COLOUR), Image.fromarray(SHADES)
    assert np.array_equal(decode(encoded(colour.convert("RGBA")), "f"), COLOUR.transpose(2, 0, 1))
    assert np.array_equal(decode(encoded(gray.convert("LA")), "f"), SHADES[None])
    palette = colour.quantize(32)
    expected = np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(decode(encoded(palette), "f"), expected)
    assert np.array_equal(decode(encoded(palette, transparency=bytes(range(32))), "f"), expected)
    assert np.array_equal(decode(encoded(palette, "GIF"), "f").shape, (3, 6, 5))
    assert set(np.unique(decode(encoded(gray.convert("1")), "f"))) == {0, 255}
    assert decode(encoded(colour.convert("CMYK"), "JPEG"), "f").shape == (3, 6, 5)
    deep = Image.fromarray(SHADES.astype(np.uint16) * 257)
    assert np.array_equal(decode(encoded(deep), "f"), SHADES[None])
    assert np.array_equal(decode(encoded(gray), "f", mode="RGB"), np.repeat(SHADES[None], 3, axis=0))
    assert np.array_equal(decode(encoded(colour), "f", mode="L"), np.asarray(colour.convert("L"))[None])
    for mode in ("I", "F"):
        wide = Image.fromarray(np.full((2, 2), 1e6, dtype=np.int32 if mode == "I" else np.float32))
        with pytest.raises(ContractError, match=r"f: not a readable image: .*16 bits"):
            decode(encoded(wide, "TIFF"), "f")


def test_images_are_resized_with_antialiasing() -> None:
    fine = np.zeros((8, 8), dtype=np.uint8)
    fine[::2] = 255
    small = decode(png(fine), "f", size=4)
    assert small.shape == (1, 4, 4) and np.all(np.abs(small[0, 1:3].astype(int) - 128) < 20)
    assert np.array_equal(decode(png(fine), "f", size=8)[0], fine)
    assert decode(png(COLOUR), "f", size=7).shape == (3, 7, 7)


def test_gray_among_coloured_becomes_coloured_wherever_it_stands() -> None:
    for order in ([SHADES, SHADES, COLOUR], [COLOUR, SHADES, SHADES], [SHADES, COLOUR, SHADES]):
        found = stack(((row, png(pixels)) for row, pixels in enumerate(order)), 3)
        as_colour = [p.transpose(2, 0, 1) if p.ndim == 3 else np.repeat(p[None], 3, axis=0) for p in order]
        assert np.array_equal(found, np.stack(as_colour))
    assert stack([("a", png(SHADES))], 1).shape == (1, 1, 6, 5)
    assert stack([("a", png(SHADES))], 1, mode="RGB").shape == (1, 3, 6, 5)


def test_what_is_wrong_with_an_image_is_said() -> None:
    for data in (b"", b"torn", png(COLOUR)[:40], encoded(Image.fromarray(COLOUR), "JPEG")[:-60]):
        with pytest.raises(ContractError, match="data, row 3: not a readable image: "):
            decode(data, "data, row 3")
    with pytest.raises(ContractError, match=r"nowhere\.png: not a readable image: .*No such file"):
        decode(Path("nowhere.png"), "nowhere.png")
    with pytest.raises(ContractError, match=r"^b: 5x6 pixels, expected 6x5 as in a; .* need --image-size"):
        stack([("a", png(SHADES)), ("b", png(SHADES.T.copy()))], 2)
    assert stack([("a", png(SHADES)), ("b", png(SHADES.T.copy()))], 2, size=4).shape == (2, 1, 4, 4)


def test_a_bomb_is_refused() -> None:
    header = b"IHDR" + struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    small = png(SHADES)
    with pytest.raises(ContractError, match=r"f: not a readable image: .*bomb"):
        decode(small[:12] + header + struct.pack(">I", zlib.crc32(header)) + small[33:], "f")


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # of damaged tags that it goes without
def test_damage_is_never_another_error() -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(COLOUR)
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "WEBP"):
        data = encoded(image, kind)
        for _ in range(60):
            bent = bytearray(data)
            for place in rng.integers(0, len(bent), 4):
                bent[place] = rng.integers(256)
            try:
                decode(bytes(bent), "f")
            except ContractError as error:
                assert str(error).startswith("f: not a readable image: ")  # noqa: PT017


def test_more_images_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(image.np, "empty", none_left)
    with pytest.raises(ContractError, match="more than the memory holds; smaller ones: --image-size"):
        image._room("first.png", (10**6, 3, 4000, 3000))
