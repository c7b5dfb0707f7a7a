"""Small files that would unpack to more than there is room for are refused before they are unpacked."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from cutlayer.core import heap
from cutlayer.data import partition_file
from cutlayer.data.read import arrays, idx, image, npz, room
from cutlayer.data.read.tables import cells
from cutlayer.errors import ContractError, CutlayerError, StoreError

LARGE = 3 * 2**29
LITTLE = 64 * 2**20  # bytes that may be used meanwhile


@contextmanager
def refused(said: str) -> Iterator[None]:
    """Refused so, in little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(CutlayerError, match=said):
            yield
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()


def header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue()


def zeros(path: Path, **members: tuple[bytes, int]) -> Path:
    """A zip file of members that begin so, with so many zeros behind."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, (start, many) in members.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as stream:
                stream.write(start)
                for _ in range(many >> 24):
                    stream.write(bytes(2**24))
                stream.write(bytes(many % 2**24))
    return path


def lying(path: Path, name: str, size: int) -> Path:
    """The file with another size of a member in its list."""
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\1\2", 0, data.rindex(name.encode()))
    data[at + 24 : at + 28] = struct.pack("<I", size)
    path.write_bytes(data)
    return path


def test_a_bomb_of_zeros(tmp_path: Path) -> None:
    path = zeros(tmp_path / "a.npz", order=(header((LARGE // 1024, 1024)), LARGE), y=(header((1,)), 1))
    assert path.stat().st_size < LARGE / 200
    with refused(r"a\.npz: unpacked size = '1\.5 GiB': expected at most 1\.0 GiB from a file of 6\.\d MiB"):
        arrays.npz(path, "order")
    with refused(r"not a partition: a\.npz: unpacked size = '1\.5 GiB'"):
        partition_file.read(path)


def test_only_what_is_read_counts(tmp_path: Path) -> None:
    x, y = (io.BytesIO(), io.BytesIO())
    np.save(x, np.ones((2, 3)))
    np.save(y, np.arange(2))
    parts = {"x": (x.getvalue(), 0), "y": (y.getvalue(), 0), "z": (header((2**21,)), 2**21)}
    room_for = zeros(tmp_path / "a.npz", **parts)
    assert arrays.npz(room_for).x.shape == (2, 3)


@pytest.mark.parametrize("many", [999, 1001])
def test_a_header_says_what_is_there(tmp_path: Path, many: int) -> None:
    path = zeros(tmp_path / "a.npz", x=(header((10, 100)), many), y=(header((10,)), 10))
    with refused(
        rf"a\.npz: not a readable NPZ file: x of shape \(10, 100\) and uint8 takes 1128 bytes, but {many + 128}"
    ):
        arrays.npz(path)
    path = zeros(tmp_path / "a.npz", x=(header((2**40, 2**40)), 8), y=(header((10,)), 10))
    with refused(r"a\.npz: not a readable NPZ file: x of shape"):
        arrays.npz(path)


@pytest.mark.parametrize("size", [10, 1000, 2**32 - 2])
def test_nor_does_a_list_that_lies_help(tmp_path: Path, size: int) -> None:
    path = zeros(tmp_path / "a.npz", y=(header((10,)), 10), x=(header((LITTLE, 4)), 4 * LITTLE))
    with refused(r"a\.npz: (not a readable NPZ file|unpacked size)"):
        arrays.npz(lying(path, "x.npy", size))


def test_other_ways_to_pack_and_names_twice_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for way in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(path, "w", way) as file:
            for name in "xy":
                file.writestr(f"{name}.npy", header((4, 1)) + bytes(4))
        with pytest.raises(StoreError, match=f"x is compressed by method {way}, expected one that NumPy"):
            npz.load(path, ["x", "y"])
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", header((4, 1)) + bytes(4))
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr("x.npy", header((4, 1)) + bytes(4))
    with pytest.raises(StoreError, match="two arrays of one name"):
        npz.load(path, ["x"])
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", header((1,), "|O") + bytes(8))
    with pytest.raises(StoreError, match="x holds objects"):
        npz.load(path, ["x"])


def test_a_gzipped_bomb(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    rows = LARGE // 784
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(struct.pack(">BBBBIII", 0, 0, 8, 3, rows, 28, 28))
        for _ in range(16):
            file.write(bytes(2**24))
    with path.open("ab") as more:  # so large that the old limit of gzip itself would let it pass
        more.write(bytes(4 * 2**20))
    with refused(r"idx3-ubyte\.gz: unpacked size = '1\.5 GiB': expected at most 1\.0 GiB from a file of"):
        idx.array(path, 3)


def bomb(width: int, height: int) -> bytes:
    """A PNG that announces so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    start = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", start) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def test_a_picture_that_is_a_bomb() -> None:
    with refused(r"f: not a readable image: Image size \(\d+ pixels\) exceeds limit"):
        image.decode(bomb(30_000, 30_000), "f")


