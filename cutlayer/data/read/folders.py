"""Images in folders: one per class, or one per client with a folder per class inside.

    ROOT/CLASS/*.png           ROOT/CLIENT/CLASS/*.png
    ROOT/train/CLASS/*.png     ROOT/train/CLIENT/CLASS/*.png      and ROOT/test, or valid, or val, beside train

Classes and clients are numbered in sorted order. Hidden files and files of other kinds are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cutlayer.data.read import image
from cutlayer.data.read.common import Raw, bundle, visible
from cutlayer.data.rows import Bundle, Form
from cutlayer.errors import ContractError, unknown

LAYOUTS = {"class": 2, "client": 3}  # depth of the images below the root
TESTS = ("test", "valid", "val", "validation")


def form(size: int | None = None, layout: str = "auto") -> Form:
    """The form of images by class or by client; `auto`: by their depth. `size`: resize them to size x size."""
    if layout != "auto" and layout not in LAYOUTS:
        raise unknown("layout", layout, ["auto", *LAYOUTS])
    what = {"class": "CLASS/*.png", "client": "CLIENT/CLASS/*.png", "auto": "CLASS/*.png or CLIENT/CLASS/*.png"}

    def files(folder: Path) -> list[Path]:
        return [path for side in sides(folder) for path in _images(side)]

    def read(folder: Path) -> Bundle:
        depth = _depth(sides(folder)[0], layout)
        return bundle([_side(side, depth, size) for side in sides(folder)])

    return Form(f"{what[layout]}, if need be under train/ and test/", files, read)


def sides(folder: Path) -> list[Path]:
    """The folders of training and test rows: `train` and the first of TESTS if there are no others, else the root."""
    names = {entry.name for entry in visible(folder) if entry.is_dir()}
    if "train" not in names or names - {"train", *TESTS}:
        return [folder]
    return [folder / "train", *[folder / name for name in TESTS if name in names][:1]]


def by_client(folder: Path) -> bool:
    """Whether the first image is in a client's folder."""
    train = sides(folder)[0]
    first = next(_images(train), None)
    return first is not None and len(first.relative_to(train).parts) == LAYOUTS["client"]


def _images(folder: Path, depth: int = 5) -> Iterator[Path]:
    for entry in visible(folder):
        if entry.is_dir():
            yield from _images(entry, depth - 1) if depth else ()
        elif entry.suffix.lower() in image.SUFFIXES:
            yield entry


def _depth(folder: Path, layout: str) -> int:
    """Return the depth of the layout, or for `auto` that of the first image; refuse a depth that no layout has."""
    first = next(_images(folder), None)
    if first is None:
        raise ContractError(f"{folder}: no images ({' '.join(image.SUFFIXES)})")
    depth = LAYOUTS.get(layout) or len(first.relative_to(folder).parts)
    if depth not in LAYOUTS.values():
        raise ContractError(f"{first}: expected images in {folder}/CLASS or {folder}/CLIENT/CLASS")
    return depth


def _side(folder: Path, depth: int, size: int | None) -> Raw:
    paths = list(_images(folder))
    expected = folder / ("CLASS" if depth == LAYOUTS["class"] else "CLIENT/CLASS")
    for path in paths:
        if len(path.relative_to(folder).parts) != depth:
            raise ContractError(f"{path}: expected images in {expected} only")
    _no_empty(folder, depth - 1, {path.parent for path in paths})
    x = image.stack(((path, path) for path in paths), len(paths), size)
    clients = [path.parent.parent.name for path in paths] if depth == LAYOUTS["client"] else None
    return Raw(folder, x, [path.parent.name for path in paths], clients)


def _no_empty(folder: Path, depth: int, full: set[Path]) -> None:
    """Refuse a class folder without images, and a client folder without class folders."""
    inside = [entry for entry in visible(folder) if entry.is_dir()]
    if depth and not inside:
        raise ContractError(f"{folder}: a folder without class folders")
    for entry in inside if depth else ():
        if depth > 1:
            _no_empty(entry, depth - 1, full)
        elif entry not in full:
            raise ContractError(f"{entry}: a class folder without images")
