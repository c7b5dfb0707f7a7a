"""The lock of a run directory: for one owner at a time, for as long as that owner lives and no longer."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cutlayer.core.lock import Lock
from cutlayer.errors import StoreError

HELD = "another process is training here"
TAKE = """
import sys
from pathlib import Path
from cutlayer.core.lock import Lock
lock = Lock(Path(sys.argv[1]))
"""
NEEDS_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@contextmanager
def owner(folder: Path, then: str) -> Iterator[subprocess.Popen[str]]:
    """A process that takes the lock of a folder, does something and says a word; killed at the end."""
    command = [sys.executable, "-c", TAKE + then, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def free(folder: Path) -> bool:
    try:
        Lock(folder).close()
    except StoreError as error:
        if str(error) != f"{folder}: {HELD}":
            raise
        return False
    return True


def test_a_second_object_in_one_process_is_refused_at_once(tmp_path: Path) -> None:
    with Lock(tmp_path):
        assert not free(tmp_path)
        assert not free(tmp_path / ".." / tmp_path.name)
    assert free(tmp_path)


def test_a_lock_that_is_forgotten_is_free(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    assert not free(tmp_path)
    del lock
    gc.collect()
    assert free(tmp_path)


def test_closing_twice_does_not_free_what_another_has_taken(tmp_path: Path) -> None:
    first = Lock(tmp_path)
    first.close()
    second = Lock(tmp_path)
    first.close()
    assert not free(tmp_path)
    second.close()
    assert free(tmp_path)


def test_another_thread_may_close_it(tmp_path: Path) -> None:
    """As when a generator of rounds is closed by whichever thread drops it."""
    lock = Lock(tmp_path)
    thread = threading.Thread(target=lock.close)
    thread.start()
    thread.join()
    assert free(tmp_path)


def test_no_thread_shares_the_lock_of_another(tmp_path: Path) -> None:
    found: list[bool] = []
    with Lock(tmp_path):
        thread = threading.Thread(target=lambda: found.append(free(tmp_path)))
        thread.start()
        thread.join()
    assert found == [False]


def test_a_folder_that_is_not_there_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="gone: no such folder"):
        Lock(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_a_lock_that_cannot_be_made_is_not_somebody_training(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(StoreError, match="cannot be locked") as caught:
        Lock(tmp_path)
    assert str(tmp_path) in str(caught.value) and HELD not in str(caught.value)


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    with owner(tmp_path, "print('locked', flush=True); sys.stdin.read()") as process:
        assert said(process) == "locked"
        assert not free(tmp_path)
        process.kill()
        process.wait()
        assert free(tmp_path)


@NEEDS_FORK
def test_a_forked_child_that_outlives_a_killed_owner_does_not_hold_it(tmp_path: Path) -> None:
    fork = """
import os
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
os.waitpid(child, 0)
"""
    with owner(tmp_path, fork) as process:
        child = int(said(process))
        assert not free(tmp_path)
        process.kill()
        process.wait()
        os.kill(child, 0)  # it lives
        try:
            assert free(tmp_path)
        finally:
            os.kill(child, signal.SIGKILL)


@NEEDS_FORK
def test_a_forked_child_does_not_free_its_parents_lock(tmp_path: Path) -> None:
    """Neither by closing its copy nor by ending as programs do."""
    fork = """
import os
child = os.fork()
if child == 0:
    lock.close()
    sys.exit(0)
os.waitpid(child, 0)
print("buried", flush=True)
sys.stdin.read()
"""
    with owner(tmp_path, fork) as process:
        assert said(process) == "buried"
        assert not free(tmp_path)


@NEEDS_FORK
def test_a_forked_child_that_forgets_its_copy_does_not_free_its_parents_lock(tmp_path: Path) -> None:
    fork = """
import os
child = os.fork()
if child == 0:
    del lock
    sys.exit(0)
os.waitpid(child, 0)
print("buried", flush=True)
sys.stdin.read()
"""
    with owner(tmp_path, fork) as process:
        assert said(process) == "buried"
        assert not free(tmp_path)


def test_a_started_program_does_not_hold_it(tmp_path: Path) -> None:
    start = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], close_fds=False)
print(child.pid, flush=True)
child.wait()
"""
    with owner(tmp_path, start) as process:
        child = int(said(process))
        assert not free(tmp_path)
        process.kill()
        process.wait()
        try:
            assert free(tmp_path)
        finally:
            os.kill(child, signal.SIGTERM)
