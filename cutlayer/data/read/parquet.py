"""Data sets in Parquet files as on the public hub: images, recordings or text with labels and names of owners.

A data set may be in several files, the shards of one table: `paths` is one path or a list of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cutlayer.core.sealed import parsed
from cutlayer.data.read import image, logmel, text, wav
from cutlayer.data.read.common import CLASSES, checked
from cutlayer.data.read.tables import column, encoded, schema, shards, table
from cutlayer.data.rows import Labels, Owners, numbered
from cutlayer.errors import ContractError, expect

__all__ = ["audio", "class_names", "images", "labels", "owners", "shards", "table", "texts", "values", "windows"]

Paths = Path | Sequence[Path]
IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label", "character")


def _each(paths: Paths) -> list[Path]:
    return [paths] if isinstance(paths, Path) else list(paths)


def values(path: Path, name: str, expected: str = CLASSES) -> Labels | list[str]:
    """Read a column of labels: whole numbers and booleans as numbers, strings as names."""
    import pyarrow as pa

    found = column(path, name)
    if pa.types.is_integer(found.type) or pa.types.is_boolean(found.type):
        return np.asarray(found.to_numpy()).astype(np.int64)
    named = pa.types.is_string(found.type) or pa.types.is_large_string(found.type)
    expect(named, f"{path}: column {name}", str(found.type), expected)
    return [str(cell) for cell in found.to_pylist()]


def labels(paths: Paths, name: str, names: bool = False) -> tuple[Labels, tuple[str, ...]]:
    """Read labels from 0 and, if the file has them, class names. `names`: accept strings, numbered in sorted order."""
    parts = {path: values(path, name) for path in _each(paths)}
    said = class_names(next(iter(parts)), name)
    if names and all(isinstance(part, list) for part in parts.values()):
        return numbered(chain.from_iterable(parts.values()))
    checked_parts = []
    for path, part in parts.items():
        if isinstance(part, list):
            raise ContractError(f"{path}: column {name} = 'string': expected a whole number in every row")
        checked_parts.append(checked(path, part, len(said) or None))
    return np.concatenate(checked_parts), said


def class_names(path: Path, name: str) -> tuple[str, ...]:
    """The class names of a label column that the hub has written into the file; none if it has not."""
    try:
        about = parsed((schema(path).metadata or {})[b"huggingface"])
        return tuple(str(known) for known in about["info"]["features"][name]["names"])
    except (KeyError, TypeError, ValueError):
        return ()


def texts(paths: Paths, name: str) -> list[str]:
    """Read a column of names; whole numbers are taken as names, too."""
    found = [values(path, name, "names or whole numbers") for path in _each(paths)]
    return [str(cell) for part in found for cell in (part if isinstance(part, list) else part.tolist())]


def owners(paths: Paths, name: str) -> tuple[Owners, tuple[str, ...]]:
    """Read a column of owners; return the number of every row's owner, and the owners' names in sorted order."""
    return numbered(texts(paths, name))


def images(
    paths: Paths,
    x_column: str | None = None,
    y_column: str | None = None,
    size: int | None = None,
    mode: str | None = None,
    names: bool = False,
) -> tuple[image.Pixels, Labels, tuple[str, ...]]:
    """Read pixels [n, channels, height, width], labels, and class names if known; `size`, `mode`: as in `image`."""
    every = _each(paths)
    there = schema(every[0]).names
    x = x_column or next((known for known in IMAGE_COLUMNS if known in there), None)
    y = y_column or next((known for known in LABEL_COLUMNS if known in there), None)
    if x is None or y is None:
        raise ContractError(f"{every[0]}: columns {there}, expected an image and a label column")
    numbers, classes = labels(every, y, names)
    sources = chain.from_iterable(encoded(path, x, "image") for path in every)
    return image.stack(sources, len(numbers), size, mode), numbers, classes


def audio(paths: Paths) -> tuple[NDArray[np.float32], Labels, tuple[str, ...], list[str]]:
    """Read recordings as log-mel pictures, labels, class names, and the name of the speaker of every row."""
    every = _each(paths)
    numbers, classes = labels(every, "label")
    sources = chain.from_iterable(encoded(path, "audio", "audio") for path in every)
    x = logmel.features((wav.samples(data, where) for where, data in sources), len(numbers))
    return x, numbers, classes, texts(every, "speaker_id")


def windows(paths: Paths, alphabet: str = text.LEAF) -> tuple[NDArray[np.uint8], Labels, list[str]]:
    """Read the codes of windows of text and of the character after each, and the role that speaks in every row."""
    every = _each(paths)
    x, y = (
        np.concatenate([text.encode(_strings(path, name), path, length, alphabet) for path in every])
        for name, length in (("x", text.WINDOW), ("y", 1))
    )
    return x, y[:, 0].astype(np.int64), texts(every, "character_id")


def _strings(path: Path, name: str) -> list[str]:
    found = values(path, name, "text")
    if isinstance(found, list):
        return found
    raise ContractError(f"{path}: column {name} holds numbers, expected text")
