"""One file per client: ROOT/hospital-a.npz, ROOT/hospital-b.npz, or such files in ROOT/train and ROOT/test."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np

from cutlayer.data.read import arrays
from cutlayer.data.read.common import Raw, alike, bundle, files
from cutlayer.data.read.folders import sides
from cutlayer.data.rows import Bundle, Form
from cutlayer.errors import ContractError, expect


def form(x: str = "x", y: str = "y", size: int | None = None) -> Form:
    """The form of NPZ or Parquet files with `x` and `y`, one per client; the file's name is the owner of its rows."""

    def listed(folder: Path) -> list[Path]:
        return [path for side in sides(folder) for path in files(side, arrays.SUFFIXES)]

    def read(folder: Path) -> Bundle:
        return bundle([_side(side, x, y, size) for side in sides(folder)])

    return Form(f"CLIENT.npz or CLIENT.parquet, with {x} and {y}, if need be under train/ and test/", listed, read)


def _side(folder: Path, x: str, y: str, size: int | None) -> Raw:
    paths = files(folder, arrays.SUFFIXES)
    expect(len(paths) > 0, f"{folder}: client files", 0, "at least one")
    parts = alike([arrays.raw(path, x, y, None, size) for path in paths])
    if len({path.stem for path in paths}) < len(paths):
        raise ContractError(f"{folder}: two files for one client")
    labels = [part.y for part in parts]
    joined = np.concatenate(labels) if isinstance(labels[0], np.ndarray) else list(chain.from_iterable(labels))
    owners = [path.stem for path, part in zip(paths, parts, strict=True) for _ in range(len(part.y))]
    return Raw(folder, np.concatenate([part.x for part in parts]), joined, owners)
