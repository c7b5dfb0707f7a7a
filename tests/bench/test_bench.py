"""`cutlayer bench`: what it measures, writes and refuses. How fast anything is, no test asks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from cutlayer.bench import sections
from cutlayer.bench.cases import AIMS, CASES, measurable
from cutlayer.cli import bench
from cutlayer.cli.main import main

ROW = {"model", "clients", "batch", "backend", "ms_per_step", "samples_per_second", "plain", "tuned", "naive"}


def test_one_model_measured_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    line = "bench --only throughput --models mlp --quick --repeats 1 --json"
    assert main(line.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"machine", "quick", "repeats", "throughput", "minutes"}
    assert set(found["machine"]) == {"processor", "cores", "torch"}
    assert found["quick"] is True and found["repeats"] == 1
    (row,) = found["throughput"]
    assert set(row) == ROW and row["model"] == "mlp" and row["backend"].startswith("stacked (the model is small)")
    for rival, aim in zip(("plain", "tuned", "naive"), AIMS["mlp"], strict=True):
        ratio = row[rival]
        assert set(ratio) == {"median", "low", "high", "aim"} and ratio["aim"] == aim
        assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"] < math.inf


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bench --only troughput", "unknown section 'troughput': did you mean 'throughput'?"),
        ("bench --only throughput fussion", "unknown section 'fussion': did you mean 'fusion'?"),
        ("bench --models mlpp", "unknown model 'mlpp': did you mean 'mlp'?"),
        ("bench --models mlp resnet81", "unknown model 'resnet81': did you mean 'resnet18'?"),
        ("bench --repeats 0", "repeats = 0: expected a whole number, at least 1"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in bench.SECTIONS:
        monkeypatch.setattr(sections, name, lambda *arguments: pytest.fail("measured"))
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"cutlayer: error: {said}") and captured.err.count("\n") == 1
    assert captured.out == "" and list(tmp_path.iterdir()) == []


def test_every_section_and_model_can_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each section is asked once, in the order given, and what it finds is shown and written."""
    asked: list[Any] = []
    for name in bench.SECTIONS:
        row = {"name": name, "seconds": 0.25, "count": 7, "nothing": None}
        monkeypatch.setattr(sections, name, lambda *arguments, row=row: asked.append(arguments) or [row])
    assert main(["bench", "--repeats", "2", "--json"]) == 0
    assert asked[0] == (measurable(), False, 2) and len(asked) == len(bench.SECTIONS) == 7
    assert [*CASES][:-1] == measurable()[: len(CASES) - 1]  # the last one needs transformers
    found = json.loads(capsys.readouterr().out)
    assert [found[name][0]["name"] for name in bench.SECTIONS] == list(bench.SECTIONS)
    assert set(AIMS) == set(CASES)
    assert main(["bench", "--repeats", "2"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in bench.SECTIONS) and "minutes" in said


@pytest.mark.parametrize("section", [sections.fusion, sections.overhead])
def test_what_is_timed_inside_a_step_is_called(section: Any) -> None:
    """Methods that a stopwatch is put on: their share of a round is above nothing, and below all of it."""
    row = next(iter(section(True, 1)))
    share = row["update_and_fusion"] if section is sections.fusion else row["overhead"]["median"]
    assert 0 < share < 1
