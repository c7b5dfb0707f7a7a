"""Tiny-ImageNet as published: a folder of pictures for each class; the validation pictures are the test rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cutlayer.data.read import image
from cutlayer.data.read.common import Raw, bundle, files, lines, place, there
from cutlayer.data.rows import Bundle, Form
from cutlayer.errors import ContractError, expect

KINDS = (".jpeg", ".jpg", ".png")
Labelled = list[tuple[Path, int]]


def _root(folder: Path) -> Path:
    return place(folder, ["tiny-imagenet-200"], ["wnids.txt"])


def _classes(root: Path) -> list[str]:
    """The WordNet ids of the classes in sorted order, in which the classes are numbered from 0."""
    return sorted(line.strip() for line in lines(root / "wnids.txt"))


def _train(root: Path, wnids: list[str]) -> Labelled:
    pictures = []
    for label, wnid in enumerate(wnids):
        own = files(root / "train" / wnid / "images", KINDS)
        expect(len(own) > 0, f"{root / 'train' / wnid / 'images'}: pictures", 0, f"some of class {wnid}")
        pictures += [(path, label) for path in own]
    return pictures


def _validation(root: Path, wnids: list[str]) -> Labelled:
    """The pictures that val_annotations.txt lists: name, class, and a bounding box, which is ignored."""
    pictures, number = [], {wnid: label for label, wnid in enumerate(wnids)}
    path = root / "val" / "val_annotations.txt"
    for row, line in enumerate(lines(path)):
        name, wnid = [*line.split("\t"), ""][:2]
        if wnid not in number or Path(name).name != name:
            raise ContractError(f"{path}, row {row}: {line!r}, expected a file name and a class of wnids.txt")
        pictures.append((root / "val" / "images" / name, number[wnid]))
    return pictures


def _names(root: Path, wnids: list[str]) -> list[str]:
    """The names of the classes from words.txt; without it, their WordNet ids."""
    path = root / "words.txt"
    words = dict(line.split("\t", 1) for line in lines(path) if "\t" in line) if path.is_file() else {}
    return [words.get(wnid, wnid).strip() for wnid in wnids]


def _rows(where: Path, pictures: Labelled) -> Raw:
    x = image.stack(((path, path) for path, _ in pictures), len(pictures), mode="RGB")
    return Raw(where, x, np.array([label for _, label in pictures], dtype=np.int64))


def _files(folder: Path) -> list[Path]:
    root = _root(folder)
    if not (root / "wnids.txt").is_file():
        return []
    texts = there(root / name for name in ("wnids.txt", "words.txt", "val/val_annotations.txt"))
    pictures = [path for wnid in _classes(root) for path in files(root / "train" / wnid / "images", KINDS)]
    return [*texts, *pictures, *files(root / "val" / "images", KINDS)]


def _read(folder: Path) -> Bundle:
    root = _root(folder)
    wnids = _classes(root)
    train = _rows(root / "train", _train(root, wnids))
    return bundle([train, _rows(root / "val", _validation(root, wnids))], _names(root, wnids))


FORM = Form("tiny-imagenet-200/ (wnids.txt, train/, val/)", _files, _read)
