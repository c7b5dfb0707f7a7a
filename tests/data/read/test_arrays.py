"""A user's own NPZ and Parquet files, by the names of their columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from cutlayer.data.read import arrays
from cutlayer.data.rows import Bundle
from cutlayer.errors import ContractError, StoreError
from tests.data.read.test_image import png

RNG = np.random.default_rng(0)


def read(path: Path, x: str = "x", y: str = "y", owner: str | None = None, size: int | None = None) -> Bundle:
    form = arrays.form(x, y, owner, size)
    assert form.files(path) == [path]
    return form.read(path)


def npz(path: Path, **held: Any) -> Path:
    np.savez(path, **held)
    return path


def table(path: Path, **columns: Any) -> Path:
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize(
    ("given", "axes"),
    [
        (pixels(3, 8, 6), None),
        (pixels(3, 8, 6, 3), (0, 3, 1, 2)),
        (pixels(3, 8, 6, 1), (0, 3, 1, 2)),
        (pixels(3, 3, 8, 6), (0, 1, 2, 3)),
        (pixels(3, 2, 8, 6), (0, 1, 2, 3)),
        (pixels(3, 3, 4, 4), (0, 1, 2, 3)),  # square if channels come first
        (pixels(3, 4, 4, 3), (0, 3, 1, 2)),
        (pixels(3, 8, 6, 3).astype(np.int64), (0, 3, 1, 2)),
    ],
)
def test_images_in_any_order_of_axes(tmp_path: Path, given: np.ndarray, axes: tuple[int, ...] | None) -> None:
    rows = read(npz(tmp_path / "a.npz", x=given, y=[0, 1, 0])).train
    assert rows.x.dtype == np.uint8 and rows.x.flags.c_contiguous
    assert np.array_equal(rows.x, given[:, None] if axes is None else given.transpose(axes))


def test_features_codes_and_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for given, dtype in [
        (RNG.normal(size=(3, 4)), np.float32),
        (RNG.normal(size=(3, 4, 5)), np.float32),
        (RNG.normal(size=(3, 4)) > 0, np.float32),
        (pixels(3, 7), np.uint8),
        (pixels(3, 7).astype(np.int64), np.uint8),
        (np.full((3, 7), 30_000), np.int32),
    ]:
        rows = read(npz(path, x=given, y=[0, 1, 0])).train
        assert rows.x.dtype == dtype and np.array_equal(rows.x, given.astype(dtype))
    images = RNG.normal(size=(3, 8, 6, 3)).astype(np.float32)
    assert np.array_equal(read(npz(path, x=images, y=[0, 1, 0])).train.x, images.transpose(0, 3, 1, 2))


def test_labels_and_owners_by_number_or_name(tmp_path: Path) -> None:
    path, x = tmp_path / "a.npz", pixels(4, 5)
    for y, numbers, names in [
        (np.array([2, 0, 1, 2], dtype=np.uint8), [2, 0, 1, 2], ()),
        (np.array([[2], [0], [1], [2]]), [2, 0, 1, 2], ()),
        (np.array([True, False, True, True]), [1, 0, 1, 1], ()),
        (np.array(["b", "a", "c", "b"]), [1, 0, 2, 1], ("a", "b", "c")),
        (np.array([b"b", b"a", b"c", b"b"]), [1, 0, 2, 1], ("a", "b", "c")),
    ]:
        bundle = read(npz(path, inputs=x, labels=y, who=np.array([7, 7, 3, 7])), "inputs", "labels", "who")
        assert bundle.train.y.tolist() == numbers and bundle.train.y.dtype == np.int64
        assert bundle.class_names == names
        assert bundle.train.owners is not None and bundle.train.owners.tolist() == [1, 1, 0, 1]
        assert bundle.train.owner_names == ("3", "7") and len(bundle.test) == 0


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"x": pixels(3, 4)}, r"a\.npz: arrays \['x'\], expected 'y' among them"),
        ({"a": pixels(3, 4), "y": [0, 1, 2]}, r"a\.npz: arrays \['a', 'y'\], expected 'x' among them"),
        (
            {"x": pixels(3, 4), "y": [0.5, 1, 2]},
            r"a\.npz: y: type = 'float64': expected classes, .* trained from Python",
        ),
        ({"x": pixels(3, 4), "y": [0, -1, 2]}, r"a\.npz: y, row 1: label -1, expected labels from 0"),
        ({"x": pixels(3, 4), "y": [0, 1]}, r"a\.npz: rows of y = 2: expected 3 as of x"),
        (
            {"x": pixels(3, 4), "y": np.eye(3, dtype=int)},
            r"a\.npz: y: shape = \(3, 3\): expected one value for each row",
        ),
        ({"x": pixels(3), "y": [0, 1, 2]}, r"a\.npz: x: shape = \(3,\)"),
        ({"x": 3, "y": 0}, r"a\.npz: x: shape = \(1,\)"),
        ({"x": pixels(0, 4), "y": np.zeros(0, dtype=int)}, r"a\.npz: x: shape = \(0, 4\)"),
        ({"x": [[1.0, 2], [np.nan, 3]], "y": [0, 1]}, r"a\.npz: x, row 1: NaN or infinity"),
        ({"x": [[1.0, 2], [1e300, 3]], "y": [0, 1]}, r"a\.npz: x, row 1: NaN or infinity"),
        ({"x": [[1, 2], [-1, 3]], "y": [0, 1]}, r"a\.npz: x, row 1: -1, expected codes from 0, or floats"),
        ({"x": [[1, 2], [2**40, 3]], "y": [0, 1]}, r"a\.npz: x, row 1: 1099511627776, expected codes"),
        ({"x": [[[1, 2]], [[1, 256]]], "y": [0, 1]}, r"a\.npz: x, row 1: 256, expected pixels from 0 to 255"),
        ({"x": pixels(2, 2, 2, 2, 2), "y": [0, 1]}, r"a\.npz: x: shape = .*images of two or three dimensions"),
        ({"x": [["a", "b"]], "y": [0]}, r"a\.npz: x: type = '<U1': expected numbers"),
    ],
)
def test_what_is_wrong_with_arrays_is_said(tmp_path: Path, held: dict[str, Any], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        read(npz(tmp_path / "a.npz", **held))


def test_owners_are_as_many_as_rows(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", x=pixels(3, 4), y=[0, 1, 2], who=["a", "b"], share=[0.1, 0.2, 0.3])
    with pytest.raises(ContractError, match=r"a\.npz: rows of who = 2: expected 3 as of x"):
        read(path, owner="who")
    with pytest.raises(ContractError, match=r"a\.npz: share: type = 'float64': expected names or whole numbers"):
        read(path, owner="share")


def test_what_is_no_npz_is_said(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", x=pixels(3, 400), y=[0, 1, 2])
    whole = path.read_bytes()
    single = tmp_path / "single.npy"
    np.save(single, pixels(3, 4))
    objects = tmp_path / "objects.npz"
    np.savez(objects, x=np.array([{}], dtype=object), y=[0])
    for data in (b"", b"nonsense", whole[:200], whole[:-30], single.read_bytes(), objects.read_bytes()):
        path.write_bytes(data)
        with pytest.raises(StoreError, match=r"a\.npz: not a readable NPZ file"):
            read(path)
    path.write_bytes(whole[:300] + b"\xff\xff" + whole[302:])  # its checksum no longer holds
    with pytest.raises(StoreError, match=r"a\.npz: not a readable NPZ file"):
        read(path)
    with pytest.raises(ContractError, match=r"expected a name that ends with \.npz or \.parquet"):
        arrays.raw(tmp_path / "a.csv", "x", "y")
    assert arrays.form().files(single) == [] == arrays.form().files(tmp_path)


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_train_and_test_files(tmp_path: Path, suffix: str) -> None:
    x = RNG.normal(size=(4, 2)).astype(np.float32)
    for side, rows, names in (("train", x[:3], ["b", "a", "b"]), ("test", x[3:], ["b"])):
        path = tmp_path / f"{side}{suffix}"
        if suffix == ".npz":
            npz(path, x=rows, y=names)
        else:
            table(path, x=pa.array(rows.tolist(), pa.list_(pa.float32(), 2)), y=names)
    form = arrays.form()
    bundle = form.read(tmp_path)
    assert np.array_equal(bundle.train.x, x[:3]) and np.array_equal(bundle.test.x, x[3:])
    assert bundle.train.y.tolist() == [1, 0, 1] and bundle.test.y.tolist() == [1]
    assert [path.stem for path in form.files(tmp_path)] == ["train", "test"]
    if suffix == ".npz":
        npz(tmp_path / "test.npz", x=x[3:], y=["c"])
        with pytest.raises(ContractError, match=r"test\.npz: class 'c' has no training rows in .*train\.npz"):
            form.read(tmp_path)
        npz(tmp_path / "test.npz", x=x[3:], y=[1])
        with pytest.raises(
            ContractError, match=r"test\.npz: rows of .*labels as numbers, expected .*as names as in .*train\.npz"
        ):
            form.read(tmp_path)


def test_columns_of_a_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    image = pixels(3, 4, 5, 3)
    cells = [png(p) for p in image]
    table(
        path,
        photo=[{"bytes": cell, "path": None} for cell in cells],
        raw=pa.array(cells, pa.binary()),
        age=[1, 2, 3],
        weight=[0.5, 1.5, 2.5],
        series=[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        tokens=pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.uint8(), 2)),
        kind=pa.array(["b", "a", "b"]).dictionary_encode(),
        smiling=[True, False, True],
        clinic=[10, 9, 10],
    )
    for column in ("photo", "raw"):
        bundle = read(path, column, "kind", "clinic")
        assert np.array_equal(bundle.train.x, image.transpose(0, 3, 1, 2))
        assert bundle.train.y.tolist() == [1, 0, 1] and bundle.class_names == ("a", "b")
        assert bundle.train.owners is not None and bundle.train.owners.tolist() == [0, 1, 0]  # "10" sorts before "9"
        assert read(path, column, "kind", size=8).train.x.shape == (3, 3, 8, 8)
    both = read(path, "age, weight", "smiling").train
    assert both.x.dtype == np.float32 and both.x.tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert both.y.tolist() == [1, 0, 1]
    assert read(path, "age", "kind").train.x.tolist() == [[1], [2], [3]]
    assert read(path, "series", "kind").train.x.dtype == np.float32
    assert read(path, "tokens", "kind").train.x.tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"y": [0, 1]}, r"a\.parquet: columns \['y'\], expected 'x' among them"),
        ({"x": [0.5, 1]}, r"a\.parquet: columns \['x'\], expected 'y' among them"),
        ({"x": [1.0, 2], "y": [0.5, 1]}, r"a\.parquet: column y = 'double': expected classes, .* trained from Python"),
        ({"x": [1.0, 2], "y": [0, -1]}, r"a\.parquet, row 1: label -1, expected labels from 0"),
        ({"x": [1.0, 2], "y": [0, None]}, r"a\.parquet, row 1: an empty cell, expected a y"),
        ({"x": [1.0, None], "y": [0, 1]}, r"a\.parquet, row 1: an empty cell, expected a x"),
        ({"x": ["a", "b"], "y": [0, 1]}, r"a\.parquet: column x = 'string': expected numbers, or lists"),
        ({"x": [[1.0], [1.0, 2]], "y": [0, 1]}, r"a\.parquet, row 1: 2 numbers in x, expected 1 as in row 0"),
        ({"x": [[1.0, 2], [1.0, None]], "y": [0, 1]}, r"a\.parquet, row 1: an empty cell within x"),
        ({"x": [[1.0, 2], None], "y": [0, 1]}, r"a\.parquet, row 1: an empty cell, expected a x"),
        ({"x": [[[1.0]], [[2.0]]], "y": [0, 1]}, r"a\.parquet: column x = '(fixed_size_)?list.*': expected numbers"),
        (
            {"x": [{"path": "a"}] * 2, "y": [0, 1]},
            r"a\.parquet: column x = 'struct.*': expected the bytes of image files",
        ),
        ({"x": [{"bytes": b"x"}, {"bytes": None}], "y": [0, 1]}, r"a\.parquet, row 0: not a readable image"),
        ({"x": [1.0, float("inf")], "y": [0, 1]}, r"a\.parquet: x, row 1: NaN or infinity"),
        ({"x": [1.0, 1e300], "y": [0, 1]}, r"a\.parquet: x, row 1: NaN or infinity"),
    ],
)
def test_what_is_wrong_with_columns_is_said(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        read(table(tmp_path / "a.parquet", **columns))


def test_several_columns_are_of_single_numbers(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", a=[1, 2], b=[[1, 2], [3, 4]], y=[0, 1])
    with pytest.raises(ContractError, match="column b = 'lists': expected a number in every row"):
        read(path, "a,b")
    with pytest.raises(ContractError, match=r"columns \['a', 'b', 'y'\], expected 'c' among them"):
        read(path, "a,c")
    path.write_bytes(b"nonsense")
    with pytest.raises(StoreError, match=r"a\.parquet: not a readable Parquet file"):
        read(path, "a")
