"""The journal: read back what was written; a torn end is dropped, a torn middle is an error.

Lines of older and newer versions are read too, and kept as they are.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from cutlayer.cli.main import main
from cutlayer.engine.records import Round
from cutlayer.errors import StoreError
from cutlayer.experiment import config, journal
from cutlayer.experiment import config as text
from cutlayer.experiment.experiment import Experiment
from cutlayer.experiment.pool import Job, _progress

WHO = {
    "clients": (1, 2),
    "client_steps": (3, 4),
    "client_samples": (24, 32),
    "faults": ("a: gone",),
    "series": {},
    "more": {},
    "detail": None,
}
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


STRANGE = {
    "[]": "expected an object",
    "null": "expected an object",
    "{}": "n: missing, expected a whole number",
    '{"surprise": 2}': "n: missing",
    '{"n": "1"}': "n = '1': expected a whole number",
    '{"n": 1.5}': "n = 1.5: expected a whole number",
    '{"n": true}': "n = True: expected a whole number",
    '{"n": null}': "n = None: expected a whole number",
    '{"n": 1, "steps": 2.5}': "steps = 2.5: expected a whole number",
    '{"n": 1, "steps": null}': "steps = None: expected a whole number",
    '{"n": 1, "accuracy": "high"}': "accuracy = 'high': expected a number or nothing",
    '{"n": 1, "seconds": false}': "seconds = False: expected a number",
    '{"n": 1, "clients": 3}': "clients = 3: expected a list of whole numbers",
    '{"n": 1, "clients": [1, "a"]}': "clients = [1, 'a']: expected a list of whole numbers",
    '{"n": 1, "faults": "gone"}': "faults = 'gone': expected a list of words",
    '{"n": 1, "faults": [1]}': "faults = [1]: expected a list of words",
    '{"n": 1, "series": 0}': "series = 0: expected figures by group and name",
    '{"n": 1, "series": {"all": {"loss": "low"}}}': "series = {'all': {'loss': 'low'}}: expected figures",
}


@pytest.mark.parametrize("line", STRANGE)
def test_a_strange_line_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(StoreError) as caught:
        journal.read(path)
    assert str(caught.value).startswith(f"{path}, line 1: damaged: {STRANGE[line]}")


def test_trim_keeps_the_first_rounds(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    records = written(path, 5)
    assert journal.trim(path, 3) == records[:3] == journal.read(path)
    with pytest.raises(StoreError, match="ends at round 3"):
        journal.trim(path, 4)


def test_what_an_older_line_lacks_is_as_if_it_had_not_been_counted(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"n": 1}\n{"n": 2, "accuracy": 0.5, "clients": [3]}\n')
    first, second = journal.read(path)
    assert first == Round(n=1) and second == Round(n=2, accuracy=0.5, clients=(3,))
    assert first.accuracy is None and first.lr is None and first.cut is None
    assert first.steps == 0 and first.clients == () and first.series == {} and first.more == {}


@pytest.mark.parametrize("name", [f.name for f in fields(Round) if f.name not in ("n", "more", "detail")])
def test_no_field_but_the_number_is_needed(tmp_path: Path, name: str) -> None:
    path = tmp_path / "journal.jsonl"
    record = replace(BLANK, n=1)
    values = {key: value for key, value in asdict(record).items() if key not in (name, "more", "detail")}
    path.write_text(json.dumps(values) + "\n")
    kept = {key: value for key, value in asdict(journal.read(path)[0]).items() if key != name}
    assert kept == {key: value for key, value in asdict(record).items() if key != name}


NEWER = {
    "share": 0.1,
    "small": 1e-300,
    "large": 12345678901234567890123,
    "word": "na\u00efve",
    "nothing": None,
    "more": {"inner": [1, 2.50, {"deep": [True, {}]}]},
    "n2": [],
}


def newer(n: int) -> dict[str, Any]:
    """A line of a version that writes down more than this one."""
    values = asdict(replace(BLANK, n=n))
    del values["more"], values["detail"]
    return {**values, **NEWER}


def test_what_a_newer_line_has_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    before = "".join(json.dumps(newer(n)) + "\n" for n in (1, 2, 3)).encode()
    path.write_bytes(before)
    rounds = journal.read(path)
    assert [record.more for record in rounds] == [NEWER] * 3
    assert rounds[0] == replace(BLANK, n=1, more=NEWER) != replace(BLANK, n=1)
    assert journal.trim(path, 2) == rounds[:2] == journal.read(path)
    journal.append(path, rounds[2])
    assert path.read_bytes() == before


def test_trimming_leaves_every_byte_of_a_line(tmp_path: Path) -> None:
    """However its numbers and letters were written."""
    path = tmp_path / "journal.jsonl"
    line = '{ "n":1,"new":[1.10, 1E5,"\\u00e9","é"],   "accuracy":0.50, "old": {"b":1,"a":2} }\n'
    second = '{"n": 2, "new": 1.0}\n'
    path.write_text(line + second + '{"n": 3}\n', encoding="utf-8")
    journal.trim(path, 2)
    assert path.read_bytes() == (line + second).encode()


def test_a_field_of_this_version_is_not_hidden_by_one_of_the_same_name(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal.append(path, replace(BLANK, n=1, more={"steps": 99, "new": 1}))
    assert journal.read(path) == [replace(BLANK, n=1, more={"new": 1})]


def test_a_run_of_another_version_resumes_and_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its journal lacks some fields and has others; both stay as they are."""
    out = tmp_path / "run"
    settings = {"model": {"name": "mlp", "width": 8}, "train_rows": 480, "clients": 4, "rounds": 3, "batch_size": 16}
    for record in Experiment.start(config.parse(settings), out):
        if record.n == 2:
            break
    path = out / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for name in ("cut", "lr", "clip_rate", "client_steps", "faults"):
            del line[name]
        line["energy"] = 1.5
    old = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(old)
    for beside in (out / "checkpoints").glob("journal.*"):
        beside.unlink()
    assert main(["resume", str(out), "--quiet"]) == 0
    assert path.read_text().startswith(old) and path.read_text().count("\n") == 3
    assert main(["report", str(out)]) == 0
    capsys.readouterr()
    assert main(["clock", str(out), "--profile", "lte"]) == 2
    assert "round 1: the journal does not say" in capsys.readouterr().err


def test_progress_is_shown_of_a_line_without_an_accuracy(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"n": 1}\n')
    found = _progress(Job("a", text.parse({"rounds": 5}), tmp_path))
    assert (found.done, found.accuracy, found.status) == (1, None, "running")
