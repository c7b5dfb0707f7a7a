"""What is needed of the operating system: nothing that Windows lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cutlayer.core import files
from tests.core import without_unix


def test_it_trains_where_there_are_no_unix_modules(tmp_path: Path) -> None:
    """And no file is read or written in whatever encoding that system prefers."""
    out = tmp_path / "run"
    command = [sys.executable, "-X", "warn_default_encoding", without_unix.__file__, str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CUTLAYER_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "complete" and "peak_memory_mib" in summary
    assert (out / "report.html").exists()


def refused(path: object, *_: object, **__: object) -> int:
    raise PermissionError(13, "Permission denied", str(path))


def test_a_folder_that_cannot_be_opened_is_left_to_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_aside(tmp_path / "file", b"old")
    monkeypatch.setattr(files.os, "open", refused)
    files.sync(tmp_path)
    files.write_aside(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("refusals", [1, 3])
def test_a_file_that_somebody_reads_is_replaced_a_little_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    """On Windows nothing can be renamed to the name of a file that is open."""
    monkeypatch.setattr(files, "BUSY", True)
    real, left = Path.replace, refusals

    def replace(self: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        return Path(str(refused(target))) if left >= 0 else real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    files.write_aside(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new" and left == -1


@pytest.mark.parametrize("busy", [True, False])
def test_a_file_that_may_not_be_replaced_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    calls = []
    monkeypatch.setattr(files, "BUSY", busy)
    monkeypatch.setattr(files, "PATIENCE", 0.05)
    monkeypatch.setattr(Path, "replace", lambda self, target: calls.append(1) or refused(target))
    with pytest.raises(PermissionError):
        files.write_aside(tmp_path / "file", b"new")
    assert (len(calls) > 1) == busy
