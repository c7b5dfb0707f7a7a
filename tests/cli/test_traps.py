"""What used to surprise: presets keep their tuned values, and options that do nothing say so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import cutlayer as cl
from cutlayer.cli.commands.train import _comparison
from cutlayer.cli.main import main, parser
from cutlayer.errors import ContractError, NoEffect, RoundAbandoned
from cutlayer.experiment import config as text
from cutlayer.experiment import effects
from cutlayer.experiment.comparison import Comparison
from cutlayer.experiment.config import Config
from cutlayer.experiment.experiment import Experiment
from cutlayer.experiment.methods import NAMED, method
from cutlayer.registry import SCHEMES
from tests.forks import forked

SMALL = ["--model", "mlp", "--train-rows", "480", "--clients", "6", "--rounds", "2", "--local-epochs", "1", "--quiet"]


def compared(line: str) -> Comparison:
    return _comparison(parser().parse_args(["compare", *line.split()]))[0]


def configs(line: str) -> dict[str, Config]:
    both = compared(line)
    return {m.label: both.config(m, 0) for m in both.methods}


@pytest.mark.parametrize(
    ("preset", "beta_g", "avgm", "T"),
    [
        ("smofi-cifar10", 0.3, 0.3, 75),
        ("smofi-cifar100", 0.5, 0.5, 75),
        ("smofi-tiny", 0.5, 0.5, 40),
        ("smofi-shakespeare", 0.5, 0.7, 115),
    ],
)
def test_picked_methods_of_a_preset_keep_their_tuned_values(preset: str, beta_g: float, avgm: float, T: int) -> None:
    found = configs(f"--preset {preset} --schemes fedavg FedAvgM smofi-full slowmo FedNAG mergesfl sflv1")
    labels = ["FedAvg", "FedAvgM", "SMoFi + FedAvgM", "SlowMo", "FedNAG", "MergeSFL", "SFLV1 (epoch)"]
    assert list(found) == labels
    assert found["SMoFi + FedAvgM"].update == {"name": "fedavgm", "beta": beta_g}
    assert found["FedAvgM"].update == {"name": "fedavgm", "beta": avgm}
    assert {found[label].local_steps for label in ("SlowMo", "FedNAG", "MergeSFL")} == {T}


def test_others_come_in_only_when_they_are_asked_for() -> None:
    with pytest.raises(ContractError, match=r"unknown method of this preset 'smofi'.*`--add smofi` adds it"):
        compared("--preset smofi-tiny --schemes fedavg smofi")
    found = configs("--preset smofi-tiny --schemes fedavg --add smofi")
    assert list(found) == ["FedAvg", "SMoFi"] and found["SMoFi"].update["name"] == "fedavg"
    with pytest.raises(ContractError, match="--add smofi: it adds to a --preset's methods"):
        compared("--add smofi")
    with pytest.raises(ContractError, match=r"unknown method of this preset 'smofy': valid"):
        compared("--preset demo --schemes smofy")


def test_which_values_each_method_got_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "compare --preset demo --schemes fedavg smofi-full --seeds 0 --rounds 1 --jobs 1"
    assert main([*line.split(), "--out", str(tmp_path / "y")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "SMoFi + FedAvgM scheme smofi (alpha -0.1," in said and "update fedavgm (beta 0.3)" in said


def test_smofi_is_fusion_alone_and_its_variants_have_their_counterparts() -> None:
    assert method("smofi").changes == {"scheme": "smofi"} and method("smofi").label == "SMoFi"
    for name in ("smofi", "smofi-adaptive", "smofi-clients"):
        alone, full = method(name), method(f"{name}-full")
        assert full.label == f"{alone.label} + FedAvgM"
        one, other = (text.parse(dict(m.changes)) for m in (alone, full))
        assert one.scheme == other.scheme and one.update["name"] == "fedavg" and other.update["name"] == "fedavgm"
    assert "smofi-full" in NAMED


def test_augmentation_that_does_not_exist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--augment", "--out", str(tmp_path / "x")]) == 2
    assert "augment = True: expected false" in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_mergesfl_skips_nobody() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    clients = [(torch.randn(8, 4), torch.arange(8) % 2)] * 2
    with pytest.warns(NoEffect, match="small_client = 'skip' has no effect here: MergeSFL"):
        cl.rounds(model, clients, scheme="mergesfl", small_client="skip", batch_size=4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"local_epochs": 2, "local_steps": 3}, "local_epochs = 2"),
        ({"local_epochs": 2, "protocol": "cyclesl"}, "local_epochs = 2"),
        ({"holdout": 0.2}, "holdout = 0.2"),
        ({"data_dir": "/data"}, "data_dir"),
        ({"kept_memory": 10.0}, "kept_memory"),
        ({"sequential": "paper_like"}, "sequential"),
        ({"ranks": "fast"}, "ranks"),
        ({"scheme": {"name": "smofi", "adaptive": True, "alpha": -0.3}}, "scheme.alpha = -0.3"),
        ({"scheme": {"name": "smofi", "adaptive": True, "stale_offset": 0}}, "scheme.stale_offset = 0"),
        ({"scheme": {"name": "smofi", "rebias_history": True}}, "scheme.rebias_history = True"),
        ({"scheme": {"name": "psl", "memory": "client"}}, "scheme.memory = 'client'"),
    ],
    ids=str,
)
def test_options_without_effect_are_said(given: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cutlayer.cli.commands.plan import names

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    (found,) = effects.idle(text.parse(given), names(given))
    assert found.startswith(said) and "has no effect here" in found
    with pytest.warns(NoEffect, match="has no effect here"):
        effects.check(text.parse(given), names(given))


def test_options_with_an_effect_are_not_mentioned() -> None:
    given = {"protocol": "cyclesl", "holdout": 0.2, "kept_memory": 10.0, "scheme": {"name": "psl", "memory": "client"}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        effects.check(text.parse(given), (*given, "scheme.memory"))


@pytest.mark.parametrize("field", effects.OF_OWN_DATA)
def test_options_of_own_data_without_own_data_are_refused(field: str) -> None:
    with pytest.raises(ContractError, match=f"{field} = .*expected --data too"):
        effects.check(text.parse({}), (field,))


def test_a_report_needs_no_part_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run with a scheme that only its own program knows: reported by a program that does not."""
    cl.register("scheme", "ours", cl.SMoFi)
    try:
        out = tmp_path / "x"
        config = text.parse({"scheme": "ours", "model": "mlp", "clients": 4, "rounds": 2, "local_epochs": 1})
        for _ in Experiment.start(config, out):
            pass
    finally:
        del SCHEMES._own["ours"]
    assert main(["report", str(out)]) == 0
    assert "best accuracy" in capsys.readouterr().out and (out / "report.html").exists()
    assert main(["resume", str(out)]) == 2
    said = capsys.readouterr().err
    assert "unknown scheme 'ours'" in said and "--import the module that registers it" in said


