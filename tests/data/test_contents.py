"""The cache goes by what files hold: any change is seen whatever their times say, and the unchanged is not read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutlayer.data import cache, contents
from cutlayer.data.own import Own
from cutlayer.data.rows import Bundle, Form, StoredRows, none_of
from cutlayer.errors import StoreError
from cutlayer.experiment.config import parse
from cutlayer.experiment.population import load_data, look

ROWS, LENGTH = 8, 16


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    for name in "ab":
        (tmp_path / "data" / name).write_bytes(bytes([ord(name)]) * ROWS * LENGTH)
    return tmp_path / "data"


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the files had not changed for a while."""
    monkeypatch.setattr(contents, "SETTLED", -3600.0)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are opened to be read."""
    found: list[str] = []
    open_ = Path.open

    def counted(self: Path, *arguments: Any, **options: Any) -> Any:
        found.append(self.name)
        return open_(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", counted)
    return found


def read(folder: Path) -> Bundle:
    x = [np.frombuffer((folder / name).read_bytes(), dtype=np.uint8).reshape(ROWS, LENGTH) for name in "ab"]
    train = StoredRows(np.concatenate(x), np.zeros(2 * ROWS, dtype=np.int64))
    return Bundle(train, none_of(train))


FORM = Form("a and b", lambda folder: [folder / "a", folder / "b"], read)


def held(where: Path) -> str:
    """The letters in the rows, each once."""
    return "".join(sorted({chr(code) for code in cache.through("letters", FORM, where).train.x.ravel()}))


def change(path: Path, content: bytes) -> None:
    """New content of the old size and time."""
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_a_change_that_keeps_size_and_time_is_seen(where: Path) -> None:
    """Also one that comes at once, within a tick of the file system's clock."""
    assert held(where) == "ab"
    for letter in "cde":
        change(where / "b", letter.encode() * ROWS * LENGTH)
        assert held(where) == f"a{letter}"


