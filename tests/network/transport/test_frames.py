"""Frames: what goes in comes out, and what cannot be is refused before room is made for it."""

from __future__ import annotations

import math
import pickle
import struct
import sys
import tracemalloc
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cutlayer.errors import FrameError
from cutlayer.network.transport.frames import (
    CHUNK,
    DTYPES,
    HEADER,
    LAST,
    LENGTH,
    MORE,
    Code,
    Frame,
    Reader,
    decoded,
    written,
)

LIMIT = 64 * 2**20
WORDS: dict[str, Any] = {"at": [3, 1, 7, 0], "samples": 12, "why": "naïve", "rate": 0.1, "none": None, "flags": [True]}


def sent(tensors: Sequence[Tensor], limit: int = LIMIT, **how: Any) -> tuple[Frame, list[bytes]]:
    """A frame after its way through a reader, and the pieces it went in."""
    pieces, reader = list(written("Smashed", WORDS, tensors, **how)), Reader(limit)
    assert all(reader.read(piece) is None for piece in pieces[:-1])
    frame = reader.read(pieces[-1])
    assert frame is not None
    return frame, pieces


def drawn(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    g = torch.Generator().manual_seed(math.prod(shape))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)
    return torch.randint(0, 200, tuple(shape), generator=g).to(dtype)


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data) if tensor.numel() else b""


def same(one: Tensor, other: Tensor) -> bool:
    """Type, shape and bits, NaN included."""
    return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)


def framed(head: Any, body: bytes = b"") -> bytes:
    """One piece, with whatever is given as its header."""
    raw = head if isinstance(head, bytes) else msgspec.msgpack.encode(head)
    return LAST + LENGTH.pack(len(raw)) + raw + body


def header(*tensors: Sequence[Any], **more: Any) -> dict[str, Any]:
    return {"kind": "Smashed", "words": {}, "tensors": tensors, "packed": False, "check": None} | more


@pytest.mark.parametrize("how", [{}, {"check": True}, {"zstd": True}, {"zstd": True, "check": True}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_type_and_shape(dtype: torch.dtype, how: dict[str, bool]) -> None:
    shapes = [(), (1,), (0,), (7,), (3, 5), (0, 4), (2, 3, 4, 5), (2, 1, 1, 1), (1, 2, 1, 2, 1, 2, 1, 2)]
    tensors = [drawn(shape, dtype) for shape in shapes]
    frame, _ = sent(tensors, **how)
    assert frame.kind == "Smashed" and frame.words == WORDS
    assert all(same(one, other) for one, other in zip(tensors, frame.tensors, strict=True))


def test_special_values_keep_their_bits() -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45, 3.4e38])
    frame, _ = sent([odd, odd.double(), torch.tensor([-(2**63), 2**63 - 1])])
    assert same(frame.tensors[0], odd) and same(frame.tensors[1], odd.double())
    assert frame.tensors[2].tolist() == [-(2**63), 2**63 - 1]


@pytest.mark.parametrize("code", ["raw", "float16", "int8"])
@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (4, 1, 5, 6), (4, 3, 1, 1), (1, 3, 2, 2)])
def test_channels_last_stays(shape: tuple[int, ...], code: Code) -> None:
    """The order in memory travels too: the next step's bits may depend on it."""
    plain = drawn(shape, torch.float32)
    image = plain.contiguous(memory_format=torch.channels_last)
    for tensor in (plain, image):
        (there,) = sent([tensor], code=code)[0].tensors
        assert there.stride() == tensor.stride() and there.shape == tensor.shape
        assert torch.allclose(there, tensor, atol=0.05, rtol=1e-3)


def test_views_and_gradients() -> None:
    """Slices, transposes, expanded tensors and leaves arrive as plain tensors with room of their own."""
    base = torch.arange(24.0).view(4, 6).requires_grad_()
    tensors = [base, base[1:3, ::2], base.t(), torch.ones(1).expand(5)]
    frame, _ = sent(tensors)
    for one, other in zip(tensors, frame.tensors, strict=True):
        assert torch.equal(one, other) and not other.requires_grad
    frame.tensors[0].zero_()
    assert base.sum() > 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 5), max_size=6)), min_size=0, max_size=6
    ),
    st.booleans(),
    st.booleans(),
)
def test_any_tensors(specs: list[tuple[str, list[int]]], zstd: bool, check: bool) -> None:
    tensors = [drawn(shape, DTYPES[dtype]) for dtype, shape in specs]
    frame, pieces = sent(tensors, zstd=zstd, check=check)
    assert all(same(one, other) for one, other in zip(tensors, frame.tensors, strict=True))
    assert frame.nbytes == sum(len(piece) - 1 for piece in pieces)


