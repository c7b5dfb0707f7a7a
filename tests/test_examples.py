"""Every example runs, and is short enough to read."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cutlayer.cli.main import main
from tests.forks import forked

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").rglob("*.py"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


class Command:
    """Stands for `subprocess.Popen` of `python -m cutlayer`: it is forked, and need not load torch."""

    def __init__(self, command: list[str], *, stdout: int, stderr: int, text: bool, cwd: Path) -> None:
        assert command[:3] == [sys.executable, "-m", "cutlayer"] and text
        assert (stdout, stderr) == (subprocess.PIPE, subprocess.STDOUT)
        reading, writing = os.pipe()
        sys.stdout.flush()
        self.pid, self.returncode = os.fork(), -1
        if self.pid == 0:
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            os.chdir(cwd)
            code = main(command[3:])
            sys.stdout.flush()
            os._exit(code)
        os.close(writing)
        self.stdout = os.fdopen(reading)

    def wait(self) -> int:
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.stdout.close()
        return self.returncode

    def communicate(self) -> tuple[str, None]:
        said = self.stdout.read()
        self.wait()
        return said, None

    def kill(self) -> None:
        os.kill(self.pid, 9)


def run_script(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
    """Stands for `subprocess.run` of a Python file."""
    assert command[0] == sys.executable and not check
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        sys.argv = command[1:]
        runpy.run_path(command[1], run_name="__main__")
        os._exit(0)
    return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def play(path: Path) -> None:
    subprocess.Popen = Command  # type: ignore[assignment, misc]
    subprocess.run = run_script  # type: ignore[assignment]
    sys.argv = [str(path)]
    runpy.run_path(str(path), run_name="__main__")


NEEDS = {  # examples that need a package of `make test-extras`
    "track.py": "tensorboard",
    "generate.py": "transformers",
    "finetune.py": "peft",
}
WARNS = {"finetune.py"}  # peft calls what transformers has deprecated
CASES = [pytest.param(path, marks=pytest.mark.extras if path.name in NEEDS else ()) for path in EXAMPLES]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name)
def test_example(path: Path, tmp_path: Path) -> None:
    """One of them as everybody starts it, the others without loading torch again."""
    assert len(path.read_text().splitlines()) < 60
    if path.name in NEEDS:
        pytest.importorskip(NEEDS[path.name], reason=f"{NEEDS[path.name]} is not installed (make test-extras has it)")
    env = {"TMPDIR": str(tmp_path)}
    if path.name == "train.py":
        command: list[Any] = [sys.executable, "-W", "error", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        with forked(play, path, env=env, strict=path.name not in WARNS) as process:
            code, out, err = process.wait(), process.out, process.err
    assert code == 0, err
    assert out
    assert path.name != "own_model.py" or "killed: -9" in out
    assert path.name != "generate.py" or (out.count("True") == 2 and "False" not in out)
