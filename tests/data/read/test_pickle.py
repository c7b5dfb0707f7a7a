"""Pickles read as plain data: everything plain comes out as it went in, nothing else is ever run."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutlayer.data.read.plain_pickle import loads
from cutlayer.errors import ContractError

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
GRID = np.arange(24).reshape(2, 3, 4)
PLAIN: list[Any] = [
    None, True, False, 0, -1, 255, 70_000, -(10**30), 1.5, "é\n'x\u20ac", "a" * 300, b"", b"\x00\xff'\n", b"z" * 300,
    [], [1, [2, []]], (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {}, {"a": 1, b"b": (2,), 3: None}, {1, 2},
    frozenset({3}), np.float32(2.5), np.int64(7), np.array(5), np.zeros((0, 3)), np.array([True, False]),
    GRID, GRID.T, GRID[:, ::2], GRID.transpose(1, 0, 2), np.asfortranarray(GRID * 1.5), GRID.astype(">i4"),
    np.array(["ab", "c"]), np.array([b"ab"]), np.array([1 + 2j]), [GRID, GRID],
]  # fmt: skip


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and bool(np.all(a == b))
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_data_come_out_as_they_went_in(protocol: int) -> None:
    for value in PLAIN:
        assert same(value, loads(pickle.dumps(value, protocol), "f")), value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_shared_stays_shared(protocol: int) -> None:
    a, b = loads(pickle.dumps([GRID] * 2, protocol), "f")
    assert a is b
    inner: list[Any] = []
    ring = (inner,)
    inner.append(ring)
    back = loads(pickle.dumps(ring, protocol), "f")
    assert back[0][0] is back


def test_python_2_strings_stay_bytes() -> None:
    array = (
        rb"cnumpy.core.multiarray" b"\n_reconstruct\np2\n(cnumpy\nndarray\np3\n(I0\ntp4\nS'b'\np5\ntp6\nRp7\n"
        b"(I1\n(I2\nI3\ntp8\ncnumpy\ndtype\np9\n(S'u1'\np10\nI0\nI1\ntp11\nRp12\n(I3\nS'|'\np13\nNNNI-1\nI-1\nI0\ntp14\nb"
        rb"I00" b"\n" rb"S'\x00\x80\xff\n\'a'" b"\np15\ntp16\nb"
    )  # fmt: skip
    found = loads(b"(dp0\nS'data'\np1\n" + array + b"s" + rb'S"caf\xe9"' + b"\n(lp17\nI1\naL2L\nas.", "f")
    assert found[b"data"].tolist() == [[0, 128, 255], [10, 39, 97]]
    assert found[b"caf\xe9"] == [1, 2]
    binary = b"\x80\x02}q\x00(U\x01aq\x01T\x03\x00\x00\x00\x00\xff\nq\x02U\x01bq\x03K\x05u."
    assert loads(binary, "f") == {b"a": b"\x00\xff\n", b"b": 5}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_published_partitions_are_plain_data(protocol: int) -> None:
    rng = np.random.default_rng(0)
    clients = [{"train": rng.permutation(9), "val": np.array([], dtype=np.int64), "test": [1, 2, 3]} for _ in range(4)]
    given = {"separation": {"train": [0, 1, 2, 3], "test": [0], "total": 4}, "data_indices": clients}
    found = loads(pickle.dumps(given, protocol), "partition.pkl")
    assert found["separation"] == given["separation"]
    for a, b in zip(clients, found["data_indices"], strict=True):
        assert list(a) == list(b) and all(same(a[key], b[key]) for key in a)


class Evil:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


class Subclass(np.ndarray):
    pass


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_run(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "run"
    code = f"open({str(mark)!r}, 'w')"
    for evil, said in [
        (Evil(os.system, (f"touch {mark}",)), r"it names (posix|nt)\.system"),
        (Evil(eval, (code,)), r"it names (builtins|__builtin__)\.eval"),
        (Evil(exec, (code,)), r"it names (builtins|__builtin__)\.exec"),
        (Evil(getattr, (os, "system")), None),
        (Evil(set, ([Evil(os.system, (f"touch {mark}",))],)), r"it names (posix|nt)\.system"),
        ({"data": Evil(os.system, (f"touch {mark}",))}, r"it names (posix|nt)\.system"),
        (np.array([Evil(eval, (code,))], dtype=object), r"(dtype 'O8?'|eval)"),
        (np.array([(1, 2)], dtype=[("a", "i4"), ("b", "f4")]), r"dtype 'V8'"),
        (np.zeros(2, dtype="M8[s]"), r"dtype 'M8'"),
        (GRID.view(Subclass), None),
        (OrderedDict(a=1), "OrderedDict"),
        (complex(1, 2), "complex"),
        (range(3), "range"),
        (Path("x"), None),
        (np.ndarray, "a name where data are expected"),
        ([np.ndarray], "a name where data are expected"),
        ((1, (np.ndarray,)), "a name where data are expected"),
        ({(1, 2): 3}, "a tuple as a key"),
    ]:
        try:
            data = pickle.dumps(evil, protocol)
        except TypeError:  # modules cannot be pickled
            continue
        with pytest.raises(ContractError, match=rf"f: a pickle that holds more than plain data: .*{said or ''}"):
            loads(data, "f")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a whole pickle: ValueError: the end is missing"),
        (b"\x80\x04", "the end is missing"),
        (b".", "nothing left to take"),
        (b"nonsense", "not a whole pickle"),
        (b"\xff.", r"operation b'\\xff' at byte 0"),
        (b"S'abc\n.", "a string without its quotes"),
        (b"\x80\x02K\x01K\x02R.", "a call of data"),
        (b"\x80\x02K\x01}b.", "state given to data"),
        (b"(i__main__\nX\n.", "operation INST"),
        (b"\x80\x02c__builtin__\nset\n)\x81.", "operation NEWOBJ"),
        (b"Pabc\n.", "operation PERSID"),
        (b"\x80\x05\x97.", "operation NEXT_BUFFER"),
        (b"cnumpy\nndarray\n(tR.", "a call of data"),
        (b"h\x01.", "not a whole pickle: KeyError"),
        (b"cos\nsystem\n.", r"it names os\.system"),
        (b"cnumpy\nload\n.", r"it names numpy\.load"),
    ],
)
def test_what_is_no_plain_pickle_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ContractError, match=rf"^f: .*{said}"):
        loads(data, "f")


def test_a_torn_pickle_is_refused_wherever_it_is_torn() -> None:
    for protocol in PROTOCOLS:
        data = pickle.dumps({"x": GRID, "y": [1, "a", b"b"]}, protocol)
        for end in range(len(data)):
            with pytest.raises(ContractError, match=r"^f: (not a whole pickle|a pickle that holds more)"):
                loads(data[:end], "f")


def test_damage_is_never_another_error() -> None:
    rng = np.random.default_rng(0)
    for protocol in PROTOCOLS:
        data = bytearray(pickle.dumps({"x": GRID, "y": [1, "a", b"b", {2}, GRID[0, 0, 1]]}, protocol))
        for _ in range(150):
            bent = bytearray(data)
            for place in rng.integers(0, len(bent), 2):
                bent[place] = rng.integers(256)
            try:
                loads(bytes(bent), "f")
            except ContractError as error:
                assert str(error).startswith("f: ")  # noqa: PT017 - whole by chance is fine too


def test_a_small_file_stays_small() -> None:
    """Files that would unpack to what no memory holds, or take for ever."""
    twice = b"".join(b"]q%c(h%ch%ce" % (k + 1, k, k) for k in range(90))  # each list holds the one before it twice
    nested = loads(b"\x80\x02]q\x00" + twice + b".", "f")
    assert nested[0] is nested[1] and nested[0][0] is nested[1][1]

    shape = pickle.dumps(np.zeros(4, dtype=np.uint8), 2).replace(b"K\x04\x85", b"J\xff\xff\xff\x7f\x85")
    with pytest.raises(ContractError, match=r"an array of shape \(2147483647,\) and uint8 in 4 bytes"):
        loads(shape, "f")

    text = b"c_codecs\nencode\nq\x00X\x10\x27\x00\x00" + b"a" * 10_000 + b"q\x01X\x06\x00\x00\x00latin1q\x02"
    assert loads(b"\x80\x02" + text + b"h\x00h\x01h\x02\x86R.", "f") == b"a" * 10_000
    with pytest.raises(ContractError, match="it makes more than it holds"):
        loads(b"\x80\x02" + text + b"h\x00h\x01h\x02\x86R" * 2_000 + b".", "f")

    key = b"\x80\x02}q\x00)" + b"q\x01h\x01h\x01\x86" * 60 + b"K\x01s."  # hashing it takes 2^60 steps
    with pytest.raises(ContractError, match="a tuple as a key"):
        loads(key, "f")
    with pytest.raises(ContractError, match="not a whole pickle"):
        loads(b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.", "f")  # 2^63 bytes announced
    with pytest.raises(ContractError, match="not a whole pickle"):
        loads(b"(" * 100_000 + b"t" * 100_001 + b".", "f")
