"""Whatever stands still is ended, and says where it stood: a test, a child process, a forked one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
HANG = """
import ctypes

def stands_still():
    mutex, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)  # a PyDLL keeps the interpreter
    for _ in range(2):
        libc.pthread_mutex_lock(mutex)
"""


def environment(seconds: float, *paths: Path) -> dict[str, str]:
    """The one that conftest.py makes, with so many seconds for a child process."""
    path = os.pathsep.join([str(place) for place in (ROOT / "tests" / "watchdog", ROOT, *paths)])
    return {**os.environ, "CUTLAYER_WATCHDOG": str(seconds), "PYTHONPATH": path}


def child(text: str, seconds: float, *paths: Path) -> subprocess.CompletedProcess[str]:
    """A Python process that may take so many seconds."""
    command = [sys.executable, "-W", "error", "-c", HANG + textwrap.dedent(text)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(seconds, *paths), check=False)


def pytest_of(folder: Path, text: str, *flags: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A pytest with this project's conftest.py, on one file whose tests may take two seconds each."""
    folder.mkdir(exist_ok=True)
    (folder / "test_it.py").write_text(HANG + textwrap.dedent(text))
    options = f"-p pytest_timeout -p xdist -p conftest -o timeout=2 -c {os.devnull} --rootdir".split()
    command = [sys.executable, "-m", "pytest", *options, folder, *flags, folder / "test_it.py"]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = {**(environment(60) if env is None else env), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=env, **both)


def test_a_test_that_stands_still(tmp_path: Path) -> None:
    """... in its body, when it is torn down after it has failed, or when its process should leave; also in a process
    that another one waits for."""
    text = """
        import atexit
        import pytest

        @pytest.fixture
        def leaving():
            yield
            stands_still()

        def test_body():
            stands_still()

        def test_end(leaving):
            assert False

        def test_exit():
            atexit.register(stands_still)
        """
    ways = {"-k body": "test_body", "-k end": "leaving", "-k exit": "stands_still", "-n 1 -k body": "test_body"}
    runs = {flags: pytest_of(tmp_path / str(n), text, *flags.split()) for n, flags in enumerate(ways)}
    said = {flags: run.communicate() for flags, run in runs.items()}
    for flags, (out, err) in said.items():
        assert runs[flags].returncode == 1, out + err
        assert "Timeout (0:00:" in err and "in stands_still" in err and f"in {ways[flags]}\n" in err
    assert "1 passed" in said["-k exit"][0]
    assert "crashed while running 'test_it.py::test_body'" in out and "1 failed" in out


def test_each_test_has_its_seconds_and_may_fork(tmp_path: Path) -> None:
    text = """
        import os, sys, time, pytest

        @pytest.mark.parametrize("n", range(4))
        def test_slow(n):
            time.sleep(0.7)

        def test_fork():
            if pid := os.fork():
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            else:
                os._exit(7)
        """
    out, err = pytest_of(tmp_path, text).communicate()
    assert "5 passed" in out and err == "", out


def test_a_child_that_stands_still() -> None:
    done = child("stands_still()", 1)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("Timeout (0:00:01)!") and "in stands_still" in done.stderr


@pytest.mark.parametrize(("forked", "status"), [("stands_still()", 1), ("sys.exit(5)", 5)])
def test_a_forked_process(forked: str, status: int) -> None:
    """It is ended if it stands still, and leaves as usual otherwise."""
    text = f"""
        import cutlayer_watchdog, os, sys

        cutlayer_watchdog.arm(60)
        if pid := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        else:
            {forked}
        """
    done = child(text, 2)
    assert (done.returncode, done.stdout) == (0, f"{status}\n"), done.stderr
    assert ("in stands_still" in done.stderr) == (status == 1) == (done.stderr != "")


@pytest.mark.parametrize(("method", "seconds", "pause"), [("spawn", 4.0, 0.0), ("forkserver", 1.0, 1.5)])
def test_a_worker_that_stands_still(tmp_path: Path, method: str, seconds: float, pause: float) -> None:
    """Whoever forks workers lives on: it has nothing to do for most of the time."""
    (tmp_path / "hang.py").write_text(HANG)
    text = f"""
        import multiprocessing, multiprocessing.forkserver, os, time
        from hang import stands_still

        def ended(job, *arguments):
            worker = context.Process(target=job, args=arguments)
            worker.start()
            worker.join()
            return worker.exitcode

        if __name__ == "__main__":
            context = multiprocessing.get_context("{method}")
            os.environ["CUTLAYER_WATCHDOG"] = "{seconds}"
            print(ended(time.sleep, 0), end=" ")
            server = multiprocessing.forkserver._forkserver._forkserver_pid
            time.sleep({pause})
            print(ended(stands_still), server == multiprocessing.forkserver._forkserver._forkserver_pid)
        """
    (tmp_path / "main.py").write_text(textwrap.dedent(text))
    command = [sys.executable, tmp_path / "main.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(60), check=False)
    assert done.stdout == "0 1 True\n", done.stderr
    assert done.stderr.count("Timeout (") == 1 and "in stands_still" in done.stderr


def test_somebody_elses_start_is_kept(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.seen = __file__\n")
    done = child("import sys; print(sys.seen)", 60, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path / 'sitecustomize.py'}\n", "")


@pytest.mark.parametrize(("threads", "path"), [(None, None), ("3", "/somewhere")])
def test_what_tests_and_their_children_find(tmp_path: Path, threads: str | None, path: str | None) -> None:
    """One thread for torch, unless it is told otherwise, and before it is imported; PYTHONPATH with what it named."""
    folder = str(ROOT / "tests" / "watchdog")
    text = f"""
        import os, sys
        assert "torch" not in sys.modules

        def test_it():
            assert os.environ["OMP_NUM_THREADS"] == "{threads or 1}"
            assert os.environ["PYTHONPATH"] == "{os.pathsep.join(filter(None, [folder, path]))}"
        """
    assert f"OMP_NUM_THREADS : {os.environ['OMP_NUM_THREADS']}\n" in torch.__config__.parallel_info()
    given = {"OMP_NUM_THREADS": threads, "PYTHONPATH": path}
    env = {name: value for name, value in ({**os.environ, **given}).items() if value is not None}
    run = pytest_of(tmp_path, text, env=env)
    out, err = run.communicate()
    assert run.returncode == 0 and err == "", out