text = st.text(max_size=8)
plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | text
nested = st.recursive(plain, lambda v: st.lists(v, max_size=3) | st.dictionaries(text, v, max_size=3), max_leaves=6)
words = st.dictionaries(text, nested, max_size=4)


@settings(max_examples=60, deadline=None)
@given(words, st.booleans())
def test_any_words(given: dict[str, Any], check: bool) -> None:
    reader = Reader(LIMIT)
    *first, last = written("Plan", given, check=check)
    assert all(reader.read(piece) is None for piece in first)
    frame = reader.read(last)
    assert frame is not None and frame.words == given


@pytest.mark.parametrize("around", [1, 2, 3])
def test_sizes_around_a_piece(around: int) -> None:
    """No byte too many or too few where a frame fills its pieces exactly."""
    overhead = len(b"".join(written("Smashed", WORDS, [torch.zeros(around * CHUNK, dtype=torch.uint8)])))
    overhead -= around * (CHUNK + 1) + 1
    for extra in (-2, -1, 0, 1, 2):
        for size in (around * CHUNK + extra, around * CHUNK - overhead + extra):
            tensor = torch.arange(size, dtype=torch.int64).to(torch.uint8)
            frame, pieces = sent([tensor])
            assert same(frame.tensors[0], tensor)
            assert [piece[:1] for piece in pieces] == [MORE] * (len(pieces) - 1) + [LAST]
            assert all(len(piece) == CHUNK + 1 for piece in pieces[:-1]) and 1 <= len(pieces[-1]) <= CHUNK + 1
            assert len(pieces) == max(1, math.ceil(frame.nbytes / CHUNK))


def test_several_tensors_over_several_pieces() -> None:
    sizes = [CHUNK // 4 - 9, 1, 3 * CHUNK // 4, 0, 5, CHUNK // 2]
    tensors = [drawn((size,), torch.float32) for size in sizes]
    frame, pieces = sent(tensors, check=True)
    assert len(pieces) == math.ceil(frame.nbytes / CHUNK) == 7
    assert all(same(one, other) for one, other in zip(tensors, frame.tensors, strict=True))


def test_frames_in_a_row() -> None:
    """One reader, many frames; each is complete before the next begins."""
    reader, found = Reader(LIMIT), []
    for n in (1, CHUNK, 5, 2 * CHUNK + 1):
        frames = [reader.read(piece) for piece in written("Smashed", {"n": n}, [torch.ones(n, dtype=torch.uint8)])]
        found += [frame for frame in frames if frame is not None]
    assert [(frame.words["n"], len(frame.tensors[0])) for frame in found] == [
        (n, n) for n in (1, CHUNK, 5, 2 * CHUNK + 1)
    ]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("kib", [64, 65, 256, 1024, 4096, 16384])
def test_overhead_below_one_percent(kib: int, check: bool) -> None:
    """All bytes of all pieces, for a tensor of 64 KiB and more."""
    tensor = drawn((kib * 256,), torch.float32)
    pieces = list(written("Smashed", {"at": [2**53, 2**53, 2**53, 2**53]}, [tensor], check=check))
    assert sum(len(piece) for piece in pieces) < 1.01 * tensor.nbytes


def test_zstd_shortens_without_loss() -> None:
    zeros, noise = torch.zeros(2**18), drawn((2**16,), torch.float32)
    for tensor, most in ((zeros, 0.01), (noise, 1.01)):
        frame, pieces = sent([tensor, tensor], zstd=True)
        assert same(frame.tensors[0], tensor) and same(frame.tensors[1], tensor)
        assert sum(len(piece) for piece in pieces) < most * 2 * tensor.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_float16_error(size: float, dtype: torch.dtype) -> None:
    tensor = size * drawn((5000,), dtype)
    frame, pieces = sent([tensor], code="float16")
    (there,) = frame.tensors
    assert there.dtype == dtype and sum(map(len, pieces)) < 1.1 * 2 * 5000
    assert bool(((there - tensor).abs() <= 2**-11 * tensor.abs() + 2**-25).all())  # half a place, or of the least


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e30])
def test_int8_error(size: float, dtype: torch.dtype) -> None:
    """At most half a step of 1/127 of the largest value; zeros stay zeros."""
    tensor = size * drawn((5000,), dtype)
    tensor[::7] = 0
    frame, pieces = sent([tensor, torch.zeros(3, dtype=dtype)], code="int8")
    there, zeros = frame.tensors
    assert there.dtype == dtype and sum(map(len, pieces)) < 1.1 * 5000
    assert float((there - tensor).abs().max()) <= float(tensor.abs().max()) / 127 * 0.5001
    assert not there[::7].any() and not zeros.any()


