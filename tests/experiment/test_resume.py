"""A run that was interrupted anywhere ends in the bits of the run that never was."""

from __future__ import annotations

import json
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.core import files, sealed
from cutlayer.experiment import checkpoint, journal, run_directory
from cutlayer.experiment import config as text
from cutlayer.experiment.config import Config
from cutlayer.experiment.experiment import Experiment
from cutlayer.experiment.model_files import load
from tests.forks import forked

BASE: dict[str, Any] = {
    "model": {"name": "mlp", "width": 16},
    "train_rows": 480,
    "clients": 6,
    "participation": 0.5,
    "rounds": 4,
    "batch_size": 16,
    "local_epochs": 1,
}
SCHEMES = ["fedavg", "sflv1", {"name": "sflv1", "every": "step"}, "sflv2", {"name": "sflv2", "reset": "never"}, "smofi"]


def finish(experiment: Experiment) -> str:
    for _ in experiment:
        pass
    return sha(experiment.out)


def interrupted(config: Config, out: Path, after: int) -> None:
    """A run that ends in the middle, as if the power had gone."""
    for record in Experiment.start(config, out):
        if record.n == after:
            break


def sha(out: Path) -> str:
    return str(json.loads((out / "summary.json").read_text())["sha256"])


def without_clock(out: Path) -> list[dict[str, Any]]:
    rounds = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    return [{key: value for key, value in r.items() if key != "seconds"} for r in rounds]


@contextmanager
def crash_at(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, call: int) -> Iterator[None]:
    """The call-th use of a function dies before it does anything."""
    real, count = getattr(module, name), 0

    def dying(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patch.setattr(module, name, dying)
        yield
    assert count >= call


@pytest.mark.parametrize("optimizer", ["sgd", "nag", "adam", "adamw"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_scheme_and_optimizer(tmp_path: Path, scheme: Any, optimizer: str) -> None:
    config = text.parse({**BASE, "scheme": scheme, "optimizer": optimizer, "update": "fedavgm"})
    whole = finish(Experiment.start(config, tmp_path / "whole"))
    interrupted(config, tmp_path / "cut", after=2)
    assert finish(Experiment.resume(tmp_path / "cut")) == whole
    assert without_clock(tmp_path / "cut") == without_clock(tmp_path / "whole")


@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        (journal, "append", 3),  # after a round, before its line
        (checkpoint, "save", 3),  # the line is there, the checkpoint is not (call 1 is the start)
        (checkpoint, "write_aside", 5),  # half a checkpoint lies aside
        (checkpoint.shutil, "rmtree", 1),  # renamed, the old one not yet removed
        (sealed, "save_model", 2),  # the end, half written
    ],
)
def test_a_crash_at_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, call: int
) -> None:
    config = text.parse({**BASE, "update": "fedavgm"})
    whole = finish(Experiment.start(config, tmp_path / "whole"))
    with crash_at(monkeypatch, module, name, call):
        finish(Experiment.start(config, tmp_path / "cut"))
    assert not (tmp_path / "cut" / "summary.json").exists()
    assert finish(Experiment.resume(tmp_path / "cut")) == whole
    assert without_clock(tmp_path / "cut") == without_clock(tmp_path / "whole")


def test_checkpoints_that_are_rare_cost_rounds_not_bits(tmp_path: Path) -> None:
    config = text.parse({**BASE, "checkpoint_every": 3})
    whole = finish(Experiment.start(config, tmp_path / "whole"))
    interrupted(config, tmp_path / "cut", after=2)
    resumed = Experiment.resume(tmp_path / "cut")
    assert resumed.run.state.n == 0
    assert finish(resumed) == whole


