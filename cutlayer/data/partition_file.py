"""Partitions as files: who holds which rows, so that others can train on exactly the same parts.

    parts.json   {"rows": 50000, "clients": [[4, 17, ...], ...], "tests": [[...], ...]}      rows, tests: optional
    parts.npz    the same as arrays: rows, order, ends, and test_order, test_ends

`partition_forms` says in which forms of other tools they are read, too.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cutlayer.core.files import as_path, reached, write_aside
from cutlayer.data.partition_forms import FL_BENCH, PARQUET, parse
from cutlayer.data.parts import Parts
from cutlayer.data.rows import Labels, Owners
from cutlayer.errors import ContractError, StoreError, expect

TOGETHER = f"; {FL_BENCH} numbers training and test rows together, as --protocol cyclesl does"


@dataclass(frozen=True)
class FromFile:
    """Parts read from a file; `cutlayer partition --parts parts.json` writes one."""

    path: str = ""

    def __post_init__(self) -> None:
        expect(bool(self.path), "path", self.path, "a partition file")
        as_path("path", self.path)

    def __call__(
        self, labels: Labels, clients: int | None, rng: np.random.Generator, owners: Owners | None = None
    ) -> Parts:
        parts = read(Path(self.path), len(labels))
        if clients is not None:
            expect(clients == len(parts), "clients", clients, f"{len(parts)}, as in {self.path}, or none given")
        return parts


def check_name(path: Path) -> None:
    """Refuse a name that does not say which kind of file it is."""
    if path.suffix not in (".json", ".npz"):
        raise ContractError(f"partition file {path}: expected a name that ends with .json or .npz")


def write(path: Path, parts: Parts, rows: int | None) -> None:
    """Write parts to a JSON or NPZ file, depending on its suffix. `rows`: how many were divided, if known."""
    check_name(path)
    if path.suffix == ".json":
        held: dict[str, Any] = {} if rows is None else {"rows": rows}
        held["clients"] = [part.tolist() for part in parts]
        if parts.tests is not None:
            held["tests"] = [part.tolist() for part in parts.tests]
        write_aside(path, json.dumps(held).encode())
    else:
        arrays = {"order": parts.order, "ends": parts.ends}
        if rows is not None:
            arrays["rows"] = np.array(rows)
        if parts.tests is not None:
            arrays |= {"test_order": parts.tests.order, "test_ends": parts.tests.ends}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        write_aside(path, buffer.getvalue())


def read(path: Path, rows: int | None = None) -> Parts:
    """Read the parts from a file; `rows`: the number of rows of the data, which the file must fit."""
    path = as_path("path", path)
    with reached(f"partition file {path}: cannot be read"), path.open("rb") as file:
        data = file.read(len(PARQUET))
        data += b"" if data == PARQUET else file.read()  # a Parquet file may hold a whole data set
    try:
        parts = parse(path, data)
    except (StoreError, ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise StoreError(f"partition file {path}: not a partition: {error}") from error
    if rows is not None and parts.rows is not None:
        expect(parts.rows == rows, f"partition file {path}: rows", parts.rows, f"{rows}, as many as the data have")
    _check(path, parts, parts.rows if rows is None else rows)
    return parts


def _check(path: Path, parts: Parts, rows: int | None) -> None:
    expect(len(parts) > 0, f"partition file {path}: clients", 0, "at least one")
    ends = parts.ends
    empty = np.flatnonzero(np.diff(ends, prepend=0) == 0)
    if len(empty):
        raise ContractError(f"partition file {path}: client {empty[0]} has no rows; expected at least one for each")
    for named in (parts, *([parts.tests] if parts.tests is not None else [])):
        expect(len(named) == len(parts), f"partition file {path}: tests", len(named), f"{len(parts)}, one per client")
        if np.any(np.diff(named.ends, prepend=0) < 0) or named.ends[-1] != len(named.order):
            raise StoreError(f"partition file {path}: not a partition: its ends do not fit its rows")
        if not len(named.order):
            continue
        low, high = int(named.order.min()), int(named.order.max())
        most = f"0..{rows - 1}, the rows the data have" if rows is not None else "no negative row"
        most += TOGETHER if rows is not None and parts.origin.startswith(FL_BENCH) else ""
        fits = low >= 0 and (rows is None or high < rows)
        expect(fits, f"partition file {path}: rows", f"{low}..{high}", most)
    _once(path, parts)


def _once(path: Path, parts: Parts) -> None:
    """Refuse a client that holds a row twice, or is tested on a row it trains on; several clients may hold one row."""
    every = [parts, *([parts.tests] if parts.tests is not None else [])]
    most = max(int(named.order.max(initial=0)) for named in every) + 1
    held = np.concatenate([np.repeat(np.arange(len(named)), named.sizes) * most + named.order for named in every])
    unique, counts = np.unique(held, return_counts=True)
    if len(twice := unique[counts > 1]):
        client, row = divmod(int(twice[0]), most)
        raise ContractError(
            f"partition file {path}: client {client} has row {row} twice; expected once, or for its test"
        )