def test_many_pictures_need_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "free", lambda: 10_000)
    out = io.BytesIO()
    from PIL import Image

    Image.fromarray(np.zeros((50, 50), dtype=np.uint8)).save(out, "PNG")
    with pytest.raises(ContractError, match=r"5 images of 50x50 pixels are .* more than the memory holds"):
        image.stack([("a", out.getvalue())] * 5, 5)
    assert image.stack([("a", out.getvalue())] * 4, 4).shape == (4, 1, 50, 50)


def repeated(path: Path, **columns: pa.Array) -> Path:
    pyarrow.parquet.write_table(pa.table(columns), path, compression="zstd", row_group_size=2**30)
    return path


@pytest.mark.parametrize("dictionary", [False, True])
def test_text_that_is_repeated(tmp_path: Path, dictionary: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written once; only while it is read does it show how long it is."""
    monkeypatch.setattr(room, "FREELY", 2**22)
    word = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, dtype=np.int32)), ["x" * 1000])
    path = repeated(
        tmp_path / "a.parquet", x=pa.array(np.zeros(20_000)), y=word if dictionary else word.cast(pa.string())
    )
    with pytest.raises(ContractError, match=r"a\.parquet: column y: unpacked size = '4\.\d MiB'"):
        arrays.parquet(path, "x", "y")


def test_numbers_that_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "FREELY", 2**22)
    many = pa.array(np.zeros(2**20, dtype=np.int64))
    path = repeated(tmp_path / "a.parquet", x=many, y=many)
    with refused(r"a\.parquet: unpacked size = '8\.0 MiB': expected at most 4\.0 MiB"):
        arrays.parquet(path, "x", "y")
    with refused(r"a\.parquet: column x: unpacked size"):
        next(cells(path, "x"))


def test_honest_files_are_read(tmp_path: Path) -> None:
    """Even if they pack well: a hundred times is only too much beyond a gigabyte."""
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((2000, 784), dtype=np.float32), y=np.zeros(2000, dtype=np.int64))
    assert (tmp_path / "a.npz").stat().st_size < 2000 * 784 * 4 / 100
    assert arrays.npz(tmp_path / "a.npz").x.shape == (2000, 784)


def test_what_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "free", lambda: 1000)
    room.check("a", 1000, 500)
    with pytest.raises(ContractError, match="a: size in memory = '1,001 bytes': expected at most the 1,000 bytes"):
        room.check("a", 1001, 500)
    monkeypatch.setattr(heap, "free", lambda: None)  # nobody says
    room.check("a", 2**30, 500)
    with pytest.raises(
        ContractError, match=r"unpacked size = '1\.0 GiB': expected at most 1\.0 GiB from a file of 500"
    ):
        room.check("a", 2**30 + 1, 500)


def test_how_much_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "meminfo"
    said.write_text("MemTotal: 9 kB\nMemAvailable:   5 kB\nSwapFree: 2 kB\n")
    monkeypatch.setattr(heap, "SYSTEM", said)
    assert heap.free() == 7 * 1024
    said.write_text("nothing")
    assert heap.free() is None
    monkeypatch.setattr(heap, "SYSTEM", tmp_path / "nowhere")
    assert heap.free() is None
