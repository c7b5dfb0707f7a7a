"""Commands that look: at a partition, at the cuts of a model, at a run's time on other devices."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cutlayer.cli.main import main
from cutlayer.data import cache
from cutlayer.experiment import journal
from cutlayer.experiment.experiment import Experiment

SMALL = ["--model", "mlp", "--train-rows", "480", "--clients", "6", "--rounds", "3", "--local-epochs", "1", "--quiet"]


def test_a_partition_is_shown_drawn_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["partition", "--clients", "20", "--dirichlet", "0.2", "--parts", "p.json"]) == 0
    said = capsys.readouterr().out
    assert "digits, 20 clients, dirichlet(gamma=0.2" in said and "J-S divergence" in said and "8 more" in said
    with Image.open("partition.png") as picture:
        assert picture.size[0] > 1000
    assert main(["partition", "--clients", "20", "--dirichlet", "0.2", "--json"]) == 0
    parts, figures = json.loads(Path("p.json").read_text()), json.loads(capsys.readouterr().out)
    assert [len(part) for part in parts["clients"]] == figures["sizes"] and sum(figures["sizes"]) == 1433
    assert len(figures["js_divergence"]) == 20 and all(0 <= d < 1 for d in figures["js_divergence"])
    assert np.array(figures["labels"]).sum(axis=1).tolist() == figures["sizes"]


def test_training_on_a_written_partition_is_training_on_the_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["partition", "--clients", "6", "--shards", "2", "--seed", "4", "--parts", "p.npz"]) == 0
    few = ["run", "--rounds", "2", "--model", "mlp", "--local-epochs", "1", "--quiet", "--seed", "4"]
    assert main([*few, "--clients", "6", "--partition", "shards", "--partition.shards", "2", "--out", "a"]) == 0
    assert main([*few, "--partition", "file", "--partition.path", "p.npz", "--out", "b"]) == 0
    digests = [json.loads(Path(out, "summary.json").read_text())["sha256"] for out in "ab"]
    assert digests[0] == digests[1]
    assert f'path = "{tmp_path / "p.npz"}"' in Path("b/config.toml").read_text()  # resumed from anywhere


def test_the_cuts_of_resnet18(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "cuts", "--model", "resnet18", "--input", "3x32x32"]) == 0
    said = capsys.readouterr().out
    row = re.search(r"^\s*2\s+64x8x8\s+157,504\s+11,024,138\s+11.85 M\s+25.17 M\s+\S+\s+32.0%\s+█+ 131.1", said, re.M)
    assert row and "dCor" not in said


def test_cuts_of_a_task_with_what_they_give_away(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "cuts", "--task", "digits", "--model", "mlp", "--leakage", "--rows", "60"]) == 0
    said = capsys.readouterr().out
    leaks = [float(found) for found in re.findall(r"█\S* +(0\.\d\d|1\.00) *$", said, re.M)]
    assert len(leaks) == 3 and leaks[0] >= leaks[-1] and "60 rows of digits, random weights" in said


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "y"
    flags = ["--schemes", "fedavg", "sflv2", "mergesfl", "cyclesfl", "psl", "--seeds", "0", "--profile", "lognormal"]
    assert main(["compare", *flags, *SMALL, "--jobs", "1", "--out", str(out)]) == 0
    return out


def test_the_clock_as_run_is_the_runs_own(comparison: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clock", str(comparison), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 5 and all(row["seconds_per_round"] > 0 for row in rows)
    for row in rows:
        assert row["seconds_per_round"] == pytest.approx(row["seconds_per_round_as_run"], rel=1e-12)
        assert row["T"] == row["T_as_run"] or row["T"] == pytest.approx(row["T_as_run"])
    assert main(["clock", str(comparison)]) == 0
    assert "a round as run" in capsys.readouterr().out


def test_what_if_equals_a_run_that_was_like_that(
    comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other devices, server and sync, counted again from the journal, against a training with them."""
    given = ["--profile", "lte", "--kappa", "10", "--count-sync", "--out", str(tmp_path / "y")]
    assert main(["compare", "--schemes", "fedavg", "sflv2", "psl", "--seeds", "0", *SMALL, *given]) == 0
    what = ["--profile", "lte", "--kappa", "10", "--count-sync", "--json"]
    capsys.readouterr()
    assert main(["clock", str(comparison), *what]) == 0
    rows = {row["label"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    for label in ("FedAvg", "SFLV2", "PSL"):
        rounds = journal.read(tmp_path / "y" / "runs" / label.lower() / "seed-0" / "journal.jsonl")
        mean = sum(r.sim_seconds or 0.0 for r in rounds) / len(rounds)
        assert rows[label]["seconds_per_round"] == pytest.approx(mean, rel=1e-9)
        assert rows[label]["seconds_per_round_as_run"] != pytest.approx(mean, rel=1e-3)


def test_a_deeper_cut_sends_less_and_plain_learning_more(comparison: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rounds(*flags: str) -> dict[str, float]:
        assert main(["clock", str(comparison), *flags, "--json"]) == 0
        return {r["label"]: r["seconds_per_round"] for r in json.loads(capsys.readouterr().out)["rows"]}

    assert rounds("--kappa", "1")["SFLV2"] > rounds("--kappa", "1000")["SFLV2"]
    assert rounds("--sequential", "paper_like")["SFLV2"] < rounds()["SFLV2"]
    assert rounds("--plain")["FedAvg"] != rounds()["FedAvg"]
    assert main(["clock", str(comparison), "--cut", "7"]) == 2
    assert main(["clock", str(comparison), "--sequential", "lax"]) == 2
    assert main(["clock", str(comparison), "--profile", "6g"]) == 2


def test_the_clock_of_a_single_run_and_of_a_damaged_one(
    comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = comparison / "runs" / "fedavg" / "seed-0"
    assert main(["clock", str(run), "--target", "0.05"]) == 0
    assert "5.00 % accuracy" in capsys.readouterr().out
    assert main(["clock", str(tmp_path)]) == 2
    (tmp_path / "config.toml").write_bytes((run / "config.toml").read_bytes())
    (tmp_path / "journal.jsonl").write_bytes((run / "journal.jsonl").read_bytes())
    assert main(["clock", str(tmp_path)]) == 2
    assert "model_profile.json: no such file" in capsys.readouterr().err


@pytest.mark.filterwarnings("default::cutlayer.errors.Restored")
def test_the_clock_does_not_use_a_config_that_was_edited(
    comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(comparison / "runs" / "fedavg" / "seed-0", tmp_path / "run")
    words = ["clock", str(run), "--profile", "lte", "--target", "0.05", "--json"]
    assert main(words) == 0
    before = capsys.readouterr().out
    path = run / "config.toml"
    path.write_text(path.read_text().replace("seed = 0", "seed = 1"))
    assert main(words) == 0
    now = capsys.readouterr()
    assert now.out == before
    assert "it has changed since the run began: seed was 0, is 1; what the run was begun with is used" in now.err


def test_a_run_that_lost_its_blocks_writes_them_again(comparison: Path) -> None:
    run = comparison / "runs" / "fedavg" / "seed-0"
    before = (run / "model_profile.json").read_bytes()
    (run / "model_profile.json").unlink()
    list(Experiment.resume(run))
    assert (run / "model_profile.json").read_bytes() == before


def test_a_preset_runs_with_what_is_changed(tmp_path: Path) -> None:
    out = tmp_path / "x"
    line = ["run", "--preset", "demo", "--method", "FedAvgM", "--rounds", "1", "--participation", "2", "--quiet"]
    assert main([*line, "--out", str(out)]) == 0
    config = (out / "config.toml").read_text()
    assert "beta = 0.3" in config and "rounds = 1" in config and "clients = 40" in config


def test_a_folder_of_pictures_trains_and_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for k in range(40):
        path = tmp_path / "photos" / ("cat" if k % 2 else "dog") / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (12 + k % 3, 14, 3), dtype=np.uint8)).save(path)
    flags = ["--image-size", "8", "--clients", "3", "--partition", "iid", "--rounds", "2", "--batch-size", "4"]
    out = tmp_path / "x"
    assert main(["run", "--data", str(tmp_path / "photos"), *flags, "--quiet", "--out", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "complete" and summary["best_accuracy"] is not None
    assert main(["resume", str(out), "--quiet"]) == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["partition", "--shards", "2.5"], "partition.shards = 2.5"),
        (["partition", "--shards", "nan"], "partition.shards = nan"),
        (["partition", "--clients", "0"], "clients = 0"),
        (["list", "cuts", "--classes", "0"], "classes = 0: expected a whole number, at least 1"),
        (["run", "--task", "mnist", "--data-dir", "nowhere"], "nowhere': no such folder"),
    ],
)
def test_numbers_that_make_no_sense(
    flags: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(flags) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_few_rows_are_all_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "few.npz", x=np.random.default_rng(0).normal(size=(30, 4)), y=np.arange(30) % 3)
    assert main(["list", "cuts", "--leakage", "--data", str(tmp_path / "few.npz")]) == 0
    assert "30 rows of own" in " ".join(capsys.readouterr().out.split())


def test_the_clock_of_a_comparison_that_has_hardly_begun(
    comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = tmp_path / "y"
    shutil.copytree(comparison, begun)
    shutil.rmtree(begun / "runs" / "fedavg")
    assert main(["clock", str(begun)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "FedAvg - - - - - -" in said and "the target (FedAvg has none yet)" in said
    assert main(["clock", str(begun), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert figures["target"] is None and figures["rows"][0]["seconds_per_round"] is None


def test_the_doctor_goes_on_after_what_is_not_readable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-00001-of-00002.parquet").touch()
    assert main(["doctor", "--data-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "not readable" in said and "tiny_imagenet" in said


def test_a_run_does_not_go_on_with_another_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["partition", "--clients", "4", "--iid", "--parts", "p.json"]) == 0
    (tmp_path / "run.toml").write_text('rounds = 1\npartition = { name = "file", path = "p.json" }\n')
    assert main(["run", "--config", "run.toml", "--model", "mlp", "--quiet", "--out", "x"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["resume", str(tmp_path / "x"), "--quiet"]) == 0  # its paths are from the root
    monkeypatch.chdir(tmp_path)
    assert main(["partition", "--clients", "4", "--iid", "--seed", "1", "--parts", "p.json"]) == 0
    assert main(["resume", "x", "--quiet"]) == 2
    assert "which client holds which rows, have changed since the run began" in capsys.readouterr().err