def test_the_first_lines_say_what_was_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["run", "--model", "mlp", "--rounds", "1", "--participation", "3", "--scheme.alpha", "-0.2"]
    assert main([*line, "--out", str(tmp_path / "x")]) == 0
    rows = [" ".join(row.split()) for row in capsys.readouterr().out.splitlines()]
    for expected in (
        "cut 0 task digits",
        "batch size 8 task digits",
        "participation 3 chosen",
        "protocol smofi default",
    ):
        assert expected in rows
    assert any(row.startswith("scheme smofi (alpha -0.2") for row in rows)


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_dry_run_writes_nothing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = [*SMALL, "--dry-run"] if command == "run" else [*SMALL, "--schemes", "fedavg", "sflv2", "--dry-run"]
    assert main([command, *line]) == 0
    said = capsys.readouterr().out
    assert "nothing was written" in said and "about" in said and list(tmp_path.iterdir()) == []
    for word in ("weights", "traffic", "memory", "time", "[scheme]") if command == "run" else ("FedAvg", "SFLV2"):
        assert word in said


def test_what_a_dry_run_says_is_what_a_run_sends(tmp_path: Path) -> None:
    from cutlayer.cli.commands import plan
    from cutlayer.experiment.experiment import assemble

    config = text.parse({"model": "mlp", "clients": 4, "rounds": 1, "partition": "iid", "local_epochs": 1})
    run = assemble(config)
    each, _ = plan.traffic(run)
    (record,) = run
    labels = 8 * record.samples
    assert (record.bytes_up + record.bytes_down - labels) / record.participants == pytest.approx(each, rel=0.01)


