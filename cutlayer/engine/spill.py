"""What owners keep between rounds besides the weights: each piece has a version, and may be on disk.

An owned state never changes; a round makes new ones. So a checkpoint writes only the new ones. Memory grows with
the number of clients seen; past a limit, the least recently used states are put on disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from cutlayer.clients.state import Owner
from cutlayer.core.files import persistently
from cutlayer.core.sealed import pack, unpack
from cutlayer.errors import StoreError

OwnedStates = Mapping[Owner, "OwnedState"]


class OwnedState:
    """Named tensors of one owner, as they were after round `version`."""

    def __init__(self, version: int, tensors: Mapping[str, Tensor] | None, path: Path | None = None) -> None:
        self.version, self.used = version, version
        self._tensors, self._path = tensors, path

    def open(self, round: int | None = None) -> Mapping[str, Tensor]:
        """Return the tensors, from memory or from disk; `round`: note that they were used in this round."""
        self.used = self.used if round is None else round
        if self._tensors is not None:
            return self._tensors
        assert self._path is not None
        try:
            return unpack(self._path.read_bytes())[0]
        except StoreError as error:
            raise StoreError(f"{self._path}: {error}") from error

    def bytes(self) -> bytes:
        """Return the content of a file that holds the tensors and a checksum."""
        if self._tensors is None and self._path is not None:
            self.open()  # raises if the file is damaged
            return self._path.read_bytes()
        return pack(self.open())

    @property
    def in_memory(self) -> int:
        """How many bytes it holds in memory."""
        return sum(t.nbytes for t in self._tensors.values()) if self._tensors is not None else 0

    def spill(self, folder: Path) -> None:
        """Put the tensors on disk, in a file that is removed together with this object."""
        content = self.bytes()
        self._tensors, self._path = None, persistently(lambda: _written(folder, content), folder)
        weakref.finalize(self, _remove, self._path)


class SpillCache:
    """Keeps the owned states of a run within a limit of memory (bytes; None: no limit)."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._folder: Path | None = None

    def place(self, folder: Path) -> None:
        """Spill into this folder, emptied first, instead of the system's temporary one."""

        def emptied() -> Path:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            return folder

        self._use(emptied)

    def _use(self, make: Callable[[], Path]) -> None:
        with _SPILLING:  # a folder is made and known at once, or `sweep` would miss it
            self._folder = make()
            _FOLDERS.add(self._folder)
        weakref.finalize(self, _clear, self._folder)

    def trim(self, kept: OwnedStates) -> None:
        """Put owned states on disk, least recently used first, until the rest is within the limit."""
        if self.limit is None:
            return
        sizes = {name: owned.in_memory for name, owned in kept.items()}
        excess = sum(sizes.values()) - self.limit
        for name in sorted(kept, key=lambda name: kept[name].used):
            if excess <= 0:
                break
            if sizes[name]:
                if self._folder is None:
                    self._use(lambda: Path(tempfile.mkdtemp(prefix="cutlayer-")))
                assert self._folder is not None
                kept[name].spill(self._folder)
                excess -= sizes[name]


_FOLDERS: set[Path] = set()  # of all spill caches of this process
_SPILLING = threading.Lock()


def sweep() -> None:
    """Remove the files of all spill caches of this process, which is about to end."""
    _SPILLING.acquire()  # never released, so that no thread makes a folder or spills any more
    for folder in list(_FOLDERS):
        shutil.rmtree(folder, ignore_errors=True)


def _written(folder: Path, content: bytes) -> Path:
    """Write a new file into the folder; leave none where that fails."""
    with _SPILLING:
        handle, name = tempfile.mkstemp(dir=folder, suffix=".safetensors")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
        except OSError:
            _remove(Path(name))
            raise
    return Path(name)


def _clear(folder: Path) -> None:
    _FOLDERS.discard(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
