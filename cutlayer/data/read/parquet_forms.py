"""The public hub's Parquet files as forms: train.parquet and test.parquet, or their shards, in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cutlayer.data.read import parquet, text
from cutlayer.data.read.common import Raw, bundle
from cutlayer.data.read.tables import shards
from cutlayer.data.rows import Bundle, Form

Side = Callable[[list[Path]], tuple[Raw, tuple[str, ...]]]


def images(
    x: str | None = None,
    y: str | None = None,
    owner: str | None = None,
    test: str | None = "test",
    size: int | None = None,
    mode: str | None = None,
) -> Form:
    """Images with labels; `owner`: the column of owners; `test`: the split of the test rows, None if there are none."""

    def side(paths: list[Path]) -> tuple[Raw, tuple[str, ...]]:
        pixels, labels, names = parquet.images(paths, x, y, size, mode)
        return Raw(paths[0], pixels, labels, parquet.texts(paths, owner) if owner else None), names

    return _form(side, test)


def recordings(test: str | None = "test") -> Form:
    """Speech as log-mel pictures; the speakers are owners."""

    def side(paths: list[Path]) -> tuple[Raw, tuple[str, ...]]:
        pictures, labels, names, speakers = parquet.audio(paths)
        return Raw(paths[0], pictures, labels, speakers), names

    return _form(side, test)


def windows(test: str | None = None) -> Form:
    """Windows of text and the character after each; the roles are owners."""

    def side(paths: list[Path]) -> tuple[Raw, tuple[str, ...]]:
        return Raw(paths[0], *parquet.windows(paths)), tuple(text.LEAF)

    return _form(side, test)


def _form(side: Side, test: str | None) -> Form:
    splits = ("train",) if test is None else ("train", test)

    def files(folder: Path) -> list[Path]:
        found = [shards(folder, split) for split in splits]
        return [path for part in found for path in part] if all(found) else []

    def read(folder: Path) -> Bundle:
        rows, names = zip(*(side(shards(folder, split)) for split in splits), strict=True)
        return bundle(rows, names[0])

    return Form(" and ".join(f"{split}.parquet" for split in splits) + ", whole or in shards", files, read)
