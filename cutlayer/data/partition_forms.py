"""The forms in which tools save partitions, told apart by content, whatever the file is called.

    cutlayer    an object with `clients`, `tests` and `rows`, as JSON; the same as arrays, as NPZ
    Flower      partition id -> rows, as JSON or as a pickle; or a Parquet file with a column `partition_id`
    FL-bench    `data_indices`, a pickle: the train, val and test rows of each client
    others      a list of rows for each client, or an object of client -> rows, as JSON or as a pickle

Pickles are read as plain data: nothing in them is run.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cutlayer.core.sealed import parsed
from cutlayer.data.partition import by_owner
from cutlayer.data.parts import Parts
from cutlayer.data.read import npz, parquet, plain_pickle
from cutlayer.data.schedule import Indices
from cutlayer.errors import is_whole

ARRAYS = ("rows", "order", "ends", "test_order", "test_ends")
PICKLED = (b"\x80", b"(", b"]", b"}")  # how a pickle of a list or a dict begins, in any protocol
PARQUET = b"PAR1"
OWNER = "partition_id"  # the column in which Flower keeps whose a row is
FLOWER, FL_BENCH = "Flower", "FL-bench"


def parse(path: Path, data: bytes) -> Parts:
    """Return the parts in a file, unchecked; raise a ValueError, among others, where it holds none.

    `data`: all its bytes, or no more than PARQUET where it begins with that.
    """
    if data == PARQUET:
        return _owned(parquet.values(path, OWNER, "whole numbers or names"))
    if data[:2] == b"PK":
        return _arrays(data, path.name)
    if data.lstrip()[:1] in (b"[", b"{"):
        return _plain(parsed(data))
    if data[:1] in PICKLED:
        return _plain(plain_pickle.loads(data, path.name))
    raise ValueError("expected JSON, NPZ, Parquet or a pickle that says who holds which rows")


def _arrays(data: bytes, name: str) -> Parts:
    _, file = npz.arrays(io.BytesIO(data), ARRAYS, name)
    for needed in ("order", "ends"):
        if needed not in file:
            raise ValueError(f"no array {needed!r} in it")
    tests = Parts(_rows(file["test_order"]), _rows(file["test_ends"])) if "test_order" in file else None
    rows = int(file["rows"].item()) if "rows" in file else None
    return Parts(_rows(file["order"]), _rows(file["ends"]), tests, rows, "cutlayer")


def _plain(held: Any) -> Parts:
    """Return the parts that lists, dicts and arrays describe."""
    if not isinstance(held, Mapping):
        return Parts.of(map(_rows, _several("a partition", held)), origin="a list of rows per client")
    if "clients" in held:
        rows = held.get("rows")
        if rows is not None and not is_whole(rows):
            raise ValueError(f"rows = {rows!r}: expected how many rows the data have")
        tests = Parts.of(map(_rows, _several("tests", held["tests"]))) if "tests" in held else None
        return Parts.of(map(_rows, _several("clients", held["clients"])), tests, rows, "cutlayer")
    if "data_indices" in held or "separation" in held:
        return _fl_bench(held)
    ids, several = _in_order(held)
    return Parts.of(map(_rows, several), origin=FLOWER if ids else "rows by client's name")


def _fl_bench(held: Mapping[Any, Any]) -> Parts:
    if "data_indices" not in held:
        raise ValueError("'data_indices' is missing, where FL-bench keeps each client's rows")
    each = held["data_indices"]
    several = _in_order(each)[1] if isinstance(each, Mapping) else _several("data_indices", each)
    for j, client in enumerate(several):
        missing = [side for side in ("train", "test") if not isinstance(client, Mapping) or side not in client]
        if missing:
            raise ValueError(f"data_indices[{j}] has no {missing[0]!r}: expected a client's train and test rows")
        if not len(client["train"]):
            raise ValueError(f"client {j} never trains, as with FL-bench's --split user: expected --split sample")
    left = any(len(client.get("val", ())) for client in several)
    tests = Parts.of(_rows(client["test"]) for client in several)
    origin = f"{FL_BENCH}, without its rows for validation" if left else FL_BENCH
    return Parts.of((_rows(client["train"]) for client in several), tests, None, origin)


def _owned(column: Indices | list[str]) -> Parts:
    """Return the parts that a column describes: for each row, whose it is."""
    names, codes = np.unique(np.asarray(column), return_inverse=True)
    held = dict(zip(names.tolist(), by_owner(codes), strict=True))
    return Parts.of(_in_order(held)[1], None, len(column), f"{FLOWER}, column {OWNER}")


def _in_order(held: Mapping[Any, Any]) -> tuple[bool, Sequence[Any]]:
    """Return whether clients have numbers, and what each holds: by number, or else as they come.

    JSON has only strings as keys, and some writers sort them: "10" comes before "2" then.
    """
    if not all(re.fullmatch("[0-9]+", str(key)) for key in held):
        return False, list(held.values())
    numbered = {int(str(key)): value for key, value in held.items()}
    for j in range(len(held)):
        if j not in numbered:
            raise ValueError(f"client {j} is missing: expected 0..{len(held) - 1}, each once")
    return True, [numbered[j] for j in range(len(held))]


def _several(what: str, given: Any) -> Sequence[Any]:
    if not isinstance(given, list | tuple):
        raise ValueError(f"{what} of type {type(given).__name__}: expected a list with one item for each client")
    return given


def _rows(given: Any) -> Indices:
    rows = np.asarray(given)
    if rows.size == 0:
        return np.empty(0, dtype=np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise ValueError(f"{str(given)[:60]}: expected a list of row numbers for each client")
    return rows.astype(np.int64)