def test_so_is_one_of_files_that_were_remembered(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = contents._looks
    monkeypatch.setattr(contents, "_looks", lambda named: (looked(named)[0], 0.0))  # all of them long ago
    assert held(where) == "ab"
    assert len(list((cache.folder() / contents.SEEN).iterdir())) == 1
    before = (where / "b").stat().st_ctime_ns
    while (where / "b").stat().st_ctime_ns == before:  # the clock has ticked
        change(where / "b", b"c" * ROWS * LENGTH)
    assert held(where) == "ac"


def test_of_two_files_that_change_places_each_is_seen(where: Path) -> None:
    first = cache.through("letters", FORM, where).train.x[0, 0]
    one, other = (where / "a").read_bytes(), (where / "b").read_bytes()
    change(where / "a", other)
    change(where / "b", one)
    assert cache.through("letters", FORM, where).train.x[0, 0] != first


@pytest.mark.usefixtures("settled")
def test_files_that_have_not_changed_are_not_read(where: Path, opened: list[str]) -> None:
    assert held(where) == "ab"
    assert {"a", "b"} <= set(opened)
    opened.clear()
    assert held(where) == "ab"
    assert opened and not {"a", "b"} & set(opened)  # the cache is


@pytest.mark.usefixtures("settled")
def test_a_file_that_was_touched_is_read_but_not_decoded(where: Path, opened: list[str]) -> None:
    assert held(where) == "ab"
    os.utime(where / "a")
    opened.clear()
    decodes = Form(FORM.needs, FORM.files, lambda folder: pytest.fail("decoded again"))
    assert len(cache.through("letters", decodes, where).train) == 2 * ROWS
    assert opened.count("a") == opened.count("b") == 1


def test_what_changed_just_now_is_not_remembered(where: Path, opened: list[str]) -> None:
    held(where)
    opened.clear()
    held(where)
    assert {"a", "b"} <= set(opened) and not (cache.folder() / contents.SEEN).exists()


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("damage", [b"", b"{}", b"[" * 10_000, b"\xff", "flip", "older"])
def test_a_damaged_memory_is_made_again(where: Path, damage: bytes | str, opened: list[str]) -> None:
    assert held(where) == "ab"
    [memory] = (cache.folder() / contents.SEEN).iterdir()
    whole = memory.read_bytes()
    if damage == "flip":
        at = whole.index(b'"digest": "') + 12
        memory.write_bytes(whole[:at] + (b"1" if whole[at : at + 1] == b"0" else b"0") + whole[at + 1 :])
    elif damage == "older":
        memory.write_bytes(whole[: len(whole) // 2])
    else:
        memory.write_bytes(bytes(damage))  # type: ignore[arg-type]
    opened.clear()
    with pytest.warns(contents.CacheRebuilt, match=r"seen.*damaged, reading the data again"):
        assert held(where) == "ab"
    assert {"a", "b"} <= set(opened) and memory.read_bytes() == whole
    assert held(where) == "ab"


@pytest.mark.usefixtures("settled")
def test_a_cache_of_other_data_is_not_used(where: Path) -> None:
    held(where)
    [first] = [entry for entry in cache.folder().iterdir() if entry.name != contents.SEEN]
    change(where / "b", b"c" * ROWS * LENGTH)
    shutil.rmtree(cache.folder() / contents.SEEN)
    key = cache._key(FORM, where, "")
    first.rename(cache.folder() / f"letters-{key}")
    with pytest.warns(contents.CacheRebuilt, match="it belongs to other data"):
        assert held(where) == "ac"


def test_data_that_change_while_they_are_read_are_not_cached(where: Path) -> None:
    def busy(folder: Path) -> Bundle:
        found = read(folder)
        change(folder / "b", b"z" * ROWS * LENGTH)
        return found

    with pytest.warns(UserWarning, match="not cached .the data changed while they were read"):
        cache.through("letters", Form(FORM.needs, FORM.files, busy), where)
    assert held(where) == "az"


@pytest.mark.usefixtures("settled")
def test_a_folder_that_moves_keeps_its_cache(where: Path) -> None:
    held(where)
    where.rename(where.with_name("elsewhere"))
    decodes = Form(FORM.needs, FORM.files, lambda folder: pytest.fail("decoded again"))
    assert len(cache.through("letters", decodes, where.with_name("elsewhere")).train) == 2 * ROWS


def test_a_memory_that_cannot_be_kept_is_no_error(where: Path, settled: None, opened: list[str]) -> None:
    cache.folder().mkdir()
    (cache.folder() / contents.SEEN).write_text("in the way")
    assert held(where) == "ab" == held(where)


def test_a_file_that_cannot_be_read_is_named(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (where / "b").unlink()
    with pytest.raises(StoreError, match="b: cannot be read: no such file"):
        held(where)
    (where / "b").symlink_to(where / "b")
    with pytest.raises(StoreError, match="b: cannot be read: too many levels"):
        held(where)
    (where / "b").unlink()
    (where / "b").mkdir()
    with pytest.raises(StoreError, match="b: cannot be read: is a directory"):
        held(where)


def test_a_second_run_of_one_process_has_the_new_rows(tmp_path: Path, where: Path) -> None:
    path = tmp_path / "rows.npz"
    given = parse({"data": str(path)})
    for number in (1, 2):
        before = path.stat() if path.exists() else None
        np.savez(path, x=np.full((4, 3), number, dtype=np.float32), y=[0, 1, 0, 1])
        if before is not None:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        look(given)
        data = load_data(given)
        assert np.all(data.train.x == number)
        look(given)
        assert load_data(given) is data
    path.unlink()
    assert np.all(load_data(given).train.x == 2)  # a run under way goes on
    look(given)
    with pytest.raises(StoreError, match="no such folder or file"):
        load_data(given)


def test_users_rows_are_the_new_ones(tmp_path: Path, where: Path) -> None:
    path = tmp_path / "rows.npz"
    for letter in (1, 2, 3):
        before = path.stat() if path.exists() else None
        np.savez(path, x=np.full((4, 3), letter, dtype=np.float32), y=[0, 1, 0, 1])
        if before is not None:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert np.all(Own(str(path)).load().train.x == letter)
