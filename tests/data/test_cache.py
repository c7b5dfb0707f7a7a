"""Decoded once: the second start reads the cache; a changed or damaged one is made again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from cutlayer.data import cache, contents
from cutlayer.data.rows import Bundle, Form, StoredRows, none_of
from cutlayer.errors import ContractError


class Counted:
    """A form that counts how often it is read."""

    def __init__(self, with_owners: bool = True) -> None:
        self.reads, self.with_owners = 0, with_owners
        self.form = Form("data.bin", lambda folder: [p for p in [folder / "data.bin"] if p.exists()], self.read)

    def read(self, folder: Path) -> Bundle:
        self.reads += 1
        x = np.frombuffer((folder / "data.bin").read_bytes(), dtype=np.uint8).reshape(-1, 1, 64, 64)
        owners = np.arange(len(x)) % 3 if self.with_owners else None
        train = StoredRows(x, np.arange(len(x)), owners, ("a", "b", "c") if self.with_owners else ())
        return Bundle(train, none_of(train), ("first", "second"))


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data.bin").write_bytes(np.random.default_rng(0).bytes(40 * 64 * 64))
    return tmp_path / "data"


def same(one: Bundle, other: Bundle) -> bool:
    pairs = [
        (getattr(a, part), getattr(b, part))
        for a, b in ((one.train, other.train), (one.test, other.test))
        for part in ("x", "y")
    ]
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs)


def places() -> list[Path]:
    """What is cached, without what is remembered of the files."""
    return [entry for entry in cache.folder().iterdir() if entry.name != contents.SEEN]


@pytest.mark.parametrize("with_owners", [True, False])
def test_the_second_start_does_not_decode(where: Path, with_owners: bool) -> None:
    source = Counted(with_owners)
    first, second = (cache.through("things", source.form, where) for _ in range(2))
    plain = source.read(where)
    assert source.reads == 2  # one of them ours
    for got in (first, second):
        assert same(got, plain)
        assert isinstance(got.train.x, np.memmap) and not got.train.x.flags.writeable
        assert got.class_names == ("first", "second")
        assert got.train.owner_names == plain.train.owner_names and got.test.x.shape == (0, 1, 64, 64)
        assert (got.train.owners is None) is (plain.train.owners is None)


def test_changed_data_or_other_options_are_decoded_anew(where: Path) -> None:
    source = Counted()
    cache.through("things", source.form, where)
    cache.through("things", source.form, where, "size 32")
    assert source.reads == 2
    (where / "data.bin").write_bytes(np.random.default_rng(1).bytes(41 * 64 * 64))
    assert len(cache.through("things", source.form, where).train) == 41
    assert source.reads == 3


@pytest.mark.parametrize(
    "damage", ["flip a byte", "cut short", "no array", "torn record", "no key", "another name", "no object", "deep"]
)
def test_a_damaged_cache_is_found_and_made_again(where: Path, damage: str) -> None:
    source = Counted()
    plain = cache.through("things", source.form, where)
    kept = np.array(plain.train.x)
    del plain
    [place] = places()
    path = place / "train.x.npy"
    data = bytearray(path.read_bytes())
    if damage == "flip a byte":
        data[-1000] ^= 1
        path.write_bytes(data)
    elif damage == "cut short":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "no array":
        path.unlink()
    elif damage == "torn record":
        (place / "about.json").write_text('{"format": 1, "cl')
    elif damage == "another name":
        about = (place / "about.json").read_text()
        (place / "about.json").write_text(about.replace("first", "fjrst"))
    elif damage in ("no object", "deep"):
        (place / "about.json").write_text("[]" if damage == "no object" else "[" * 100_000)
    else:
        about = json.loads((place / "about.json").read_text())
        del about["class_names"]
        (place / "about.json").write_text(json.dumps(about))
    with pytest.warns(cache.CacheRebuilt, match="damaged, decoding again"):
        again = cache.through("things", source.form, where)
    assert source.reads == 2 and np.array_equal(again.train.x, kept) and again.class_names == ("first", "second")
    cache.through("things", source.form, where)
    assert source.reads == 2


def test_a_cache_that_cannot_be_written_is_no_error(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (where.parent / "file").write_text("in the way")
    monkeypatch.setenv(cache.VARIABLE, str(where.parent / "file" / "cache"))
    source = Counted()
    with pytest.warns(UserWarning, match="not cached"):
        assert len(cache.through("things", source.form, where).train) == 40


def test_nothing_half_written_stays_behind(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(np, "save", fail)
    with pytest.warns(UserWarning, match="no space left"):
        cache.through("things", Counted().form, where)
    assert places() == []


def test_an_error_of_the_data_names_the_task(where: Path) -> None:
    def bad(folder: Path) -> Bundle:
        raise ContractError(f"{folder}, row 3: wrong")

    with pytest.raises(ContractError, match=r"task 'things': .*row 3: wrong"):
        cache.find("things", [Form("x", lambda f: [f / "data.bin"], bad)], where)
    assert cache.find("things", [Form("x", lambda f: [], bad)], where) is None


def test_what_a_half_removed_cache_left_is_replaced(where: Path) -> None:
    source = Counted()
    cache.through("things", source.form, where)
    (place,) = places()
    (place / "about.json").unlink()
    for _ in range(2):
        assert isinstance(cache.through("things", source.form, where).train.x, np.memmap)
    assert source.reads == 2 and places() == [place]


def test_a_cache_may_be_shared_and_a_name_long(where: Path) -> None:
    source = Counted()
    before = os.umask(0o022)
    try:
        cache.through("x" * 250, source.form, where)
    finally:
        os.umask(before)
    (place,) = places()
    assert place.stat().st_mode & 0o777 == 0o755
