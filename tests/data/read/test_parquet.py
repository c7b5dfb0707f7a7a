"""The hub's Parquet files: images, recordings and text, whole or in shards; and slices of real ones where they are."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from cutlayer.data.read import logmel, parquet, parquet_forms, tables, text
from cutlayer.errors import ContractError, StoreError
from tests.data.read.test_image import png
from tests.data.read.test_speech import noise, recording

REAL = Path(os.environ.get("CUTLAYER_DATA") or Path(__file__).parents[4] / "shared" / "data")
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
CELLS = [{"bytes": png(p), "path": None} for p in PIXELS]


def write(path: Path, names: dict[str, list[str]] | None = None, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if names is not None:
        features = {column: {"names": known, "_type": "ClassLabel"} for column, known in names.items()}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(table, path, row_group_size=2)
    return path


@pytest.mark.parametrize(("x", "y"), [("img", "label"), ("image", "fine_label"), ("image", "character")])
def test_images_labels_and_names_of_classes(tmp_path: Path, x: str, y: str) -> None:
    path = write(tmp_path / "a.parquet", {y: ["cat", "dog", "emu"]}, **{x: CELLS, y: [2, 0, 1, 1, 0, 2]})
    pixels, labels, names = parquet.images(path)
    assert pixels.dtype == np.uint8 and np.array_equal(pixels, PIXELS.transpose(0, 3, 1, 2))
    assert labels.dtype == np.int64 and labels.tolist() == [2, 0, 1, 1, 0, 2]
    assert names == ("cat", "dog", "emu")
    assert parquet.images(path, size=3)[0].shape == (6, 3, 3, 3)
    assert parquet.images(path, mode="L")[0].shape == (6, 1, 5, 4)


def test_labels_of_several_kinds(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        image=CELLS,
        Smiling=[True, False, True, True, False, False],
        small=pa.array([0, 1, 2, 3, 4, 255], pa.uint8()),
        word=["b", "a", "b", "c", "a", "a"],
        coded=pa.array(["b", "a", "b", "c", "a", "a"]).dictionary_encode(),
    )
    assert parquet.images(path, y_column="Smiling")[1].tolist() == [1, 0, 1, 1, 0, 0]
    for names in (False, True):
        numbers, known = parquet.labels(path, "small", names)
        assert numbers.tolist() == [0, 1, 2, 3, 4, 255] and known == ()
    for column in ("word", "coded"):
        numbers, known = parquet.labels(path, column, names=True)
        assert numbers.tolist() == [1, 0, 1, 2, 0, 0] and known == ("a", "b", "c")
        with pytest.raises(
            ContractError, match=r"a\.parquet: column \w+ = 'string': expected a whole number in every row"
        ):
            parquet.labels(path, column)
    assert parquet.owners(path, "word")[0].tolist() == [1, 0, 1, 2, 0, 0]
    assert parquet.owners(path, "small")[1] == ("0", "1", "2", "255", "3", "4")


def test_shards_are_one_table(tmp_path: Path) -> None:
    assert parquet.shards(tmp_path, "train") == []
    for k in range(3):
        part = slice(2 * k, 2 * k + 2)
        write(
            tmp_path / "data" / f"train-0000{k}-of-00003.parquet", image=CELLS[part], label=[k, 3], who=[f"w{k}", "w0"]
        )
    write(tmp_path / "data" / "test-00000-of-00001-0a1b2c.parquet", image=CELLS[:1], label=[1], who=["w2"])
    assert [path.name[:11] for path in parquet.shards(tmp_path, "train")] == [
        "train-00000",
        "train-00001",
        "train-00002",
    ]
    form = parquet_forms.images(owner="who")
    bundle = form.read(tmp_path)
    assert np.array_equal(bundle.train.x, PIXELS.transpose(0, 3, 1, 2)) and len(form.files(tmp_path)) == 4
    assert bundle.train.y.tolist() == [0, 3, 1, 3, 2, 3] and bundle.test.y.tolist() == [1]
    assert bundle.train.owners is not None and bundle.train.owners.tolist() == [0, 0, 1, 0, 2, 0]
    assert bundle.test.owners is not None and bundle.test.owners.tolist() == [2]
    (tmp_path / "data" / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(StoreError, match=r"data: shards \[0, 2\] of 'train', expected 0\.\.2, each once"):
        form.files(tmp_path)
    write(tmp_path / "train.parquet", image=CELLS, label=[0] * 6)
    assert parquet.shards(tmp_path, "train") == [tmp_path / "train.parquet"]  # a whole file comes first


def test_a_form_needs_its_splits(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", image=CELLS, label=[0] * 6)
    assert parquet_forms.images().files(tmp_path) == [] and len(parquet_forms.images(test=None).files(tmp_path)) == 1
    write(tmp_path / "valid.parquet", image=CELLS[:2], label=[0] * 2)
    form = parquet_forms.images(test="valid", size=8, mode="L")
    bundle = form.read(tmp_path)
    assert bundle.test.x.shape == (2, 1, 8, 8) and "valid.parquet" in form.needs
    assert parquet_forms.images(test=None).read(tmp_path).test.x.shape == (0, 3, 5, 4)
    none = {"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}
    write(tmp_path / "test.parquet", **none)
    assert parquet_forms.images().read(tmp_path).test.x.shape == (0, 3, 5, 4)
    write(tmp_path / "train.parquet", **none)
    with pytest.raises(ContractError, match=r"train\.parquet: training rows = 0: expected at least one"):
        parquet_forms.images().read(tmp_path)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"image": None}, r": columns \['label', 'who'\], expected an image and a label column"),
        ({"label": None}, r": columns \['image', 'who'\], expected an image and a label column"),
        ({"label": [0, None, 1]}, ", row 1: an empty cell, expected a label"),
        ({"label": [0, 1, -1]}, ", row 2: label -1, expected 0..1"),
        ({"label": [0, 2, 1]}, ", row 1: label 2, expected 0..1"),
        ({"label": [0.5, 1.5, 0]}, ": column label = 'double': expected classes"),
        ({"label": ["0", "1", "0"]}, ": column label = 'string': expected a whole number"),
        ({"image": [1, 2, 3]}, ": column image = 'int64': expected the bytes of image files"),
        ({"image": [*CELLS[:2], None]}, ", row 2: an empty cell, expected the bytes of an image file"),
        ({"image": [*CELLS[:2], {"bytes": None, "path": "x"}]}, ", row 2: an empty cell, expected the bytes of an "),
        ({"image": [*CELLS[:2], {"bytes": png(PIXELS[0])[:60], "path": None}]}, ", row 2: not a readable image: "),
        ({"image": [*CELLS[:2], {"bytes": png(PIXELS[0, :3]), "path": None}]}, ", row 2: 3x4 pixels, expected 5x4 as"),
        ({"who": None}, r": columns \['image', 'label'\], expected 'who' among them"),
        ({"who": ["a", None, "b"]}, ", row 1: an empty cell, expected a who"),
        ({"who": [0.5, 1, 2]}, ": column who = 'double': expected names or whole numbers"),
        ({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64()), "who": []}, ": column who = 'null'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    held = {"image": CELLS[:3], "label": [0, 1, 0], "who": ["a", "b", "a"], **columns}
    path = tmp_path / "train.parquet"
    write(path, {"label": ["x", "y"]}, **{name: column for name, column in held.items() if column is not None})
    with pytest.raises(ContractError, match=rf"train\.parquet{said}"):
        parquet_forms.images(owner="who", test=None).read(tmp_path)


def test_what_is_no_parquet_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", image=CELLS, label=[0] * 6)
    whole = path.read_bytes()
    middle = len(whole) // 4
    for data in (b"", b"nonsense", whole[:-20], whole[:middle] + bytes(middle) + whole[2 * middle :]):
        path.write_bytes(data)
        with pytest.raises(
            (StoreError, ContractError), match=r"train\.parquet(: not a readable Parquet file|, row \d)"
        ):
            parquet.images(path)
    with pytest.raises(StoreError, match=r"nowhere\.parquet: not a readable Parquet file"):
        tables.table(tmp_path / "nowhere.parquet")


def test_names_of_classes_may_be_missing_or_broken(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", label=[0])
    assert parquet.class_names(path, "label") == ()
    for held in (b"{", b"[]", b'{"info": null}', b'{"info": {"features": {"label": {"dtype": "int64"}}}}', b"\xff"):
        table = pa.table({"label": [0]}).replace_schema_metadata({"huggingface": held})
        pyarrow.parquet.write_table(table, path)
        assert parquet.class_names(path, "label") == ()


def test_recordings_have_speakers(tmp_path: Path) -> None:
    clips = [noise(k) for k in range(3)]
    cells = [{"bytes": recording(clip), "path": f"{k}.wav"} for k, clip in enumerate(clips)]
    columns = {"audio": cells, "label": [1, 0, 1], "speaker_id": ["b", "a", "b"]}
    write(tmp_path / "train.parquet", {"label": ["no", "yes"]}, **columns)
    write(tmp_path / "test.parquet", {"label": ["no", "yes"]}, audio=cells[:1], label=[0], speaker_id=["c"])
    bundle = parquet_forms.recordings().read(tmp_path)
    assert np.abs(bundle.train.x - logmel.features(clips, 3)).max() < 1e-4
    assert bundle.train.y.tolist() == [1, 0, 1] and bundle.class_names == ("no", "yes")
    assert bundle.test.owners is not None and bundle.test.owners.tolist() == [2]
    slow = {"bytes": recording(clips[0], rate=8000), "path": None}
    for wrong, said in [
        ({"audio": [*cells[:2], slow]}, ", row 2: channels, bits, rate"),
        ({"audio": [*cells[:2], {"bytes": b"torn", "path": None}]}, ", row 2: not a readable WAV file"),
        ({"audio": [*cells[:2], None]}, ", row 2: an empty cell, expected the bytes of an audio file"),
        ({"speaker_id": ["a", None, "b"]}, ", row 1: an empty cell, expected a speaker_id"),
        ({"label": [0, 1, 2]}, r", row 2: label 2, expected 0\.\.1"),
    ]:
        write(tmp_path / "train.parquet", {"label": ["no", "yes"]}, **{**columns, **wrong})
        with pytest.raises(ContractError, match=rf"train\.parquet{said}"):
            parquet_forms.recordings().read(tmp_path)


def test_windows_of_text_have_roles(tmp_path: Path) -> None:
    windows, path = ["a" * 80, "b" * 79 + "\n"], tmp_path / "train.parquet"
    columns = {"character_id": ["LEAR", "FOOL"], "x": windows, "y": ["c", " "]}
    write(path, **columns)
    bundle = parquet_forms.windows().read(tmp_path)
    assert ["".join(text.LEAF[code] for code in row) for row in bundle.train.x] == windows
    assert bundle.train.y.tolist() == [text.LEAF.index("c"), 1] and bundle.train.x.dtype == np.uint8
    assert bundle.train.owners is not None and bundle.train.owners.tolist() == [1, 0]
    assert bundle.train.owner_names == ("FOOL", "LEAR") and len(bundle.test) == 0
    for wrong, said in [
        ({"x": ["a" * 80, "a" * 81]}, ", row 1: 81 characters, expected 80"),
        ({"x": ["a" * 80, "#" * 80]}, ", row 1: character '#'"),
        ({"x": ["a" * 80, None]}, ", row 1: an empty cell, expected a x"),
        ({"x": [1, 2]}, ": column x holds numbers, expected text"),
        ({"y": ["a", "\u00e9"]}, ", row 1: character '\u00e9'"),
        ({"y": ["a", "ab"]}, ", row 1: 2 characters, expected 1"),
    ]:
        write(path, **{**columns, **wrong})
        with pytest.raises(ContractError, match=rf"train\.parquet{said}"):
            parquet_forms.windows().read(tmp_path)


def real(name: str) -> Path:
    path = REAL / name
    if not path.is_file():
        pytest.skip(f"no {path}: set CUTLAYER_DATA")
    return path


def cut(name: str, to: Path, rows: int) -> list[dict[str, Any]]:
    """The first rows of a real file as a file of their own, and as they are."""
    with pyarrow.parquet.ParquetFile(real(name)) as file:
        part = pa.Table.from_batches([next(file.iter_batches(rows))])
    to.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(part, to)
    return part.to_pylist()


@pytest.mark.parametrize(
    ("name", "x", "y", "shape", "classes"),
    [
        ("mnist/train.parquet", "image", "label", (1, 28, 28), 10),
        ("fashion_mnist/test.parquet", "image", "label", (1, 28, 28), 10),
        ("cifar10/train.parquet", "img", "label", (3, 32, 32), 10),
        ("cifar100/train.parquet", "img", "fine_label", (3, 32, 32), 100),
        ("tiny_imagenet/valid.parquet", "image", "label", (3, 64, 64), 200),
        ("femnist/train.parquet", "image", "character", (1, 28, 28), 62),
    ],
)
def test_real_images(tmp_path: Path, name: str, x: str, y: str, shape: tuple[int, ...], classes: int) -> None:
    rows = cut(name, tmp_path / "a.parquet", 150)
    pixels, labels, names = parquet.images(tmp_path / "a.parquet")
    assert pixels.shape == (150, *shape) and len(names) == classes
    assert labels.tolist() == [row[y] for row in rows]
    for row in (0, 149):
        with Image.open(io.BytesIO(rows[row][x]["bytes"])) as image:
            seen = np.asarray(image.convert("RGB" if shape[0] == 3 else "L"))
        assert np.array_equal(pixels[row], seen.transpose(2, 0, 1) if seen.ndim == 3 else seen[None])


def test_real_recordings(tmp_path: Path) -> None:
    rows = cut("speech_commands/test.parquet", tmp_path / "a.parquet", 20)
    x, labels, names, speakers = parquet.audio(tmp_path / "a.parquet")
    assert x.shape == (20, 1, 32, 32) and len(names) == 10 and np.all(x.max(axis=(1, 2, 3)) == 0)
    assert [names[label] for label in labels] == [row["file"].split("/")[0] for row in rows]
    assert speakers == [row["file"].split("/")[1].split("_nohash_")[0] for row in rows]


def test_real_windows(tmp_path: Path) -> None:
    rows = cut("shakespeare/train.parquet", tmp_path / "a.parquet", 3000)
    x, y, roles = parquet.windows(tmp_path / "a.parquet")
    for row in (0, 1500, 2999):
        assert "".join(text.LEAF[code] for code in x[row]) == rows[row]["x"]
        assert text.LEAF[y[row]] == rows[row]["y"] and roles[row] == rows[row]["character_id"]
