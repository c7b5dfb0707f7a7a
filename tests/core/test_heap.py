"""The heap keeps its memory where it is glibc's and the user has not chosen; its peak is known where anybody counts."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest

from cutlayer.bench import sections
from cutlayer.cli.main import main
from cutlayer.core import heap


def test_what_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in heap.CHOSEN:
        monkeypatch.delenv(name, raising=False)
    assert heap.keep() == (sys.platform == "linux" and platform.libc_ver()[0] == "glibc")
    for name in heap.CHOSEN:
        with monkeypatch.context() as only:
            only.setenv(name, "1")
            assert not heap.keep()


def test_elsewhere_there_is_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert not heap.keep()


def test_the_peak_is_in_bytes_and_never_falls() -> None:
    before = heap.peak()
    assert before is not None and 2**25 < before < 2**40
    after = heap.peak()
    assert after is not None and after >= before


def test_the_peak_is_taken_from_what_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = tmp_path / "status"
    monkeypatch.setattr(heap, "STATUS", status)
    status.write_text("Name:\tpython\nVmPeak:\t  9000 kB\nVmHWM:\t  1234 kB\n")
    assert heap.peak() == 1234 * 1024
    status.write_text("Name:\tpython\n")  # as in some containers
    by_hand = heap.peak()
    assert by_hand is not None and by_hand > 2**25
    monkeypatch.setattr(heap, "resource", None)
    assert heap.peak() is None
    status.unlink()
    assert heap.peak() is None


def test_a_run_is_summed_up_where_nobody_counts_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heap, "peak", lambda: None)
    assert main(["run", "--rounds", "1", "--participation", "5", "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["peak_memory_mib"] is None
    assert main(["report", str(tmp_path / "run")]) == 0


def test_so_is_a_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "_peak", lambda scheme, clients: {"peak": None, "server_parameters": 9})
    assert [row["bytes_per_parameter_and_client"] for row in sections.memory(quick=True)] == [None]
