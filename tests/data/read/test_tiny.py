"""Tiny-ImageNet's folder: classes in sorted order, validation pictures as test rows, gray ones made coloured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cutlayer.data.read.tiny import FORM
from cutlayer.errors import ContractError, StoreError
from tests.data.read.test_image import png

WNIDS = ["n02", "n10", "n01"]  # as in the archive, not sorted


def write(root: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    held = {}
    (root / "val" / "images").mkdir(parents=True)
    (root / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (root / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\ttoad\nn99\tother\n")
    for wnid in WNIDS:
        (root / "train" / wnid / "images").mkdir(parents=True)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("x\t0\t0\t1\t1\n")
        for k in range(2):
            shape = (4, 4) if (wnid, k) == ("n01", 0) else (4, 4, 3)  # the first of all is gray
            held[f"{wnid}_{k}.JPEG"] = pixels = rng.integers(0, 256, shape, dtype=np.uint8)
            (root / "train" / wnid / "images" / f"{wnid}_{k}.JPEG").write_bytes(png(pixels))
    for k, _ in enumerate(WNIDS):
        held[f"val_{k}.JPEG"] = pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        (root / "val" / "images" / f"val_{k}.JPEG").write_bytes(png(pixels))
    lines = [f"val_{k}.JPEG\t{wnid}\t0\t0\t62\t62" for k, wnid in enumerate(WNIDS)]
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return {name: p.transpose(2, 0, 1) if p.ndim == 3 else np.repeat(p[None], 3, axis=0) for name, p in held.items()}


@pytest.mark.parametrize("inside", ["", "tiny-imagenet-200"])
def test_pictures_come_in_the_order_of_their_classes(tmp_path: Path, inside: str) -> None:
    assert FORM.files(tmp_path) == []
    held = write(tmp_path / inside)
    bundle = FORM.read(tmp_path)
    names = [f"{wnid}_{k}.JPEG" for wnid in sorted(WNIDS) for k in range(2)]
    assert np.array_equal(bundle.train.x, np.stack([held[name] for name in names]))
    assert bundle.train.y.tolist() == [0, 0, 1, 1, 2, 2]
    assert np.array_equal(bundle.test.x, np.stack([held[f"val_{k}.JPEG"] for k in range(3)]))
    assert bundle.test.y.tolist() == [1, 2, 0]
    assert bundle.class_names == ("goldfish, Carassius", "toad", "n10")
    assert len(FORM.files(tmp_path)) == 3 + 6 + 3
    (tmp_path / inside / "words.txt").unlink()
    assert FORM.read(tmp_path).class_names == ("n01", "n02", "n10")


def test_what_is_wrong_with_the_folder_is_said(tmp_path: Path) -> None:
    write(tmp_path)
    notes = tmp_path / "val" / "val_annotations.txt"
    good = notes.read_text()
    for text, said in [
        ("val_0.JPEG\tn77\t0\n", r"val_annotations\.txt, row 0: 'val_0.JPEG\\tn77\\t0', expected .* a class of wnids"),
        (good + "../x.JPEG\tn01\n", r"val_annotations\.txt, row 3: "),
        ("nothing\n", r"val_annotations\.txt, row 0: 'nothing'"),
        ("val_9.JPEG\tn01\n", r"val_9\.JPEG: not a readable image: .*No such file"),
    ]:
        notes.write_text(text)
        with pytest.raises(ContractError, match=said):
            FORM.read(tmp_path)
    notes.unlink()
    with pytest.raises(StoreError, match=r"val_annotations\.txt: cannot be read"):
        FORM.read(tmp_path)
    notes.write_text(good)
    torn = tmp_path / "train" / "n10" / "images" / "n10_1.JPEG"
    torn.write_bytes(torn.read_bytes()[:50])
    with pytest.raises(ContractError, match=r"n10_1\.JPEG: not a readable image"):
        FORM.read(tmp_path)
    torn.write_bytes(png(np.zeros((4, 5), dtype=np.uint8)))
    with pytest.raises(ContractError, match=r"n10_1\.JPEG: 4x5 pixels, expected 4x4 as in .*n01_0\.JPEG"):
        FORM.read(tmp_path)
    (tmp_path / "wnids.txt").write_text("\n".join([*WNIDS, "n55"]))
    with pytest.raises(ContractError, match=r"n55.images: pictures = 0: expected some of class n55"):
        FORM.read(tmp_path)
