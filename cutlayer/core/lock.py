"""A lock that lets only one process at a time train in a folder."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from cutlayer.errors import StoreError


class Lock:
    """A folder locked by this process, until the lock is closed or deleted or the process ends, even by a crash."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise StoreError(f"{folder}: no such folder")
        self._lock = FileLock(folder / ".lock", thread_local=False)  # any thread may close it
        try:
            self._lock.acquire(blocking=False)
        except Timeout as error:
            if not (folder / ".lock").exists():  # no file can be created there, such as in /proc
                raise StoreError(f"{folder}: cannot be locked: nothing can be written there") from error
            raise StoreError(f"{folder}: another process is training here") from error
        except OSError as error:
            raise StoreError(f"{folder}: cannot be locked: {error.strerror or error}") from error

    def close(self) -> None:
        self._lock.release(force=True)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