@pytest.mark.parametrize("code", ["float16", "int8"])
def test_codes_leave_single_and_whole_numbers_alone(code: Code) -> None:
    labels = torch.tensor([2**40, -5, 7])
    norm = torch.tensor(1e9 / 3, dtype=torch.float64)
    frame, _ = sent([labels, torch.empty(0), norm], code=code)
    assert same(frame.tensors[0], labels) and frame.tensors[1].shape == (0,) and same(frame.tensors[2], norm)


@pytest.mark.parametrize("zstd", [False, True])
def test_checksum_finds_every_flipped_bit(zstd: bool) -> None:
    """In the header, the tensors or the checksum itself: no single bit goes wrong unnoticed."""
    (piece,) = written("Smashed", WORDS, [drawn((24,), torch.float32), torch.arange(3)], zstd=zstd, check=True)
    for at in range(1, len(piece)):
        for bit in range(8):
            damaged = bytearray(piece)
            damaged[at] ^= 1 << bit
            with pytest.raises(FrameError):
                Reader(LIMIT).read(bytes(damaged))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**16), st.binary(min_size=1, max_size=40), st.booleans())
def test_checksum_finds_longer_damage(at: int, noise: bytes, shift: bool) -> None:
    (piece,) = written("Report", WORDS, [torch.arange(500.0)], check=True)
    at = 1 + at % (len(piece) - 1)
    damaged = piece[:at] + noise + piece[at if shift else at + len(noise) :]
    if damaged != piece:
        with pytest.raises(FrameError):
            Reader(LIMIT).read(damaged)


def test_no_checksum_unless_asked() -> None:
    without, with_ = (b"".join(written("Smashed", {}, [torch.ones(9)], check=check)) for check in (False, True))
    assert len(without) < len(with_)


BAD = {
    "nothing": b"",
    "no flag": b"\x02abc",
    "no length": LAST + b"\x01\x00",
    "header longer than frame": LAST + LENGTH.pack(100) + b"abc",
    "header above its limit": LAST + LENGTH.pack(HEADER + 1) + bytes(HEADER + 1),
    "no msgpack": framed(b"\xc1"),
    "a list": framed([1, 2]),
    "too deep": framed(b"\x82\xa4kind\xa1a\xa5words\x81\xa1a" + b"\x91" * 60_000 + b"\x01"),
    "list announced": framed(b"\x82\xa4kind\xa1a\xa5words\x81\xa1a\xdd\xff\xff\xff\xff"),
    "tensors announced": framed(b"\x83\xa4kind\xa1a\xa5words\x80\xa7tensors\xdd\xff\xff\xff\xff"),
    "no UTF-8": framed(b"\x82\xa4kind\xa2\xff\xfe\xa5words\x80"),
    "date beyond dates": framed(b"\x82\xa4kind\xa1a\xa5words\x81\xa1a\xc7\x0c\xff\x00\x00\x00\x01" + b"\x7f" * 8),
    "no kind": framed({"words": {}}),
    "words of another type": framed(header() | {"words": [1]}),
    "unknown field": framed(header() | {"hook": "os.system"}),
    "unknown type": framed(header(["complex64", [1]]), bytes(8)),
    "negative side": framed(header(["float32", [-1]])),
    "negative sides": framed(header(["float32", [-1, -1]]), bytes(4)),
    "side of 2^31": framed(header(["uint8", [2**31]])),
    "too many sides": framed(header(["float32", [1] * 9]), bytes(4)),
    "channels last of two sides": framed(header(["float32", [1, 1], True]), bytes(4)),
    "unknown code": framed(header(["float32", [1], False, "pickle"]), bytes(4)),
    "int8 of integers": framed(header(["int64", [1], False, "int8"]), bytes(1)),
    "scale NaN": framed(header(["float32", [1], False, "int8", math.nan]), bytes(1)),
    "scale infinite": framed(header(["float32", [1], False, "int8", math.inf]), bytes(1)),
    "a byte short": framed(header(["float32", [2]]), bytes(7)),
    "a byte long": framed(header(["float32", [2]]), bytes(9)),
    "bytes without tensors": framed(header(), bytes(1)),
    "no room for strides": framed(header(["float32", [0] + [2**31 - 1] * 7])),
    "nor at the other end": framed(header(["float32", [2**31 - 1] * 7 + [0]])),
    "nor channels last": framed(header(["float32", [0] + [2**31 - 1] * 3, True])),
    "packed, but is not": framed(header(["float32", [1]], packed=True), bytes(4)),
    "packed nothing": framed(header(packed=True)),
    "packed and cut off": framed(header(["uint8", [999]], packed=True), zstandard.compress(bytes(999))[:-3]),
    "packed and then some": framed(header(["uint8", [9]], packed=True), zstandard.compress(bytes(9)) + b"more"),
    "checksum of another length": framed(header(["uint8", [1]], check=b"abc"), b"a"),
    "checksum wrong": framed(header(["uint8", [1]], check=b"abcd"), b"a"),
}


