"""Everything that is done to the files below a folder, watched: each write may be stopped, torn or held up.

The functions of `os` and `io` are replaced for as long as it lasts, in this process. What is done elsewhere, and
whatever only reads, goes through untouched.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

Before = Callable[[str, Path], int | None]
"""Called with what is about to be done, and to which file. It may raise: then it is not done. For a "write" it may
return a number of bytes: they are written, and then it is asked again, as "torn"."""
REAL = {name: getattr(os, name) for name in ("fsync", "replace", "mkdir", "unlink", "rmdir", "open")}


@contextmanager
def watched(folder: Path, before: Before) -> Iterator[None]:
    root = os.path.realpath(folder)

    def here(place: Any, dir_fd: int | None = None) -> Path | None:
        """The path, if it is below the folder."""
        with suppress(OSError, TypeError, ValueError):
            if isinstance(place, int):
                path = os.readlink(f"/proc/self/fd/{place}")
            elif dir_fd is not None:
                path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), os.fspath(place))
            else:
                path = os.path.abspath(os.fspath(place))
            if path == root or path.startswith(root + os.sep):
                return Path(path)
        return None

    def wrap(name: str) -> Callable[..., Any]:
        real = REAL[name]

        def act(place: Any, *rest: Any, **more: Any) -> Any:
            writes = name != "open" or bool(rest and rest[0] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            if writes and (path := here(place, more.get("dir_fd"))) is not None:
                before(name, path)
            return real(place, *rest, **more)

        return act

    real_open = io.open

    def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        path = here(file) if set(mode) & set("wax+") else None
        if path is None:
            return real_open(file, mode, *rest, **more)
        before("open", path)
        return Watched(real_open(file, mode, *rest, **more), path, before)

    try:
        for name in REAL:
            setattr(os, name, wrap(name))
        io.open = builtins.open = opened
        yield
    finally:
        for name, real in REAL.items():
            setattr(os, name, real)
        io.open = builtins.open = real_open


class Watched:
    """A file that is written to."""

    def __init__(self, file: Any, path: Path, before: Before) -> None:
        self._file, self._path, self._before = file, path, before

    def write(self, content: Any) -> int:
        part = self._before("write", self._path)
        if part is not None:
            self._file.write(content[: part % (len(content) + 1)])
            self._file.flush()
            self._before("torn", self._path)
        return int(self._file.write(content))

    def __enter__(self) -> Watched:
        self._file.__enter__()
        return self

    def __exit__(self, *what: Any) -> Any:
        return self._file.__exit__(*what)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Counting:
    """Only counts."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, what: str, path: Path) -> None:
        self.seen.append(f"{what} {path.name}")


class Failing:
    """The write number `fatal` (from 0) fails, and those after it, as many as `lasts`. A write of bytes leaves the
    first `torn` of them."""

    def __init__(self, error: BaseException, fatal: int, lasts: int = 1, torn: int | None = None) -> None:
        self.error, self.fatal, self.lasts, self.torn = error, fatal, lasts, torn
        self.at, self.failed = -1, ""

    def __call__(self, what: str, path: Path) -> int | None:
        if what != "torn":
            self.at += 1
        if not self.fatal <= self.at < self.fatal + self.lasts:
            return None
        self.failed = self.failed or f"{what} {path.name}"
        if what == "write" and self.torn is not None:
            return self.torn
        raise self.error
