"""LEAF's data sets as its scripts write them: JSON files with users, who own their rows.

femnist      28x28 pixels in [0, 1]: bytes if they are whole 255ths, else float32
shakespeare  windows of 80 characters and the one that follows
celeba       names of pictures, which are in raw/img_align_celeba, resized to 84x84; smiling or not
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutlayer.data.read import image, text
from cutlayer.data.read.common import Raw, bundle, files
from cutlayer.data.read.leaf_json import User, sides, users
from cutlayer.data.read.leaf_rows import PICTURES, classes, decoded, faces, following, handwriting, pictures, windows
from cutlayer.data.rows import Bundle, Form, Labels
from cutlayer.errors import ContractError, unknown

GAP = 79  # windows between training and test that LEAF leaves out of Shakespeare but counts in num_samples


def form(name: str) -> Form:
    """The form of one of LEAF's data sets."""
    if name not in KINDS:
        raise unknown("LEAF data set", name, KINDS)
    kind = KINDS[name]

    def listed(folder: Path) -> list[Path]:
        found = [path for side in sides(folder) for path in side]
        where = pictures(folder) if kind.besides and found else None
        return found if where is None else [*found, *files(where, image.SUFFIXES)]

    def read(folder: Path) -> Bundle:
        return bundle(_alike([_rows(folder, side, kind) for side in sides(folder)]), kind.classes)

    return Form(f"train/*.json and test/*.json, or all_data/*.json, of LEAF's {name}{kind.besides}", listed, read)


@dataclass(frozen=True)
class _Kind:
    """How a user's rows are read, and how those of all users are joined."""

    x: Callable[[Path, User], Any]
    y: Callable[[User], Labels]
    join: Callable[[list[Any]], NDArray[Any]]
    classes: tuple[str, ...]
    besides: str = ""
    gap: int = 0


def _rows(folder: Path, paths: list[Path], kind: _Kind) -> Raw:
    xs, ys, owners = [], [], []
    for path in paths:
        for user in users(path, kind.gap):
            xs.append(kind.x(folder, user))
            ys.append(kind.y(user))
            owners += [user.name] * len(user.y)
    if not xs:
        raise ContractError(f"{paths[0]}: no user has rows")
    return Raw(paths[0].parent, kind.join(xs), np.concatenate(ys), owners)


def _alike(rows: list[Raw]) -> list[Raw]:
    x = _one_kind([side.x for side in rows])
    return [Raw(side.where, each, side.y, side.owners) for side, each in zip(rows, x, strict=True)]


def _one_kind(parts: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the parts as bytes if all are bytes, otherwise as float32."""
    if len({part.dtype for part in parts}) == 1:
        return parts
    return [part if part.dtype == np.float32 else (part / 255).astype(np.float32) for part in parts]


KINDS = {
    "femnist": _Kind(
        handwriting,
        classes(62),
        lambda parts: np.concatenate(_one_kind(parts)).reshape(-1, 1, 28, 28),
        (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase),
    ),
    "shakespeare": _Kind(windows, following, np.concatenate, tuple(text.LEAF), gap=GAP),
    "celeba": _Kind(faces, classes(2), decoded, ("not smiling", "smiling"), f", and {PICTURES[0]}/"),
}