@pytest.mark.parametrize("damage", ["flip", "truncate", "no manifest", "manifest", "empty"])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_used(tmp_path: Path, damage: str) -> None:
    config = text.parse(BASE)
    whole = finish(Experiment.start(config, tmp_path / "whole"))
    out = tmp_path / "cut"
    interrupted(config, out, after=3)
    newest = out / "checkpoints" / "000003"
    tensors, manifest = newest / "global.safetensors", newest / "manifest.json"
    content = bytearray(tensors.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
        tensors.write_bytes(content)
    elif damage == "truncate":
        tensors.write_bytes(content[: len(content) // 2])
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "manifest":
        manifest.write_text(manifest.read_text()[:-10])
    else:
        tensors.write_bytes(b"")
    with pytest.warns(checkpoint.DamagedCheckpoint, match="000003"):
        experiment = Experiment.resume(out)
    assert experiment.run.state.n == 2
    assert finish(experiment) == whole


def test_no_whole_checkpoint_is_an_error(tmp_path: Path) -> None:
    finish(Experiment.start(text.parse(BASE), tmp_path / "run"))
    for path in (tmp_path / "run" / "checkpoints").glob("*/manifest.json"):
        path.write_text("{}")
    with pytest.warns(checkpoint.DamagedCheckpoint), pytest.raises(cl.StoreError, match="none of its 2 checkpoints"):
        Experiment.resume(tmp_path / "run")


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    finish(Experiment.start(text.parse(BASE), out))
    (out / "config.toml").write_text((out / "config.toml").read_text().replace("width = 16", "width = 8"))
    with pytest.warns(checkpoint.DamagedCheckpoint, match="the model"), pytest.raises(cl.StoreError):
        Experiment.resume(out, changes="accept")


def test_resuming_a_complete_run_changes_nothing(tmp_path: Path) -> None:
    experiment = Experiment.start(text.parse(BASE), tmp_path / "run")
    before = finish(experiment)
    again = Experiment.resume(tmp_path / "run")
    assert list(again) == []
    assert sha(tmp_path / "run") == before


def test_a_target_stops_the_run_also_after_a_resume(tmp_path: Path) -> None:
    config = text.parse({**BASE, "target": 0.01, "rounds": 9})
    finish(Experiment.start(config, tmp_path / "run"))
    assert len(without_clock(tmp_path / "run")) == 1
    assert list(Experiment.resume(tmp_path / "run")) == []


def test_front_back_and_joined_load_on_their_own(tmp_path: Path) -> None:
    finish(Experiment.start(text.parse({**BASE, "model": "resnet", "cut": 2, "rounds": 1}), tmp_path / "run"))
    model, front, back = (load(tmp_path / "run" / f"{part}.safetensors") for part in ("model", "front", "back"))
    x = torch.rand(5, 1, 8, 8)
    assert torch.equal(back(front(x)), model(x))
    assert len(front) == 3
    with pytest.raises(cl.StoreError, match="cannot be loaded"):
        load(tmp_path / "run" / "config.toml")


def test_a_warm_start_begins_with_the_given_weights(tmp_path: Path) -> None:
    finish(Experiment.start(text.parse(BASE), tmp_path / "first"))
    given = tmp_path / "first" / "model.safetensors"
    second = Experiment.start(text.parse({**BASE, "init": str(given)}), tmp_path / "second")
    assert sealed.digest(second.run.model.state_dict()) == sha(tmp_path / "first")
    with pytest.raises(cl.ContractError, match="not the weights of this model"):
        Experiment.start(text.parse({**BASE, "model": "cnn", "init": str(given)}), tmp_path / "third")
    assert not (tmp_path / "third").exists()


def test_a_diverged_run_keeps_its_last_good_checkpoint(tmp_path: Path) -> None:
    config = text.parse({**BASE, "optimizer": {"decay": 1e9}, "rounds": 50})
    with pytest.raises(cl.Diverged, match=r"round [2-9]: .* learning rate 5e\+"):
        finish(Experiment.start(config, tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "diverged"
    good = Experiment.resume(tmp_path / "run").run.state
    assert good.n == len(without_clock(tmp_path / "run"))
    assert bool(torch.isfinite(good.W.w).all())


def test_a_file_written_aside_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    files.write_aside(target, b"old")
    with crash_at(monkeypatch, files.os, "fsync", 1):
        files.write_aside(target, b"new")
    assert target.read_bytes() == b"old"


def test_kill_9_and_resume_from_the_command_line(tmp_path: Path) -> None:
    """Killed three times at whatever moment it is in, then resumed to the end."""
    flags = ["--model", "mlp", "--clients", "8", "--rounds", "12", "--train-rows", "600", "--local-epochs", "1"]
    flags += ["--update", "fedavgm", "--quiet"]
    assert main(["run", *flags, "--out", str(tmp_path / "whole")]) == 0
    out = tmp_path / "cut"
    arguments = ["run", *flags, "--out", str(out)]
    for kill in range(3):
        with forked(main, arguments) as process:
            written = out / "journal.jsonl"
            while not (written.exists() and written.read_bytes().count(b"\n") > 3 * kill + 1):
                assert not process.ended, process.err
                time.sleep(0.001)
            time.sleep(0.003 * kill)
            process.kill()
            assert process.wait() == -signal.SIGKILL
        arguments = ["resume", str(out), "--quiet"]
    assert main(arguments) == 0
    assert sha(out) == sha(tmp_path / "whole")
    assert without_clock(out) == without_clock(tmp_path / "whole")


def test_only_one_process_trains_in_a_folder(tmp_path: Path) -> None:
    config = text.parse(BASE)
    first = Experiment.start(config, tmp_path / "run")
    with pytest.raises(cl.StoreError, match="another process is training here"):
        Experiment.resume(tmp_path / "run")
    with pytest.raises(cl.StoreError, match="another process is training here"):
        Experiment.start(config, tmp_path / "run", overwrite=True)
    finish(first)
    assert list(Experiment.resume(tmp_path / "run")) == []


@pytest.mark.parametrize("lost", ["torn", "gone"])
def test_journal_and_copy_that_end_before_the_checkpoint_cost_rounds_not_the_run(tmp_path: Path, lost: str) -> None:
    config = text.parse(BASE)
    whole = finish(Experiment.start(config, tmp_path / "whole"))
    out = tmp_path / "cut"
    interrupted(config, out, after=3)
    for path in (out / "journal.jsonl", out / "checkpoints" / "journal.jsonl"):
        if lost == "torn":
            path.write_bytes(path.read_bytes()[:-20])
        else:
            path.unlink()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        experiment = Experiment.resume(out)
    assert any(issubclass(w.category, checkpoint.LostJournal) for w in seen)
    assert experiment.run.state.n == (2 if lost == "torn" else 0)
    assert finish(experiment) == whole
    assert without_clock(out) == without_clock(tmp_path / "whole")


def test_a_warm_started_run_resumes_without_the_file_it_began_from(tmp_path: Path) -> None:
    finish(Experiment.start(text.parse(BASE), tmp_path / "first"))
    given = tmp_path / "given.safetensors"
    (tmp_path / "first" / "model.safetensors").rename(given)
    config = text.parse({**BASE, "init": str(given)})
    whole = finish(Experiment.start(config, tmp_path / "whole"))
    interrupted(config, tmp_path / "cut", after=2)
    given.unlink()
    assert finish(Experiment.resume(tmp_path / "cut")) == whole


def test_an_init_inside_the_folder_to_be_emptied_is_refused(tmp_path: Path) -> None:
    finish(Experiment.start(text.parse(BASE), tmp_path / "run"))
    given = tmp_path / "run" / "model.safetensors"
    with pytest.raises(cl.ContractError, match="--overwrite empties"):
        Experiment.start(text.parse({**BASE, "init": str(given)}), tmp_path / "run", overwrite=True)
    assert given.exists()


@pytest.mark.parametrize("content", ["[]", "{}", "nonsense"])
def test_a_damaged_summary_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(cl.StoreError, match=r"summary.json: damaged"):
        run_directory.read_summary(tmp_path)
