"""Rows that a function of the user's returns: a task by import path, or from an installed package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cutlayer.data.batch import CHUNK
from cutlayer.data.dataset import Dataset
from cutlayer.data.mapped import is_mapped
from cutlayer.data.own import classes_of, seen_as
from cutlayer.data.rows import StoredRows, none_of, numbered
from cutlayer.errors import ContractError, expect

KEYS = ("x", "y", "owners", "x_test", "y_test", "owners_test", "class_names")
FORMS = f"(x, y), ((x, y), (x_test, y_test)), or a dictionary with some of {', '.join(KEYS)}"


def load(name: str, maker: Callable[[], Any]) -> Dataset:
    """Call a task's function and return its rows as a data set."""
    where = f"task {name!r}"
    try:
        given = _by_name(maker())
    except Exception as error:  # a user's function may raise anything
        raise ContractError(f"{where}: {type(error).__name__}: {error}") from error
    if given is None or not {"x", "y"} <= given.keys() <= set(KEYS):
        got = "something else" if given is None else f"a dictionary with {', '.join(map(str, given))}"
        raise ContractError(f"{where}: it returned {got}; expected {FORMS}")
    train = _rows(where, given["x"], given["y"], given.get("owners"))
    expect(len(train) > 0, where, 0, "at least one row")
    test = none_of(train)
    if given.get("x_test") is not None:
        test = _rows(f"{where}, test", given["x_test"], given.get("y_test"), given.get("owners_test"))
        expect(test.x.shape[1:] == train.x.shape[1:], f"{where}: test rows", test.x.shape[1:], str(train.x.shape[1:]))
    names = tuple(str(one) for one in given.get("class_names", ()))
    how = seen_as(train)
    return Dataset(train, test, len(names) or classes_of(f"{where}: largest label", train, test), how, how, None, names)


def _by_name(given: Any) -> dict[str, Any] | None:
    """Return what a function returned as a dictionary, or None if it is nothing that we know."""
    if isinstance(given, Dataset):
        train, test = given.train, given.test
        return {"x": train.x, "y": train.y, "x_test": test.x if len(test) else None, "y_test": test.y}
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, tuple | list) or len(given) != 2:
        return None
    if all(isinstance(half, tuple | list) and len(half) == 2 for half in given):
        (x, y), (x_test, y_test) = given
        return {"x": x, "y": y, "x_test": x_test, "y_test": y_test}
    return {"x": given[0], "y": given[1]}


def _rows(where: str, x: Any, y: Any, owners: Any) -> StoredRows:
    try:
        inputs, labels = np.asarray(x), np.asarray(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ContractError(f"{where}: x and y must be arrays: {error}") from error
    kinds = (inputs.dtype.kind, labels.dtype.kind)
    expect(kinds[0] in "fiu" and inputs.ndim >= 2, f"{where}: x", f"{inputs.dtype} {inputs.shape}", "rows of numbers")
    expect(kinds[1] in "iu" and labels.ndim == 1, f"{where}: y", f"{labels.dtype} {labels.shape}", "classes from 0")
    expect(bool((labels >= 0).all()), f"{where}: y", int(labels.min(initial=0)), "classes from 0")
    if kinds[0] == "f":
        if not is_mapped(inputs):  # those of a file stay there; their type is converted when they are taken
            inputs = inputs.astype(np.float32, copy=False)
        pieces = (inputs[start : start + CHUNK] for start in range(0, len(inputs), CHUNK))
        expect(
            all(bool(np.isfinite(piece).all()) for piece in pieces), f"{where}: x", "NaN or infinity", "finite numbers"
        )
    codes, names = (None, ()) if owners is None else numbered(map(str, owners))
    return StoredRows(inputs, labels.astype(np.int64), codes, names)
