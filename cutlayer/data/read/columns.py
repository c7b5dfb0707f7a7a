"""Turn a user's arrays into rows: decide which numbers are pixels, codes or features, and read classes and owners."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutlayer.data.read.common import CLASSES, checked
from cutlayer.data.rows import Labels
from cutlayer.errors import ContractError, expect

CHANNELS = (1, 3, 4)


def inputs(x: NDArray[Any], where: object) -> NDArray[Any]:
    """Return inputs in the form of `StoredRows`.

    floats         features [n, ...], as float32; four dimensions are taken for images, see below
    whole numbers  [n, length]: codes or tokens; [n, H, W], [n, H, W, C] or [n, C, H, W] from 0 to 255: pixels

    Channels come last if the last length is 1, 3 or 4; if the first is too, images are taken to be square.
    """
    expect(x.ndim >= 2 and x.size > 0, f"{where}: shape", x.shape, "(rows, numbers of each row, ...)")
    if x.dtype.kind in "fb":
        with np.errstate(over="ignore"):
            return _finite(_channels_first(x).astype(np.float32), where)
    expect(x.dtype.kind in "iu", f"{where}: type", str(x.dtype), "numbers")
    most = 255 if x.ndim > 2 else 2**31 - 1
    if len(wrong := np.argwhere((x < 0) | (x > most))):
        kind = "pixels from 0 to 255, or floats" if x.ndim > 2 else "codes from 0, or floats"
        raise ContractError(f"{where}, row {wrong[0][0]}: {x[tuple(wrong[0])]}, expected {kind}")
    if x.ndim == 2:
        return x.astype(np.uint8 if x.max() <= 255 else np.int32, copy=False)
    expect(x.ndim <= 4, f"{where}: shape", x.shape, "images of two or three dimensions")
    return np.ascontiguousarray(_channels_first(x[:, None] if x.ndim == 3 else x), dtype=np.uint8)


def _channels_first(x: NDArray[Any]) -> NDArray[Any]:
    if x.ndim != 4 or x.shape[3] not in CHANNELS:
        return x
    square_if_first = x.shape[1] in CHANNELS and x.shape[2] == x.shape[3]
    return x if square_if_first and x.shape[1] != x.shape[2] else np.moveaxis(x, 3, 1)


def _finite(x: NDArray[np.float32], where: object) -> NDArray[np.float32]:
    fine = np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if not fine.all():
        raise ContractError(f"{where}, row {np.argmin(fine)}: NaN or infinity, expected finite numbers")
    return np.ascontiguousarray(x)


def labels(y: NDArray[Any], where: object) -> Labels | list[str]:
    """Return classes as numbers from 0, or as names."""
    expect(y.dtype.kind in "biuUS", f"{where}: type", str(y.dtype), CLASSES)
    if y.dtype.kind in "US":
        return names(y, where)
    return checked(where, _flat(y, where).astype(np.int64))


def names(owners: NDArray[Any], where: object) -> list[str]:
    """Return names; whole numbers are taken as names, too."""
    expect(owners.dtype.kind in "iuUS", f"{where}: type", str(owners.dtype), "names or whole numbers")
    flat = _flat(owners, where).tolist()
    return [name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in flat]


def _flat(values: NDArray[Any], where: object) -> NDArray[Any]:
    expect(
        values.shape in ((values.size,), (values.size, 1)), f"{where}: shape", values.shape, "one value for each row"
    )
    return values.reshape(-1)
