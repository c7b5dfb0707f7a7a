"""Trackers are told what the journal says: once, whatever happens to the run; and never disturb it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import shutil
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.core.extras import EXTRAS
from cutlayer.core.lock import Lock
from cutlayer.engine.records import Round
from cutlayer.errors import ContractError, StoreError
from cutlayer.experiment import compare
from cutlayer.experiment.comparison import Comparison, folder
from cutlayer.experiment.experiment import Experiment
from cutlayer.experiment.methods import method
from cutlayer.report import page
from cutlayer.track import names
from cutlayer.track.base import row
from cutlayer.track.names import TRACKERS, asked
from cutlayer.track.tracked import export, with_trackers
from tests.api.programs import clients, net, rows
from tests.track import fakes

ROOT = Path(__file__).parent.parent.parent
SMALL: dict[str, Any] = {"cut": 1, "rounds": 6, "batch_size": 8, "local_epochs": 1, "test": rows(20)}
TINY = {"task": "digits", "rounds": 2, "clients": 4, "participation": 2, "local_steps": 1, "model": "mlp"}


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers of our own; and no pictures, which take longer than all the rest."""
    monkeypatch.setattr(page, "write", lambda out, *_: (None, []))
    monkeypatch.setitem(names.TRACKERS, "fake", fakes.FAKE)
    monkeypatch.setitem(names.TRACKERS, "broken", fakes.BROKEN)


def told(out: Path, name: str = "fake") -> dict[str, Any]:
    return fakes.read(out / "track" / name / "told.json")


def journal(out: Path) -> list[list[Any]]:
    """The rounds of a journal with all their numbers, read without the package."""
    lines = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    return [[one.pop("n"), {k: v for k, v in one.items() if isinstance(v, int | float)}] for one in lines]


def test_every_name_has_a_class_and_an_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shipped = {name: known for name, known in TRACKERS.items() if name not in ("fake", "broken")}
    assert set(shipped) == {"tensorboard", "mlflow", "wandb", "trackio"}
    for known in shipped.values():
        module, _, kind = known.path.partition(":")
        made = getattr(importlib.import_module(module), kind)
        assert callable(made.log) and callable(made.close)
        assert known.extra in EXTRAS and known.extra in extras


def test_names_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(None) == () and asked("fake") == ("fake",) and asked(["fake", "fake"]) == ("fake",)
    with pytest.raises(ContractError, match="unknown tracker 'tensorbord': did you mean 'tensorboard'"):
        asked("tensorbord")
    for wrong in (3, [3], {"fake": 1}):
        with pytest.raises(ContractError, match=r"track = .*: expected the name of a tracker"):
            asked(wrong)  # type: ignore[arg-type]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ContractError, match=r"^tensorboard: not installed; expected `pip install cutlayer\[tb\]`$"):
        asked("tensorboard")


def test_a_tracker_needs_a_folder(tmp_path: Path) -> None:
    for train in (cl.train, cl.rounds):
        with pytest.raises(ContractError, match="track = 'fake': expected `out` too: a tracker reads the journal"):
            train(net(), clients(), track="fake", **SMALL)
    with pytest.raises(ContractError, match="expected `out` too"):
        cl.serve(net(), rows(20), track=["fake"])
    with pytest.raises(ContractError, match="unknown tracker"):
        cl.train(net(), clients(), track="faky", out=tmp_path / "x", **SMALL)
    assert not (tmp_path / "x").exists()
    for words in (["run", "--task", "digits", "--out", str(tmp_path / "x"), "--track", "faky"], ["compare"]):
        assert main([*words, "--track", "faky"]) == 2
    assert not (tmp_path / "x").exists()


def test_all_numbers_of_a_round_and_nothing_else() -> None:
    series = {"sampled": {"accuracy": 0.25, "f1": None}}
    record = Round(
        n=7, accuracy=0.5, steps=3, clients=(1, 2), faults=("x",), series=series, more={"new": 1.5, "w": "v"}
    )
    found = row(record)
    assert found.step == 7
    zeros = dict.fromkeys(("participants", "skipped", "lost", "samples", "bytes_up", "bytes_down"), 0)
    zeros |= dict.fromkeys(("macs_client", "macs_server", "seconds"), 0)
    assert found.values == {"accuracy": 0.5, "steps": 3, "sampled/accuracy": 0.25, "new": 1.5, **zeros}