@pytest.mark.parametrize("piece", BAD.values(), ids=BAD)
def test_refused(piece: bytes) -> None:
    with pytest.raises(FrameError):
        Reader(LIMIT).read(piece)


def forged(size: int) -> bytes:
    """A zstd frame that announces `size` bytes in its own header."""
    return b"\x28\xb5\x2f\xfd" + bytes([0b11100000]) + struct.pack("<Q", size) + b"\x01\x00\x00"


def streamed(mib: int) -> bytes:
    """A zstd frame of so many MiB of zeros that does not say how many."""
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    return b"".join(packer.compress(bytes(2**20)) for _ in range(mib)) + packer.flush()


TERA = 10 * 2**40
ENORMOUS = {
    "10 TB": framed(header(["uint8", [10 * 2**10, 2**30]])),
    "10 TB in many": framed(header(*[["uint8", [2**30]]] * 1000)),
    "10 TB short": framed(header(["float64", [10 * 2**10, 2**30], False, "int8"])),
    "above the limit": framed(header(["float32", [2**18]])),
    "10 TB packed": framed(header(["uint8", [10 * 2**10, 2**30]], packed=True), forged(TERA)),
    "a bomb": framed(header(["uint8", [9]], packed=True), forged(TERA)),
    "a bomb that is one": framed(
        header(["uint8", [9]], packed=True), zstandard.ZstdCompressor(level=1).compress(bytes(2**26))
    ),
    "a bomb without a size": framed(header(["uint8", [9]], packed=True), streamed(64)),
}


@pytest.mark.parametrize("piece", ENORMOUS.values(), ids=ENORMOUS)
def test_refused_before_room_is_made(piece: bytes) -> None:
    """A header is believed in nothing: whatever it announces, no memory is taken for it."""
    resource = pytest.importorskip("resource")
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with pytest.raises(FrameError):
            Reader(2**20).read(piece)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**20
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held
    assert grown * (1 if sys.platform == "darwin" else 2**10) < 8 * 2**20


def test_limit_holds_over_pieces() -> None:
    """A frame that never ends is refused at the limit, not at the end."""
    reader, piece = Reader(5 * CHUNK), MORE + bytes(CHUNK)
    for _ in range(5):
        assert reader.read(piece) is None
    with pytest.raises(FrameError, match="more than"):
        reader.read(piece)


def test_limit_is_exact_and_may_change() -> None:
    (piece,) = written("Smashed", {}, [torch.zeros(100)])
    reader = Reader(len(piece) - 1)
    assert reader.read(piece) is not None
    reader.limit -= 1
    with pytest.raises(FrameError):
        reader.read(piece)
    reader.limit += 1
    assert reader.read(piece) is not None


def test_unknown_types_are_not_sent() -> None:
    for tensor in (torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.int16)):
        with pytest.raises(FrameError, match="expected one of"):
            list(written("Smashed", {}, [tensor]))


def test_a_truth_value_is_0_or_1() -> None:
    """Other bytes would make a tensor of bool that torch computes nonsense with."""
    (piece,) = written("Smashed", {}, [torch.tensor([True, False, True])], check=False)
    at = len(piece) - 3
    assert piece[at:] == b"\x01\x00\x01"
    frame = Reader(2**20).read(piece)
    assert frame is not None and frame.tensors[0].tolist() == [True, False, True]
    with pytest.raises(FrameError, match="a tensor of bool with other bytes than 0 and 1"):
        Reader(2**20).read(piece[:at] + b"\x01\x07\x01")


RAN: list[str] = []


def ran(word: str) -> None:
    RAN.append(word)


class Trap:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return ran, ("it ran",)


def test_nothing_in_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle and source text, wherever they are put, stay bytes and words."""
    pickled, source = pickle.dumps(Trap()), f"__import__('sys').modules[{__name__!r}].ran('it ran')"
    pickle.loads(pickled)
    eval(source)
    assert RAN == ["it ran"] * 2
    RAN.clear()

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("unpickled or evaluated")

    for name in ("pickle.loads", "pickle.load", "pickle.Unpickler", "torch.load", "builtins.eval", "builtins.exec"):
        monkeypatch.setattr(name, never)
    words = {"at": source, "b": pickled, "list": [source, pickled]}
    frame = Reader(LIMIT).read(framed(header(["uint8", [len(pickled)]], kind=source, words=words), pickled))
    assert frame is not None and frame.kind == source and frame.words == words
    assert bits(frame.tensors[0]) == pickled
    for piece in (LAST + pickled, framed(pickled), framed(header(packed=True), pickled)):
        with pytest.raises(FrameError):
            Reader(LIMIT).read(piece)
    with pytest.raises(FrameError):
        decoded(bytearray(pickled), LIMIT)
    assert RAN == []
