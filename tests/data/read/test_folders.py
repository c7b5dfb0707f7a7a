"""Images in folders by class and by client, and a file for each client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from cutlayer.data.read import clients, folders
from cutlayer.errors import ContractError
from tests.data.read.test_image import png

RNG = np.random.default_rng(0)


def write(root: Path, *names: str, shape: tuple[int, ...] = (4, 3, 3)) -> dict[str, np.ndarray]:
    held = {}
    for name in names:
        pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(pixels))
        held[name] = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
    return held


@pytest.mark.parametrize("layout", ["auto", "class"])
def test_a_folder_for_each_class(tmp_path: Path, layout: str) -> None:
    names = ["cat/1.png", "cat/2.PNG", "dog/b.Tiff", "dog/a.webp"]  # what a file is, its bytes say
    held = write(tmp_path, *names)
    write(tmp_path, ".hidden/x.png", "cat/.x.png")
    (tmp_path / "cat" / "notes.txt").write_text("nothing")
    form = folders.form(layout=layout)
    bundle = form.read(tmp_path)
    order = ["cat/1.png", "cat/2.PNG", "dog/a.webp", "dog/b.Tiff"]
    assert np.array_equal(bundle.train.x, np.stack([held[name] for name in order]))
    assert bundle.train.y.tolist() == [0, 0, 1, 1] and bundle.train.y.dtype == np.int64
    assert bundle.class_names == ("cat", "dog") and bundle.train.owners is None
    assert len(bundle.test) == 0 and bundle.test.x.shape == (0, 3, 4, 3)
    assert form.files(tmp_path) == [tmp_path / name for name in order]
    assert folders.form(size=6, layout=layout).read(tmp_path).train.x.shape == (4, 3, 6, 6)


@pytest.mark.parametrize("test", ["test", "valid", "val"])
def test_train_and_test_at_the_top(tmp_path: Path, test: str) -> None:
    held = write(tmp_path, "train/a/1.png", "train/b/1.png", f"{test}/b/1.png")
    bundle = folders.form().read(tmp_path)
    assert np.array_equal(bundle.test.x, held[f"{test}/b/1.png"][None])
    assert bundle.train.y.tolist() == [0, 1] and bundle.test.y.tolist() == [1]
    assert len(folders.form().files(tmp_path)) == 3
    write(tmp_path, f"{test}/c/1.png")
    with pytest.raises(ContractError, match=rf"{test}: class 'c' has no training rows in .*train"):
        folders.form().read(tmp_path)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    write(tmp_path, "bus/1.png", "train/1.png", "test/1.png")
    assert folders.form().read(tmp_path).class_names == ("bus", "test", "train")


def test_train_alone_has_no_test_rows(tmp_path: Path) -> None:
    write(tmp_path, "train/a/1.png", "train/b/1.png")
    assert len(folders.form().read(tmp_path).test) == 0


@pytest.mark.parametrize("layout", ["auto", "client"])
def test_a_folder_for_each_client(tmp_path: Path, layout: str) -> None:
    names = ["ann/cat/1.png", "ann/dog/1.png", "bob/dog/1.png", "bob/dog/2.png"]
    held = write(tmp_path, *names)
    bundle = folders.form(layout=layout).read(tmp_path)
    assert np.array_equal(bundle.train.x, np.stack([held[name] for name in names]))
    assert bundle.train.y.tolist() == [0, 1, 1, 1] and bundle.class_names == ("cat", "dog")
    assert bundle.train.owners is not None and bundle.train.owners.tolist() == [0, 0, 1, 1]
    assert bundle.train.owner_names == ("ann", "bob")


def test_a_client_is_the_same_in_train_and_test(tmp_path: Path) -> None:
    write(tmp_path, "train/b/x/1.png", "train/c/x/1.png", "test/c/x/1.png", "test/a/x/1.png")
    bundle = folders.form().read(tmp_path)
    assert bundle.train.owners is not None and bundle.test.owners is not None
    assert bundle.train.owners.tolist() == [1, 2] and bundle.test.owners.tolist() == [0, 2]
    assert bundle.train.owner_names == bundle.test.owner_names == ("a", "b", "c")


def test_what_is_wrong_with_folders_is_said(tmp_path: Path) -> None:
    assert folders.form().files(tmp_path) == [] == folders.form().files(tmp_path / "nowhere")
    with pytest.raises(ContractError, match="unknown layout 'clients': did you mean 'client'"):
        folders.form(layout="clients")
    with pytest.raises(ContractError, match=r"no images \(\.png"):
        folders.form().read(tmp_path)
    for case, (names, layout, said) in enumerate(
        [
            (["1.png"], "auto", r"1\.png: expected images in .*/CLASS or .*/CLIENT/CLASS"),
            (["a/b/c/1.png"], "auto", r"c.1\.png: expected images in .*/CLASS or .*/CLIENT/CLASS"),
            (["a/1.png", "b/c/1.png"], "auto", r"c.1\.png: expected images in .*/CLASS only"),
            (["a/1.png", "2.png"], "class", r"2\.png: expected images in .*/CLASS only"),
            (["a/1.png"], "client", r"1\.png: expected images in .*/CLIENT/CLASS only"),
            (["a/b/1.png"], "class", r"1\.png: expected images in .*/CLASS only"),
        ]
    ):
        root = tmp_path / str(case)
        write(root, *names)
        with pytest.raises(ContractError, match=said):
            folders.form(layout=layout).read(root)
    root = tmp_path / "empty"
    write(root, "a/1.png")
    (root / "b").mkdir()
    with pytest.raises(ContractError, match=r"empty.b: a class folder without images"):
        folders.form().read(root)
    root = tmp_path / "empty-client"
    write(root, "a/x/1.png")
    (root / "b").mkdir()
    with pytest.raises(ContractError, match=r"empty-client.b: a folder without class folders"):
        folders.form().read(root)
    (root / "b" / "x").mkdir()
    with pytest.raises(ContractError, match=r"empty-client.b.x: a class folder without images"):
        folders.form().read(root)
    root = tmp_path / "torn"
    write(root, "a/1.png", "a/2.png")
    (root / "a" / "2.png").write_bytes((root / "a" / "2.png").read_bytes()[:50])
    with pytest.raises(ContractError, match=r"2\.png: not a readable image"):
        folders.form().read(root)
    write(root, "a/2.png", shape=(5, 3, 3))
    with pytest.raises(ContractError, match=r"2\.png: 5x3 pixels, expected 4x3 as in .*1\.png; .*--image-size"):
        folders.form().read(root)
    root = tmp_path / "sides"
    write(root, "train/a/1.png")
    write(root, "test/a/1.png", shape=(4, 3))
    with pytest.raises(
        ContractError, match=r"test: rows of uint8 \(1, 4, 3\), .*expected uint8 \(3, 4, 3\), .* as in .*train"
    ):
        folders.form().read(root)


def test_a_file_for_each_client(tmp_path: Path) -> None:
    x = RNG.normal(size=(5, 3)).astype(np.float32)
    np.savez(tmp_path / "north.npz", x=x[:2], y=np.array(["ill", "well"]))
    series = pa.array(x[2:].tolist(), pa.list_(pa.float32()))
    pyarrow.parquet.write_table(pa.table({"x": series, "y": ["well", "well", "ill"]}), tmp_path / "south.parquet")
    form = clients.form()
    bundle = form.read(tmp_path)
    assert np.array_equal(bundle.train.x, x) and bundle.train.y.tolist() == [0, 1, 1, 1, 0]
    assert bundle.class_names == ("ill", "well") and bundle.train.owner_names == ("north", "south")
    assert bundle.train.owners is not None and bundle.train.owners.tolist() == [0, 0, 1, 1, 1]
    assert [path.name for path in form.files(tmp_path)] == ["north.npz", "south.parquet"]
    np.savez(tmp_path / "south.npz", x=x[:2], y=np.array(["ill", "well"]))
    with pytest.raises(ContractError, match="two files for one client"):
        form.read(tmp_path)
    (tmp_path / "south.npz").unlink()
    np.savez(tmp_path / "west.npz", x=x[:2, :2], y=np.array(["ill", "well"]))
    with pytest.raises(
        ContractError, match=r"west\.npz: rows of float32 \(2,\), .*expected float32 \(3,\).*north\.npz"
    ):
        form.read(tmp_path)
    np.savez(tmp_path / "west.npz", x=x[:2], y=np.array([0, 1]))
    with pytest.raises(ContractError, match=r"west\.npz: rows of .*labels as numbers, expected .*labels as names"):
        form.read(tmp_path)


def test_files_of_clients_may_be_split(tmp_path: Path) -> None:
    assert clients.form().files(tmp_path) == []
    for side, names in (("train", ["b", "a"]), ("test", ["b"])):
        (tmp_path / side).mkdir()
        for k, name in enumerate(names):
            np.savez(tmp_path / side / f"{name}.npz", x=np.full((2, 4, 4), k, dtype=np.uint8), y=np.array([k, 2]))
    bundle = clients.form().read(tmp_path)
    assert bundle.train.x.shape == (4, 1, 4, 4) and bundle.train.y.tolist() == [1, 2, 0, 2]
    assert bundle.train.owners is not None and bundle.train.owners.tolist() == [0, 0, 1, 1]
    assert bundle.test.owners is not None and bundle.test.owners.tolist() == [1, 1]
    (tmp_path / "test" / "b.npz").unlink()
    with pytest.raises(ContractError, match="test: client files = 0"):
        clients.form().read(tmp_path)
