"""Columns of Parquet files, without empty cells, and the shards of a data set."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutlayer.data.read import room
from cutlayer.data.read.common import files
from cutlayer.errors import ContractError, StoreError, expect

AT_ONCE = 1024  # rows read at a time
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}  # bytes of a value; other types take at least 8


def shards(folder: Path, split: str) -> list[Path]:
    """Find SPLIT.parquet, or all of SPLIT-00000-of-00002.parquet ..., in the folder or in its `data`."""
    named = re.compile(rf"{re.escape(split)}-(\d+)-of-(\d+)(-\w+)?\.parquet")
    for spot in (folder, folder / "data"):
        if (spot / f"{split}.parquet").is_file():
            return [spot / f"{split}.parquet"]
        matches = [(path, match) for path in files(spot, [".parquet"]) if (match := named.fullmatch(path.name))]
        found = sorted((int(match[1]), path, int(match[2])) for path, match in matches)
        if found:
            numbers, paths, totals = (list(part) for part in zip(*found, strict=True))
            if numbers != list(range(len(found))) or set(totals) != {len(found)}:
                raise StoreError(f"{spot}: shards {numbers} of {split!r}, expected 0..{totals[0] - 1}, each once")
            return paths
    return []


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a Parquet file; raise a StoreError where it cannot be read."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (OSError, pyarrow.ArrowException) as error:
        raise StoreError(f"{path}: not a readable Parquet file: {error}") from error


def table(path: Path, columns: Sequence[str] | None = None) -> Any:
    """Read a file, or some of its columns, as a pyarrow table."""
    with opened(path) as file:
        room.check(path, _unpacked(file, columns), path.stat().st_size)
        return file.read(columns)


def _unpacked(file: Any, columns: Sequence[str] | None) -> int:
    """The bytes that some columns take in memory, as far as the file's metadata tell."""
    about = file.metadata
    names = [about.schema.column(k).path.split(".")[0] for k in range(about.num_columns)]
    chosen = [k for k, name in enumerate(names) if columns is None or name in columns]
    chunks = (about.row_group(group).column(k) for group in range(about.num_row_groups) for k in chosen)
    return sum(max(c.total_uncompressed_size, c.num_values * WIDTHS.get(c.physical_type, 8)) for c in chunks)


def schema(path: Path, *expected: str) -> Any:
    """Return the names and types of a file's columns; refuse a file without each of those expected exactly once."""
    with opened(path) as file:
        there = file.schema_arrow
    for name in expected:
        if there.names.count(name) != 1:
            once = "among them" if name not in there.names else "once among them"
            raise ContractError(f"{path}: columns {there.names}, expected {name!r} {once}")
    return there


def column(path: Path, name: str) -> Any:
    """Read one whole column; refuse empty cells."""
    kind = schema(path, name).field(name).type
    values = _text(path, name) if _is_text(kind) else table(path, [name]).column(0)
    if values.null_count:
        row = int(np.argmax(values.is_null().to_numpy()))
        raise ContractError(f"{path}, row {row}: an empty cell, expected a {name}")
    return values.cast(values.type.value_type) if str(values.type).startswith("dictionary") else values


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(fits(inner) for fits in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary))


def _text(path: Path, name: str) -> Any:
    """Read a column of text and check its size a few rows at a time: the metadata count a repeated text only once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts, size, packed = [], 0, path.stat().st_size
    with opened(path) as file:
        room.check(path, _unpacked(file, [name]), packed)
        kind = file.schema_arrow.field(name).type
        for batch in file.iter_batches(AT_ONCE, columns=[name]):
            part = batch.column(0)
            if pa.types.is_dictionary(kind):
                size += pc.sum(pc.binary_length(part.dictionary).take(part.indices)).as_py() or 0
            else:
                size += part.nbytes
            room.check(f"{path}: column {name}", size, packed)
            parts.append(part)
    return pa.chunked_array(parts, kind)


def cells(path: Path, name: str) -> Iterator[tuple[str, Any]]:
    """Yield a column's cells, each with what errors call it; empty ones are None. AT_ONCE rows are read at a time."""
    schema(path, name)
    row = 0
    with opened(path) as file:
        room.likely(f"{path}: column {name}", _unpacked(file, [name]), path.stat().st_size)
        for batch in file.iter_batches(AT_ONCE, columns=[name]):
            for cell in batch.column(0).to_pylist():
                yield f"{path}, row {row}", cell
                row += 1


def encoded(path: Path, name: str, what: str) -> Iterator[tuple[str, bytes]]:
    """Yield a column of encoded images or sounds: bytes, or the hub's pairs of bytes and path."""
    import pyarrow as pa

    kind = schema(path, name).field(name).type
    pairs = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    inner = kind.field("bytes").type if pairs else kind
    fits = pa.types.is_binary(inner) or pa.types.is_large_binary(inner)
    expect(fits, f"{path}: column {name}", str(kind), f"the bytes of {what} files")
    for where, cell in cells(path, name):
        data = cell["bytes"] if pairs and cell is not None else cell
        if data is None:
            raise ContractError(f"{where}: an empty cell, expected the bytes of an {what} file")
        yield where, data


def numbers(path: Path, name: str) -> NDArray[Any]:
    """Read a column of numbers [n], or of equally long lists of them [n, length]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = column(path, name)
    kind = found.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return _numbers(path, name, found)
    lengths = pc.list_value_length(found).to_numpy()
    length = int(lengths[0]) if len(lengths) else 0
    if len(odd := np.flatnonzero(lengths != length)):
        raise ContractError(f"{path}, row {odd[0]}: {lengths[odd[0]]} numbers in {name}, expected {length} as in row 0")
    flat = pc.list_flatten(found)
    if flat.null_count:
        row = int(np.argmax(flat.is_null().to_numpy())) // length
        raise ContractError(f"{path}, row {row}: an empty cell within {name}, expected a number")
    return _numbers(path, name, flat).reshape(len(found), length)


def _numbers(path: Path, name: str, found: Any) -> NDArray[Any]:
    import pyarrow as pa

    kind = found.type
    fits = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    expect(fits, f"{path}: column {name}", str(kind), "numbers, or lists of numbers")
    return np.asarray(found.to_numpy())