def test_a_run_that_goes_on_is_told_once_and_again_from_the_journal(tmp_path: Path) -> None:
    plain = cl.train(net(), clients(), out=tmp_path / "plain", **SMALL)
    out, given = tmp_path / "x", {**SMALL, "checkpoint_every": 2}
    run = cl.rounds(net(), clients(), out=out, track="fake", **given)
    assert [next(run).n for _ in range(3)] == [1, 2, 3]
    assert told(out)["status"] == "running"
    with pytest.raises(StoreError, match="another process"):
        export(out, ["fake"])
    run.close()
    assert told(out)["status"] == "unfinished" and told(out)["rows"] == journal(out) and told(out)["summary"] == {}
    result = cl.train(net(), clients(), out=out, track="fake", **given)
    live = told(out)
    assert live["lives"] == [1, 3] and live["rows"] == journal(out) and [n for n, _ in live["rows"]] == [*range(1, 7)]
    summary = json.loads((out / "summary.json").read_text())
    assert live["status"] == "complete" and live["summary"]["summary/best_accuracy"] == summary["best_accuracy"]
    assert live["label"] == "x" and live["group"] is None
    assert live["config"]["batch_size"] == 8 and live["config"]["scheme.name"] == "smofi"
    for one, other in zip(result.model.parameters(), plain.model.parameters(), strict=True):
        assert one.equal(other)
    shutil.copytree(out, tmp_path / "again" / "x", ignore=shutil.ignore_patterns("track"))
    assert main(["report", str(tmp_path / "again" / "x"), "--to", "fake", "--quiet"]) == 0
    assert told(tmp_path / "again" / "x") == {**live, "lives": [6]}
    cl.train(net(), clients(), out=out, track="fake", **given)  # complete already
    assert told(out) == {**live, "lives": [1, 3, 6]}


def test_only_who_writes_the_journal_tracks(tmp_path: Path) -> None:
    """Of several ranks, only the root has a sink."""
    run = with_trackers(cl.rounds(net(), clients(), **{**SMALL, "rounds": 1}), tmp_path, ["fake"])
    assert run.sink is None and [record.n for record in run] == [1] and list(tmp_path.iterdir()) == []


def test_a_run_with_remote_clients(tmp_path: Path) -> None:
    def begin(service: Any) -> None:
        here = f"127.0.0.1:{service.hub.port}"
        given = {"model": net(), "name": "a", "out": tmp_path / "a"}
        threading.Thread(target=cl.join, args=(here, rows(30)), kwargs=given, daemon=True).start()

    given: dict[str, Any] = {**SMALL, "rounds": 2, "listen": "127.0.0.1:0", "min_clients": 1, "watch": begin}
    cl.serve(net(), out=tmp_path / "x", track="fake", **given)
    assert told(tmp_path / "x")["rows"] == journal(tmp_path / "x") and told(tmp_path / "x")["status"] == "complete"


@pytest.mark.parametrize(("method", "seen"), [("__init__", None), ("log", 1), ("close", 3)])
def test_a_tracker_that_fails_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str, seen: int | None
) -> None:
    monkeypatch.setattr(fakes.Broken, "FAILS", method)
    out = tmp_path / "x"
    with caplog.at_level(logging.WARNING, "cutlayer"):
        result = cl.train(net(), clients(), out=out, track=["broken", "fake"], **{**SMALL, "rounds": 3})
    assert len(result.history) == 3 and told(out)["rows"] == journal(out) and told(out)["status"] == "complete"
    said = f"broken: tracking of this run stopped: no server at all; `cutlayer report {out} --to broken` does it"
    assert [record.getMessage() for record in caplog.records] == [f"{said} afterwards"]
    assert (out / "track" / "broken" / "told.json").exists() == (seen is not None)
    assert seen is None or len(told(out, "broken")["rows"]) == seen
    Lock(out / "track" / "broken").close()  # nobody holds it


def test_the_report_says_why_a_tracker_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x"
    cl.train(net(), clients(), out=out, **{**SMALL, "rounds": 1})
    assert main(["report", str(out), "--to", "broken"]) == 2
    assert f"{out}: broken: no server at all" in capsys.readouterr().err
    assert main(["report", str(out), "--to", "faky"]) == 2
    assert main(["report", str(out), "--to", "fake"]) == 0
    assert f"tracked in {out / 'track' / 'fake'}" in capsys.readouterr().out


def test_each_run_of_a_comparison_and_what_overwriting_removes(tmp_path: Path) -> None:
    out = tmp_path / "y"
    both = Comparison(TINY, [method("fedavg"), method("smofi")], [0])
    compare.start(both, out, overwrite=False).close()
    for m, seed in both.runs():
        for _ in Experiment.start(both.config(m, seed), folder(out, m, seed)):
            pass
    assert main(["report", str(out), "--to", "fake", "--quiet"]) == 0
    for m, seed in both.runs():
        run = folder(out, m, seed)
        found = told(run)
        assert found["rows"] == journal(run) and found["group"] == "y" and found["label"] == f"{m.label.lower()}/seed-0"
    again = folder(out, both.methods[0], 0)
    Experiment.start(both.config(both.methods[0], 0), again, overwrite=True).run.close()
    assert not (again / "track").exists()
