"""A disk that fails for a while, checkpoints beyond the millionth round, and a config that somebody has edited."""

from __future__ import annotations

import errno
import os
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.core import files
from cutlayer.experiment import checkpoint, population
from cutlayer.experiment import config as text
from cutlayer.experiment.experiment import Experiment
from cutlayer.experiment.run_directory import read_summary

BASE: dict[str, Any] = {
    "model": {"name": "mlp", "width": 8},
    "clients": 4,
    "train_rows": 120,
    "rounds": 4,
    "batch_size": 8,
    "local_epochs": 1,
    "scheme": "psl",
}


def trained(out: Path, **more: Any) -> str:
    list(Experiment.start(text.parse({**BASE, **more}), out))
    return str((read_summary(out) or {})["sha256"])


def test_writes_that_fail_for_a_passing_reason_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two hundred of them, wherever they strike: no run is lost, and the bits are the same."""
    expected = trained(tmp_path / "good")
    monkeypatch.setattr(files, "NAP", 0.0)
    monkeypatch.setattr(files, "LONG_NAP", 0.0)
    dice, failed = random.Random(0), 0
    sync, replace = os.fsync, Path.replace

    def fails(path: Any) -> None:
        nonlocal failed
        if failed < 200 and dice.random() < 0.4:
            failed += 1
            code = dice.choice([errno.ENOSPC, errno.EIO, errno.EMFILE])
            raise OSError(code, os.strerror(code), str(path))

    def fsync(descriptor: int) -> None:
        fails(descriptor)
        sync(descriptor)

    def replaces(path: Path, target: Path) -> Path:
        fails(path)
        return replace(path, target)

    runs = 0
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(Path, "replace", replaces)
        while failed < 200:
            runs += 1
            assert trained(tmp_path / str(runs)) == expected
    assert "cannot be written: " in caplog.text and "written at last" in caplog.text


def test_a_write_is_given_up_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cleanly: the old file is what it was, and nothing lies beside it."""
    monkeypatch.setattr(files, "PATIENCE", 0.05)
    path = tmp_path / "file"
    files.write_aside(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            files.write_aside(path, b"new")
        with pytest.raises(OSError, match="No space left"):
            files.append(path, b"more")
    files.append(path, b"!")
    assert path.read_bytes() in (b"old!", b"oldmore!") and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_what_does_not_pass_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.write_aside(tmp_path / "no" / "file", b"")


def test_checkpoints_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Also where they have more digits than others."""
    out = tmp_path / "run"
    trained(out, rounds=1)
    state = Experiment.resume(out).run.state
    about = checkpoint.about(out)
    assert about is not None
    for n in (999_998, 999_999, 1_000_000, 1_000_001):
        checkpoint.save(out, type(state)(n, state.W, state.update, {}, state.participations), about)
    assert {path.name for path in (out / "checkpoints").glob("[0-9]*")} == {"1000000", "1000001"}
    found = checkpoint.load(out, state, 2_000_000)
    assert found is not None and found.n == 1_000_001


def edited(out: Path) -> None:
    path = out / "config.toml"
    path.write_text(path.read_text().replace("lr = 0.05", "lr = 0.04"))


def test_an_edited_config_is_not_used_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = trained(tmp_path / "whole")
    for how in ("undo", "accept"):
        out = tmp_path / how
        for record in Experiment.start(text.parse(BASE), out):
            if record.n == 2:
                break
        edited(out)
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        assert main(["resume", str(out), "--quiet"]) == 2
        said = capsys.readouterr().err
        assert "config.toml: it has changed since the run began: optimizer.lr was 0.05, is 0.04" in said
        assert "--accept-changes goes on with it as it is now, --undo-changes as it was" in said
        assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        assert main(["resume", str(out), "--quiet", f"--{how}-changes"]) == 0
        assert ((read_summary(out) or {})["sha256"] == expected) == (how == "undo")
        assert ("lr = 0.05" in (out / "config.toml").read_text()) == (how == "undo")
        assert main(["resume", str(out), "--quiet"]) == 0, "it is settled"
    assert main(["resume", str(out), "--accept-changes", "--undo-changes"]) == 2


def test_accepting_other_clients_does_not_accept_other_data(tmp_path: Path) -> None:
    """What clients keep would not be theirs; and asking twice does not help."""
    out = tmp_path / "run"
    for record in Experiment.start(text.parse(BASE), out):
        if record.n == 2:
            break
    path = out / "config.toml"
    path.write_text(path.read_text().replace("clients = 4", "clients = 5"))
    for _ in range(2):
        with pytest.raises(cl.StoreError, match="its data, or which client holds which rows, have changed"):
            Experiment.resume(out, changes="accept")
    assert len(list(Experiment.resume(out, changes="undo"))) == 2


def test_an_edited_comparison_is_not_used_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--schemes", "fedavg", "--seeds", "0", "--model", "mlp", "--clients", "4", "--rounds", "1", "--quiet"]
    out = tmp_path / "y"
    assert main(["compare", *flags, "--jobs", "1", "--out", str(out)]) == 0
    path = out / "compare.toml"
    path.write_text(path.read_text().replace("rounds = 1", "rounds = 2"))
    assert main(["resume", str(out), "--quiet"]) == 2
    assert "compare.toml: it has changed since the run began: base.rounds was 1, is 2" in capsys.readouterr().err
    assert main(["resume", str(out), "--quiet", "--undo-changes"]) == 0 and "rounds = 1" in path.read_text()
    path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["resume", str(out), "--quiet"]) == 0
    assert "rounds = 1" in path.read_text()
    assert "compare.toml: no such file or directory; written again, as the run was" in capsys.readouterr().err


def test_a_config_that_says_the_same_otherwise_is_the_same(tmp_path: Path) -> None:
    out = tmp_path / "x"
    trained(out)
    path = out / "config.toml"
    path.write_text(f"# a comment\n{path.read_text().replace(' = ', '=')}")
    assert list(Experiment.resume(out)) == []


def test_the_old_name_of_a_part_is_still_an_error(tmp_path: Path) -> None:
    trained(tmp_path / "x")
    path = tmp_path / "x" / "config.toml"
    path.write_text(path.read_text().replace('name = "psl"', 'name = "pslx"'))
    with pytest.raises(cl.ContractError, match="unknown scheme 'pslx'"):
        Experiment.resume(tmp_path / "x", changes="accept")


def test_inputs_that_changed_are_seen(tmp_path: Path) -> None:
    """One number of one row, the labels as they were: a run does not go on with other data."""
    x, y = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32), np.arange(40) % 3
    data = tmp_path / "rows.npz"
    np.savez(data, x=x, y=y)
    config = {**BASE, "data": str(data), "cut": 0, "train_rows": None}
    for record in Experiment.start(text.parse(config), tmp_path / "run"):
        if record.n == 2:
            break
    x[0, 0] += 1
    np.savez(data, x=x, y=y)
    population.look(text.parse(config))
    with pytest.raises(cl.StoreError, match="its data, or which client holds which rows, have changed"):
        Experiment.resume(tmp_path / "run")
