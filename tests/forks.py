"""New processes that need not load torch again: forked from one that has, which has no threads and has done nothing."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOADED = ["cutlayer.cli.main", "cutlayer.experiment.compare", "cutlayer.report.page"]
LOADED += ["torch.fx.experimental.symbolic_shapes"]  # torch imports it at the first backward pass from a cut


class Forked:
    """A process under way; `out` and `err` are what it says."""

    def __init__(self, folder: Path, *how: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(LOADED)
        self._said = folder / "out", folder / "err"
        self._process = context.Process(target=_run, args=(self._said, *how))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def ended(self) -> bool:
        return not self._process.is_alive()

    @property
    def out(self) -> str:
        return self._said[0].read_text()

    @property
    def err(self) -> str:
        return self._said[1].read_text()

    def wait(self) -> int:
        """Its exit code; that of a signal is negative."""
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


@contextmanager
def forked(
    job: Callable[..., Any], *arguments: Any, env: Mapping[str, str] | None = None, strict: bool = False
) -> Iterator[Forked]:
    """Begin a job in a process of its own, which is killed at the end if it is still there. What it returns, if
    anything, is its exit code. `env` comes on top of this process's. `strict`: warnings are errors."""
    with tempfile.TemporaryDirectory() as folder:
        process = Forked(Path(folder), job, arguments, {**os.environ, **(env or {})}, strict)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _run(
    said: Sequence[Path], job: Callable[..., Any], arguments: Sequence[Any], env: Mapping[str, str], strict: bool
) -> None:
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # it is found again, in this environment
    for number, path in zip((1, 2), said, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    warnings.simplefilter("error" if strict else "default")
    if not strict:  # a signal may come between a file's opening and its `with`; Python says nothing of that either
        warnings.simplefilter("ignore", ResourceWarning)
    sys.exit(job(*arguments))
