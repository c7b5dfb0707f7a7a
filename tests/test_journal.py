"""The journal: read back what was written; a torn end is dropped, a torn middle is an error."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from cutlayer import journal
from cutlayer.errors import StoreError
from cutlayer.records import Round

WHO = {"clients": (1, 2), "client_steps": (3, 4), "client_samples": (24, 32), "faults": ("a: gone",)}
BLANK = Round(**{f.name: 0 for f in fields(Round)} | WHO | {"sim_seconds": None, "accuracy": 0.5})


def written(path: Path, rounds: int) -> list[Round]:
    records = [replace(BLANK, n=n) for n in range(1, rounds + 1)]
    for record in records:
        journal.append(path, record)
    return records


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert journal.read(path) == []
    assert written(path, 3) == journal.read(path)


def test_a_torn_last_line_is_dropped_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    records = written(path, 3)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(journal.TornJournal, match="cut off"):
        assert journal.read(path) == records[:2]


def test_a_torn_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, 3)
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], lines[1][:30], lines[2], ""]))
    with pytest.raises(StoreError, match="line 2"):
        journal.read(path)


@pytest.mark.parametrize("line", ['{"n": 1}', "[]", "null", '{"n": 1, "surprise": 2}'])
def test_a_strange_line_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(StoreError, match="line 1"):
        journal.read(path)


def test_trim_keeps_the_first_rounds(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    records = written(path, 5)
    assert journal.trim(path, 3) == records[:3] == journal.read(path)
    with pytest.raises(StoreError, match="ends at round 3"):
        journal.trim(path, 4)
