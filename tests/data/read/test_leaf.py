"""LEAF's JSON folders: pixels, text and names of pictures, with users as owners."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cutlayer.data.read import leaf, text
from cutlayer.errors import ContractError, StoreError
from tests.data.read.test_image import png

REAL = Path(os.environ.get("CUTLAYER_DATA") or Path(__file__).parents[4] / "shared" / "data")
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8)


def write(path: Path, users: dict[str, tuple[list[Any], list[Any]]], **other: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
    held = {"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data, **other}
    path.write_text(json.dumps(held))


def floats(rows: slice) -> list[list[float]]:
    return (PIXELS[rows].reshape(-1, 784).astype(np.float32) / np.float32(255)).tolist()


@pytest.mark.parametrize("inside", ["", "data"])
def test_handwriting_comes_out_as_bytes(tmp_path: Path, inside: str) -> None:
    form = leaf.form("femnist")
    assert form.files(tmp_path) == []
    base = tmp_path / inside
    write(base / "train" / "a_0.json", {"f9": (floats(slice(0, 2)), [3, 61])})
    write(base / "train" / "a_1.json", {"f10": (floats(slice(2, 3)), [0]), "idle": ([], [])})
    write(base / "test" / "b.json", {"f10": (floats(slice(3, 5)), [1, 2]), "f7": (floats(slice(5, 6)), [5])})
    bundle = form.read(tmp_path)
    assert bundle.train.x.dtype == np.uint8 and np.array_equal(bundle.train.x, PIXELS[:3, None])
    assert np.array_equal(bundle.test.x, PIXELS[3:, None])
    assert bundle.train.y.tolist() == [3, 61, 0] and bundle.test.y.tolist() == [1, 2, 5]
    assert bundle.train.owner_names == bundle.test.owner_names == ("f10", "f7", "f9")
    assert bundle.train.owners is not None and bundle.train.owners.tolist() == [2, 2, 0]
    assert bundle.test.owners is not None and bundle.test.owners.tolist() == [0, 0, 1]
    assert len(bundle.class_names) == 62 and bundle.class_names[61] == "z"
    assert len(form.files(tmp_path)) == 3


def test_pixels_between_bytes_stay_floats_everywhere(tmp_path: Path) -> None:
    odd = [[0.5, *[1.0] * 783]]
    write(tmp_path / "train" / "a.json", {"a": (floats(slice(0, 1)), [0]), "b": (odd, [1])})
    write(tmp_path / "test" / "a.json", {"a": (floats(slice(1, 2)), [0])})
    bundle = leaf.form("femnist").read(tmp_path)
    assert bundle.train.x.dtype == bundle.test.x.dtype == np.float32
    assert bundle.train.x[1, 0, 0, 0] == 0.5
    assert np.array_equal(bundle.test.x, PIXELS[1:2, None].astype(np.float32) / np.float32(255))


def test_without_a_split_there_are_no_test_rows(tmp_path: Path) -> None:
    write(tmp_path / "data" / "all_data" / "all_data.json", {"a": (floats(slice(0, 2)), [0, 1])})
    bundle = leaf.form("femnist").read(tmp_path)
    assert len(bundle.train) == 2 and len(bundle.test) == 0


def test_text_and_the_79_windows_leaf_counts_but_leaves_out(tmp_path: Path) -> None:
    windows = ["a" * 79 + "\n", "Z" * 80]
    write(tmp_path / "train" / "a.json", {"A_B": (windows, ["}", " "])})
    write(tmp_path / "test" / "a.json", {"A_B": (windows[:1], ["b"])}, num_samples=[80])
    bundle = leaf.form("shakespeare").read(tmp_path)
    assert bundle.train.x.shape == (2, 80) and bundle.train.x.dtype == np.uint8
    assert "".join(text.LEAF[code] for code in bundle.train.x[0]) == windows[0]
    assert bundle.train.y.tolist() == [79, 1] and bundle.train.y.dtype == np.int64
    assert bundle.test.y.tolist() == [text.LEAF.index("b")] and bundle.class_names == tuple(text.LEAF)
    write(tmp_path / "test" / "a.json", {"A_B": (windows[:1], ["b"])}, num_samples=[79])
    with pytest.raises(ContractError, match=r"a\.json, user 'A_B': num_samples = 79: expected 1, the rows there"):
        leaf.form("shakespeare").read(tmp_path)


@pytest.mark.parametrize("inside", ["raw", ".", "data/raw", "data"])
def test_faces_are_found_and_resized(tmp_path: Path, inside: str) -> None:
    pictures = tmp_path / inside / "img_align_celeba"
    pictures.mkdir(parents=True)
    shades = RNG.integers(0, 256, (84, 84), dtype=np.uint8)
    (pictures / "1.png").write_bytes(png(RNG.integers(0, 256, (218, 178, 3), dtype=np.uint8)))
    (pictures / "2.png").write_bytes(png(shades))
    write(tmp_path / "train" / "a.json", {"7": (["1.png", "2.png"], [1, 0])})
    write(tmp_path / "test" / "a.json", {"7": (["2.png"], [0])})
    form = leaf.form("celeba")
    bundle = form.read(tmp_path)
    assert bundle.train.x.shape == (2, 3, 84, 84) and bundle.train.y.tolist() == [1, 0]
    assert np.array_equal(bundle.test.x[0], np.repeat(shades[None], 3, axis=0))
    with Image.open(pictures / "1.png") as image:
        expected = np.asarray(image.resize((84, 84), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(bundle.train.x[0], expected)
    assert bundle.class_names == ("not smiling", "smiling")
    assert [path.name for path in form.files(tmp_path)] == ["a.json", "a.json", "1.png", "2.png"]


def test_what_is_wrong_with_faces_is_said(tmp_path: Path) -> None:
    path = tmp_path / "train" / "a.json"
    write(path, {"7": (["1.png"], [1])})
    with pytest.raises(StoreError, match="no folder raw/img_align_celeba with the pictures"):
        leaf.form("celeba").read(tmp_path)
    (tmp_path / "img_align_celeba").mkdir()
    for x, y, said in [
        (["1.png"], [1], r"a\.json, user '7', row 0: not a readable image: .*No such file"),
        (["1.png", "../1.png"], [1, 0], r"user '7', row 1: '\.\./1\.png', expected the name of a picture"),
        ([3], [1], "user '7', row 0: 3, expected text"),
        (["1.png"], [2], r"user '7', row 0: label 2, expected 0\.\.1"),
    ]:
        write(path, {"7": (x, y)})
        with pytest.raises(ContractError, match=said):
            leaf.form("celeba").read(tmp_path)


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="unknown LEAF data set 'femnists': did you mean 'femnist'"):
        leaf.form("femnists")
    path, one = tmp_path / "train" / "a.json", floats(slice(0, 1))
    path.parent.mkdir()
    for content, said in [
        ("{", "not readable JSON"),
        ("[" * 100_000, "not readable JSON"),
        ("[]", "users = 'NoneType': expected a list"),
        ('{"users": ["a"]}', "num_samples = 'NoneType': expected a list"),
        ('{"users": ["a"], "num_samples": [], "user_data": {}}', "num_samples = 0: expected 1, one for each user"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {}}', "user 'a': not in user_data"),
        ('{"users": [[]], "num_samples": [1], "user_data": {}}', r"user \[\]: not in user_data"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": []}}}', "user 'a': y = 'NoneType'"),
        ('{"users": ["a"], "num_samples": [0], "user_data": {"a": {"x": [], "y": []}}}', "no user has rows"),
    ]:
        path.write_text(content)
        with pytest.raises(ContractError, match=rf"a\.json(, |: ).*{said}"):
            leaf.form("femnist").read(tmp_path)
    for x, y, said in [
        (one, [0, 1], r"rows of x and y = \(1, 2\): expected the same number"),
        (one, [62], r"row 0: label 62, expected 0\.\.61"),
        (one, ["3"], r"row 0: label '3', expected 0\.\.61"),
        (one * 2, [1, True], r"row 1: label True, expected 0\.\.61"),
        (one, [10**30], r"row 0: label 1000"),
        ([*one, one[0][1:]], [0, 1], "row 1: expected 784 numbers"),
        ([*one, 0.5], [0, 1], "row 1: expected 784 numbers"),
        ([*one, ["a", *one[0][1:]]], [0, 1], "row 1: expected 784 numbers"),
        ([*one, [None, *one[0][1:]]], [0, 1], "row 1: expected 784 numbers"),
        ([*one, [float("nan"), *one[0][1:]]], [0, 1], "row 1: expected 784 numbers"),
    ]:
        write(path, {"good": (one, [0]), "bad": (x, y)})
        with pytest.raises(ContractError, match=rf"a\.json, user 'bad'(, |: ){said}"):
            leaf.form("femnist").read(tmp_path)
    write(path, {"bad": (one, [0])}, num_samples=[2])
    with pytest.raises(ContractError, match="user 'bad': num_samples = 2: expected 1, the rows there"):
        leaf.form("femnist").read(tmp_path)


def test_what_is_wrong_with_text_is_said(tmp_path: Path) -> None:
    path, window = tmp_path / "train" / "a.json", "a" * 80
    for x, y, said in [
        ([window, "a" * 79], ["a", "a"], "row 1: 79 characters, expected 80"),
        ([window, "é" * 80], ["a", "a"], "row 1: character 'é', expected one of "),
        ([window, "€" * 80], ["a", "a"], "row 1: character '€', expected one of "),
        ([window, window], ["a", "{"], "row 1: character '{', expected one of "),
        ([window, window], ["a", "ab"], "row 1: 2 characters, expected 1"),
        ([window, 3], ["a", "a"], "row 1: 3, expected text"),
    ]:
        write(path, {"A": (x, y)})
        with pytest.raises(ContractError, match=rf"a\.json, user 'A', {said}"):
            leaf.form("shakespeare").read(tmp_path)


@pytest.mark.skipif(not (REAL / "leaf_shakespeare").is_dir(), reason="no real data: set CUTLAYER_DATA")
def test_real_roles() -> None:
    bundle = leaf.form("shakespeare").read(REAL / "leaf_shakespeare")
    assert bundle.train.x.shape[1:] == (80,) and bundle.train.x.max() < 80 and len(bundle.test) > 0
    assert bundle.train.owners is not None and bundle.test.owners is not None
    assert set(bundle.train.owners.tolist()) == set(bundle.test.owners.tolist())
    said = json.loads(next((REAL / "leaf_shakespeare" / "train").glob("*.json")).read_text())
    user, last = said["users"][-1], bundle.train.x[-1]
    assert "".join(text.LEAF[code] for code in last) == said["user_data"][user]["x"][-1]
    assert text.LEAF[bundle.train.y[-1]] == said["user_data"][user]["y"][-1]