def test_json_is_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *SMALL, "--out", str(tmp_path / "x")]) == 0
    capsys.readouterr()
    lines = {
        "list": {"schemes", "profiles", "presets"},
        "list cuts --model mlp --input 4": {"cuts", "model"},
        "doctor": {"packages", "data", "machine"},
        f"report {tmp_path / 'x'}": {"rows", "summary"},
        f"clock {tmp_path / 'x'}": {"rows", "target"},
    }
    for line, keys in lines.items():
        assert main([*line.split(), "--json"]) == 0
        assert keys <= set(json.loads(capsys.readouterr().out)), line


def test_completion_knows_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh"):
        assert main(["completion", shell]) == 0
        said = capsys.readouterr().out
        assert "scheme.alpha" in said and "--dry-run" in said
    script = subprocess.run(["bash", "-n"], input=_completion(capsys), text=True, capture_output=True, check=False)
    assert script.returncode == 0, script.stderr


def _completion(capsys: pytest.CaptureFixture[str]) -> str:
    main(["completion", "bash"])
    return capsys.readouterr().out


def test_progress_in_a_log(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from cutlayer.engine import progress

    monkeypatch.setattr(progress, "FIRST", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    x, y = torch.randn(16, 4), torch.arange(16) % 2
    arguments: dict[str, Any] = {"rounds": 2, "batch_size": 4, "local_epochs": 1}
    cl.train(model, [(x, y)], test=(x, y), progress=True, **arguments)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["SMoFi: round 1 of 2", "SMoFi: round 2 of 2"]
    cl.train(model, [(x, y)], test=(x, y), **arguments)
    assert capsys.readouterr().out == ""


def test_a_round_given_up_has_a_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def abandon(*_: Any, **__: Any) -> None:
        raise RoundAbandoned("round 3: none of its clients finished")

    monkeypatch.setattr(Experiment, "start", abandon)
    assert main(["run", "--out", str(tmp_path / "x")]) == 4
    assert capsys.readouterr().err == "cutlayer: error: round 3: none of its clients finished\n"


def hearing(words: list[str]) -> int:
    """A command that hears SIGINT: a shell's background jobs are born deaf to it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return main(words)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["term", "int"])
def test_a_run_that_is_told_to_stop_says_how_to_go_on(number: signal.Signals, status: int, tmp_path: Path) -> None:
    out = tmp_path / "x"
    flags = ["--model", "mlp", "--clients", "6", "--rounds", "100000", "--quiet", "--out", str(out)]
    with forked(hearing, ["run", *flags]) as child:
        while not (out / "journal.jsonl").exists():
            assert not child.ended, child.err
            time.sleep(0.05)
        os.kill(child.pid, number)
        assert child.wait() == status and "`cutlayer resume` on the output folder goes on from here" in child.err


@pytest.mark.parametrize("line", ["list", "run --help-all", "list --json"])
def test_a_reader_that_goes_away(line: str) -> None:
    """As in `cutlayer list | head -1`: no traceback, and the status a shell expects."""
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-m", "cutlayer", *line.split()]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
