"""Rows as LEAF writes them: pixels as numbers, windows of text, names of pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutlayer.data.read import image, text
from cutlayer.data.read.common import listed
from cutlayer.data.read.leaf_json import User
from cutlayer.data.rows import Labels
from cutlayer.errors import ContractError, StoreError

CELEBA_SIZE = 84
PIXELS = 28 * 28
TOLERANCE = 1e-6  # of a pixel: a 255th written as float32 is closer than this
PICTURES = ("raw/img_align_celeba", "img_align_celeba", "data/raw/img_align_celeba", "data/img_align_celeba")


def classes(count: int) -> Callable[[User], Labels]:
    """Return a reader of labels that are whole numbers below `count`."""

    def read(user: User) -> Labels:
        return listed(user.where, user.y, count)

    return read


def following(user: User) -> Labels:
    """The code of the character after each window."""
    return text.encode(_strings(user, user.y), user.where, 1)[:, 0].astype(np.int64)


def handwriting(folder: Path, user: User) -> NDArray[Any]:
    """The pixels of each handwritten character, from a list of 784 numbers."""
    x = np.empty((len(user.x), PIXELS))
    for row, pixels in enumerate(user.x):
        try:
            x[row] = pixels if isinstance(pixels, list) and len(pixels) == PIXELS else None
        except (ValueError, TypeError):
            x[row] = np.nan
    fine = np.isfinite(x).all(axis=1)
    if not fine.all():
        raise ContractError(f"{user.where}, row {np.argmin(fine)}: expected {PIXELS} numbers")
    whole = np.rint(x * 255)
    exact = x.min() >= 0 and x.max() <= 1 and np.abs(x - whole / 255).max() <= TOLERANCE
    return whole.astype(np.uint8) if exact else x.astype(np.float32)


def windows(folder: Path, user: User) -> NDArray[Any]:
    """The codes of each window of 80 characters."""
    return text.encode(_strings(user, user.x), user.where, text.WINDOW)


def _strings(user: User, given: list[Any]) -> list[str]:
    for row, cell in enumerate(given):
        if not isinstance(cell, str):
            raise ContractError(f"{user.where}, row {row}: {cell!r}, expected text")
    return given


def faces(folder: Path, user: User) -> list[tuple[str, Path]]:
    """The paths of a user's pictures; they are decoded once those of all users are known."""
    place = pictures(folder)
    if place is None:
        raise StoreError(f"{folder}: no folder {PICTURES[0]} with the pictures")
    for row, name in enumerate(_strings(user, user.x)):
        if Path(name).name != name:
            raise ContractError(f"{user.where}, row {row}: {name!r}, expected the name of a picture")
    return [(f"{user.where}, row {row}", place / name) for row, name in enumerate(user.x)]


def pictures(folder: Path) -> Path | None:
    """The folder of CelebA's pictures; None if there is none."""
    return next((folder / name for name in PICTURES if (folder / name).is_dir()), None)


def decoded(faces: list[list[tuple[str, Path]]]) -> NDArray[Any]:
    """Decode the pictures of all users."""
    flat = [face for own in faces for face in own]
    return image.stack(flat, len(flat), CELEBA_SIZE, "RGB")
