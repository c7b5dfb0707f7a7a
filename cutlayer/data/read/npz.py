"""NPZ files, checked before they are unpacked: their headers must agree with their sizes, and memory must suffice."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cutlayer.data.read import room
from cutlayer.errors import CutlayerError, StoreError

DAMAGE = (OSError, EOFError, MemoryError, ValueError, TypeError, zipfile.BadZipFile, zlib.error, RuntimeError)
WAYS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the compressions that NumPy uses
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
END = ".npy"


def arrays(opened: IO[bytes], names: Sequence[str], where: object) -> tuple[list[str], dict[str, NDArray[Any]]]:
    """Return the names of all arrays in a file, and the arrays named in `names` that are there."""
    try:
        with zipfile.ZipFile(opened) as file:
            members = {member.filename.removesuffix(END): member for member in file.infolist()}
            if len(members) < len(file.infolist()):
                raise ValueError("two arrays of one name in it")
            wanted = {name: members[name] for name in names if name in members}
            room.check(where, sum(member.file_size for member in wanted.values()), _size(opened))
            for member in wanted.values():
                _check(file, member)
            return list(members), {name: np.atleast_1d(_read(file, member)) for name, member in wanted.items()}
    except CutlayerError:
        raise
    except DAMAGE as error:
        raise StoreError(f"{where}: not a readable NPZ file: {error}") from error


def load(path: Path, names: Sequence[str]) -> tuple[list[str], dict[str, NDArray[Any]]]:
    """Do the same as `arrays` with a file given by its path."""
    try:
        opened = path.open("rb")
    except OSError as error:
        raise StoreError(f"{path}: not a readable NPZ file: {error}") from error
    with opened:
        return arrays(opened, names, path)


def _size(opened: IO[bytes]) -> int:
    return opened.seek(0, 2)


def _check(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Refuse an array that NumPy packs differently, that holds objects, or whose header gives another size than the
    directory of the file."""
    name = member.filename.removesuffix(END)
    if member.compress_type not in WAYS:
        raise ValueError(f"{name} is compressed by method {member.compress_type}, expected one that NumPy writes")
    with file.open(member) as stream:
        version = npy.read_magic(stream)
        if version not in HEADERS:
            raise ValueError(f"{name} is of version {version}")
        shape, _, dtype = HEADERS[version](stream)
        size = stream.tell() + math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise ValueError(f"{name} holds objects, expected numbers or text")
    if size != member.file_size:
        raise ValueError(f"{name} of shape {shape} and {dtype} takes {size} bytes, but {member.file_size} are there")


def _read(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with file.open(member) as stream:
        found: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
        if stream.read(1):
            raise ValueError(f"{member.filename} has bytes after its array")
        return found
