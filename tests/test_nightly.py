"""The nightly campaigns work: a few seeds of each, the ledger, the shards, and what stands still or dies."""

from __future__ import annotations

import time
import types
from pathlib import Path

import pytest

from tests.nightly import __main__ as nightly
from tests.nightly import campaigns, soak, worker
from tests.nightly.campaigns import NIGHT, play_of, share, todo
from tests.nightly.hands import Counting, Failing, watched
from tests.nightly.ledger import Entry, Ledger, commit, summary

SEEDS = {  # of each, those that are quick and far apart: 0 is a comparison
    "flips": (0, 1, 2, 3),
    "faults": (0, 1, 3),
    "disk": (0, 1, 2),
    "start": (0, 1, 2),
    "races": (0, 1),
    "frames": (0,),
    "threads": (0,),
}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name, seeds in SEEDS.items() for seed in seeds])
def test_a_few_seeds(tmp_path: Path, name: str, seed: int) -> None:
    play_of(name)(seed, tmp_path)


def test_a_short_soak(tmp_path: Path) -> None:
    soak.play(0, tmp_path, steps=480)


def test_every_campaign_is_there() -> None:
    assert set(SEEDS) | {"soak", "strangers", "kills", "network", "sigterm"} == set(NIGHT)
    with pytest.raises(SystemExit, match="unknown campaign 'flip': valid: flips, faults"):
        campaigns.chosen(["flip"])


# ---- The ledger ----------------------------------------------------------------------------------------------------


def entry(seed: int, ok: bool = True, code: str = "abc") -> Entry:
    return Entry("flips", seed, ok, 1.5, code, "" if ok else "AssertionError: other weights")


def test_what_is_written_down_is_done(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "build" / "nightly.jsonl")
    assert ledger.read() == []
    ledger.add(entry(0))
    ledger.add(entry(1, ok=False))
    ledger.add(entry(2, code="older"))
    assert ledger.read() == [entry(0), entry(1, ok=False), entry(2, code="older")]
    assert ledger.done("abc") == {("flips", 0), ("flips", 1)}


def test_a_torn_line_is_dropped_and_does_no_harm(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "nightly.jsonl")
    for seed in (0, 1):
        ledger.add(entry(seed))
    ledger.path.write_bytes(ledger.path.read_bytes()[:-9])
    assert ledger.read() == [entry(0)]
    ledger.add(entry(2))
    assert ledger.read() == [entry(0), entry(2)]


def test_the_summary_says_how_to_see_a_failure_again() -> None:
    said = summary([entry(0), entry(4711, ok=False), entry(1, code="older")])
    assert "flips            3         3       1    0.00  abc, older" in said
    assert "python -m tests.nightly flips --seed 4711    # at abc" in said and "AssertionError: other weights" in said


def test_the_code_has_a_name() -> None:
    assert commit() == commit() != ""


def test_shards_share_all_seeds() -> None:
    assert list(share(range(10), (2, 4))) == [1, 5, 9]
    assert sorted(seed for i in range(1, 5) for seed in share(range(3, 20), (i, 4))) == list(range(3, 20))


def test_campaigns_go_side_by_side() -> None:
    jobs = todo({"flips": range(4), "soak": range(2)}, {("flips", 1)})
    assert jobs == [("flips", 0), ("soak", 0), ("flips", 2), ("soak", 1), ("flips", 3)]


# ---- The command ---------------------------------------------------------------------------------------------------

PLAY = """
import os, time
def play(seed, folder):
    assert seed != 2, "two is wrong"
    if seed == 3:
        os._exit(7)
    if seed == 4:
        time.sleep(60)
    return 7 if seed == 1 else None
"""


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A campaign of its own, which other processes find too, and the ledger."""
    made = types.ModuleType("tests.nightly.trial")
    exec(PLAY, made.__dict__)
    monkeypatch.setitem(NIGHT, "trial", 3)
    monkeypatch.setattr(nightly, "play_of", lambda name: made.play)
    command = f"import tests.nightly.worker as w, types; m = types.ModuleType('t'); exec({PLAY!r}, m.__dict__)\n"
    command += "w.play_of = lambda name: m.play\nw.serve()"
    real = worker.subprocess.Popen
    monkeypatch.setattr(worker.subprocess, "Popen", lambda words, **more: real([words[0], "-c", command], **more))
    return tmp_path / "nightly.jsonl"


def test_a_night_is_written_down_and_goes_on(trial: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nightly.main(["trial", "--seeds", "0:4", "--ledger", str(trial), "--jobs", "2"]) == 1
    found = {entry.seed: entry for entry in Ledger(trial).read()}
    assert {seed: one.ok for seed, one in found.items()} == {0: True, 1: True, 2: False, 3: False}
    assert found[2].error.endswith("AssertionError: two is wrong") and found[3].error.endswith("ended with 7")
    assert "FAILED python -m tests.nightly trial --seed 2" in (said := capsys.readouterr().err) and "4/4 in" in said
    before = trial.read_bytes()
    assert nightly.main(["trial", "--seeds", "0:4", "--ledger", str(trial)]) == 0, "there is nothing left to do"
    assert trial.read_bytes() == before
    assert nightly.main(["--summary", "--ledger", str(trial)]) == 0
    assert "trial            4        10       2" in capsys.readouterr().out


def test_what_stands_still_has_failed(trial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MOMENT", 0.3)
    found = list(nightly.night([("trial", 4), ("trial", 0)], 1, time.monotonic() + 99, limit=1.5))
    assert [(one.seed, one.ok) for one in found] == [(4, False), (0, True)]
    assert "it stood still" in found[0].error and "line 8 in play" in found[0].error


def test_no_seed_begins_when_the_time_is_up(trial: Path) -> None:
    assert nightly.main(["trial", "--seeds", "0:2", "--ledger", str(trial), "--minutes", "0"]) == 0
    assert len(Ledger(trial).read()) <= 1


def test_one_seed_is_played_here(trial: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nightly.main(["trial", "--seed", "0"]) == 0
    assert nightly.main(["trial", "--seed", "2"]) == 1
    assert "two is wrong" in capsys.readouterr().err and not trial.exists()
    with pytest.raises(SystemExit, match="one campaign"):
        nightly.main(["--seed", "2"])


# ---- The faulty disk -----------------------------------------------------------------------------------------------


def test_a_write_is_stopped_or_torn(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "a").write_bytes(b"0123456789")
        (folder / "a").replace(folder / "b")
        (folder / "b").unlink()
        folder.rmdir()

    seen = Counting()
    with watched(tmp_path / "whole", seen):
        write(tmp_path / "whole")
        (tmp_path / "beside").write_bytes(b"")
    assert seen.seen == ["mkdir whole", "open a", "write a", "replace a", "unlink b", "rmdir whole"]
    for fatal, left in ((1, []), (2, [b"0123"]), (3, [b"0123456789"])):
        out = tmp_path / str(fatal)
        with watched(out, Failing(OSError(28, "full"), fatal, torn=4)), pytest.raises(OSError, match="full"):
            write(out)
        assert [path.read_bytes() for path in out.iterdir()] == left
