"""The command line as a user meets it: what it says, what it writes, how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from cutlayer.cli.main import main
from tests.forks import forked

SMALL = ["--model", "mlp", "--train-rows", "480", "--clients", "6", "--rounds", "2", "--local-epochs", "1", "--quiet"]


def test_the_flags_of_the_manual_parse_and_train(tmp_path: Path) -> None:
    line = (
        "run --task digits --scheme smofi --scheme.alpha -0.1 --update fedavgm --update.beta 0.3 --optimizer adam "
        "--optimizer.lr 1e-3 --rounds 2 --seed 0 --cut 1 --participation 0.2 --batch-size 8 --local-epochs 1"
    )
    out = tmp_path / "x"
    assert main([*line.split(), "--quiet", "--out", str(out)]) == 0
    names = {"config.toml", "journal.jsonl", "checkpoints", "model.safetensors", "summary.json", "report.html"}
    assert names <= {path.name for path in out.iterdir()}
    assert len((out / "journal.jsonl").read_text().splitlines()) == 2
    config = (out / "config.toml").read_text()
    assert "beta = 0.3" in config and 'name = "adam"' in config and "lr = 0.001" in config and "cut = 1" in config


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run --scheme smofy", "unknown scheme 'smofy': did you mean 'smofi'?"),
        ("run --task digit", "unknown task 'digit': did you mean 'digits'?"),
        ("run --cut 9", "cut = 9: expected block indices from 0 to 2"),
        ("run --cut 1 0", "cut = (1, 0)"),
        ("run --cut x", "cut"),
        ("run --batch-size 5000", "batch_size = 5000"),
        ("run --rounds -3", "rounds = -3"),
        ("run --rounds many", "rounds = 'many'"),
        ("run --participation 0", "participation = 0"),
        ("run --participation 1.01", "participation = 1.01"),
        ("run --scheme.alpha 0.1", "scheme.alpha = 0.1: expected a finite number, at most 0"),
        ("run --scheme.alfa -1", "unknown flag --scheme.alfa: did you mean --scheme.alpha?"),
        ("run --optimizer.lr nan", "optimizer.lr = nan"),
        ("run --optimizer.lr -1e-3", "optimizer.lr = -0.001"),
        ("run --optimizer adam --optimizer.momentum 0.9", "unknown parameter of optimizer 'adam' 'momentum'"),
        ("run --rouns 3", "unknown flag --rouns: did you mean --rounds?"),
        ("run --clients 9999", "clients = 9999"),
        ("run --partition.gamma 0", "partition.gamma = 0"),
        ("run --task cifar10", "task 'cifar10': no data folder: give --data-dir FOLDER"),
        ("run --profile lt", "unknown profile 'lt': did you mean 'lte'?"),
        ("run --preset dem", "unknown preset 'dem': did you mean 'demo'?"),
        ("run --preset demo --method SFLV", "unknown method of this preset 'SFLV': did you mean 'SFLV2'?"),
        ("run --preset demo --method smofi", "unknown method of this preset 'smofi'"),
        ("run --method SMoFi", "--method SMoFi: it names one of a --preset's methods"),
        ("run --data nowhere", "nowhere': no such folder or file"),
        ("run --partition file", "partition.path = ''"),
        ("run --kappa 0", "kappa = 0"),
        ("partition --dirichlet 0.2 --iid", "expected one of --dirichlet"),
        ("partition --shards 0", "partition.shards = 0"),
        ("partition --parts /nowhere/p.json", "no such folder"),
        ("clock nowhere", "nowhere: no such folder"),
        ("list cuts --model resnet1 --input 3x32x32", "unknown model 'resnet1': did you mean 'resnet18'?"),
        ("list cuts --model vgg11 --input 3x8x8", "shape = (3, 8, 8)"),
        ("list cuts --input 3by32", "input = '3by32': expected sizes such as 3x32x32"),
        ("list cuts --task digits --input 3x32x32", "the rows of digits are 1x8x8"),
        ("run --config nowhere.toml", "nowhere.toml: no such file"),
        ("run --init nowhere.safetensors", "nowhere.safetensors'"),
        ("run --device cudaa", "device = 'cudaa'"),
        ("run --out /proc/nowhere", "/proc"),
        ("rnu", "unknown command 'rnu': did you mean 'run'?"),
        ("compare --schemes fedavg smofy", "unknown method 'smofy': did you mean 'smofi'?"),
        ("compare --schemes fedavg fedavg", "each method once"),
        ("compare --seeds a", "seeds = ['a']"),
        ("compare --preset dmeo", "unknown preset 'dmeo': did you mean 'demo'?"),
        ("compare --schemes smofi --batch-size 5000", "SMoFi, seed 0: batch_size = 5000"),
        ("compare --schemes fedavg --update fedavgm", "--update: a comparison takes --schemes SCHEME+UPDATE"),
        ("compare --scheme smofi", "--scheme: a comparison takes --schemes"),
        ("compare --seed 3", "--seed: a comparison takes --seeds"),
        ("compare --preset demo --config x.toml", "give one of them"),
        ("compare --schemes fedavg --scheme.alpha -1", "--scheme.alpha -1: no method of this comparison takes it"),
        ("run --scheme SMOFI", "did you mean 'smofi'?"),
        ("run --model.width -3", "model"),
        ("run --model resnet --model.norm gn --model.width 3", "an even number"),
        ("list schems", "unknown kind 'schems': did you mean 'schemes'?"),
        ("resume nowhere", "nowhere holds no run"),
        ("report nowhere", "nowhere: no such folder"),
    ],
)
def test_bad_input_is_one_clear_line_and_nothing_is_written(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUTLAYER_DATA", raising=False)
    try:
        status = main(line.split())
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    assert status == 2
    assert captured.err.startswith("cutlayer: error: ") and captured.err.count("\n") == 1
    assert said in captured.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_a_run_is_not_overwritten_unless_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x"
    assert main(["run", *SMALL, "--out", str(out)]) == 0
    before = (out / "summary.json").read_text()
    (out / "notes.txt").write_text("mine")
    assert main(["run", *SMALL, "--seed", "1", "--out", str(out)]) == 2
    assert "cutlayer resume" in (said := capsys.readouterr().err) and "--overwrite" in said
    assert (out / "summary.json").read_text() == before
    assert main(["run", *SMALL, "--seed", "1", "--out", str(out), "--overwrite"]) == 0
    assert json.loads((out / "summary.json").read_text())["sha256"] != json.loads(before)["sha256"]
    assert (out / "notes.txt").read_text() == "mine"


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    assert main(["run", *SMALL, "--out", str(tmp_path), "--overwrite"]) == 2
    assert "is not empty and holds no run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_a_diverged_run_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *SMALL, "--optimizer.lr", "1e20", "--out", str(tmp_path / "x")]) == 3
    said = capsys.readouterr().err
    assert "round 1" in said and "client" in said and "learning rate 1e+20" in said


def test_a_comparison_writes_table_picture_and_page_and_can_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "y"
    flags = [flag for flag in SMALL if flag != "--quiet"]
    assert (
        main(["compare", "--schemes", "fedavg", "smofi+fedavgm", "--seeds", "0", "1", *flags, "--out", str(out)]) == 0
    )
    said = capsys.readouterr().out
    for word in ("FedAvg", "SMoFi + fedavgm", "best accuracy", "speed-up", "KiB per client", "seconds", "curves.png"):
        assert word in said
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "report.html").read_text()
    assert "data:image/png;base64," in page and "://" not in page  # self-contained
    table = json.loads((out / "table.json").read_text())
    assert [row["label"] for row in table["rows"]] == ["FedAvg", "SMoFi + fedavgm"]
    assert table["target"] == pytest.approx(0.9 * sum(table["rows"][0]["bests"]) / 2)
    (out / "runs" / "fedavg" / "seed-1" / "summary.json").unlink()
    assert main(["resume", str(out), "--quiet"]) == 0
    assert (out / "runs" / "fedavg" / "seed-1" / "summary.json").exists()
    assert json.loads((out / "table.json").read_text())["target"] == table["target"]


def test_a_method_that_diverges_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'seeds = [0]\n[base]\nmodel = "mlp"\nclients = 6\nrounds = 2\nlocal_epochs = 1\n'
        '[[methods]]\nlabel = "FedAvg"\nscheme = "fedavg"\n'
        '[[methods]]\nlabel = "wild"\nscheme = "fedavg"\noptimizer = { lr = 1e20 }\n'
    )
    assert main(["compare", "--config", str(recipe), "--out", str(tmp_path / "y")]) == 0
    assert "(1 diverged)" in capsys.readouterr().out


def test_list_shows_every_kind_with_its_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    for word in ("digits", "resnet", "smofi", "fedavgm", "dirichlet", "smofi-no-alignment", "AAAI 2026", "Hsu et al."):
        assert word in said


def test_doctor_tells_what_is_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--data-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "cores" in said and "torch" in said and "ready (comes with scikit-learn)" in said
    assert f"missing: put train.parquet and test.parquet, whole or in shards into {tmp_path / 'cifar10'}" in said
    assert "extra      dev: ready" in said


@pytest.mark.parametrize("command", ["", "run", "compare", "resume", "report", "list", "partition", "clock", "doctor"])
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert len(said) > 200
    if command in ("partition", "clock", "list"):
        assert "examples:" in said
    if command in ("run", "compare"):
        assert "examples:" in said and "default" in said and "--help-all" in said and "VALUE" not in said


def test_as_a_module(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "cutlayer", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cutlayer ")


def test_a_comparison_can_be_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "y"
    line = ["compare", "--schemes", "fedavg", "--seeds", "0", *SMALL, "--out", str(out)]
    assert main(line) == 0
    assert main([*line, "--overwrite", "--rounds", "1"]) == 0
    assert (out / "compare.toml").exists() and not (out / "config.toml").exists()
    assert len((out / "runs" / "fedavg" / "seed-0" / "journal.jsonl").read_text().splitlines()) == 1
    assert main(["resume", str(out), "--quiet"]) == 0


def test_overwrite_never_touches_what_is_not_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.toml", "model.safetensors", "runs/precious.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    assert main(["run", *SMALL, "--out", str(tmp_path), "--overwrite"]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert (tmp_path / "runs" / "precious.txt").read_text() == (tmp_path / "model.safetensors").read_text() == "mine"


def test_parameters_without_a_name_reach_every_method_that_has_them(tmp_path: Path) -> None:
    out = tmp_path / "y"
    given = f"--rounds 1 --seeds 0 --scheme.alpha -0.7 --update.beta 0.6 --out {out}".split()
    flags = [*SMALL, *given]
    assert main(["compare", "--schemes", "fedavg", "smofi-full", *flags]) == 0
    config = (out / "runs" / "smofi-fedavgm" / "seed-0" / "config.toml").read_text()
    assert "alpha = -0.7" in config and "beta = 0.6" in config
    assert "alpha" not in (out / "runs" / "fedavg" / "seed-0" / "config.toml").read_text()


def test_a_comparison_in_which_all_diverge_exits_with_3(tmp_path: Path) -> None:
    flags = [*SMALL, "--seeds", "0", "--optimizer.lr", "1e20", "--out", str(tmp_path / "y")]
    assert main(["compare", "--schemes", "fedavg", "smofi", *flags]) == 3


def leading(words: list[str]) -> int:
    """A command whose processes can be told from others; who cleans up after them is one of them."""
    os.setsid()
    resource_tracker._resource_tracker._fd = None  # type: ignore[attr-defined]
    return main(words)


def members(session: int) -> list[int]:
    """The processes of a session that compute, or could."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, belongs = path.read_text().rpartition(")")[2].split()[:4]
            if int(belongs) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    """kill -9 of a comparison leaves nobody training; resuming it gives whole runs."""
    out = tmp_path / "y"
    flags = ["--schemes", "fedavg", "smofi", "--seeds", "0", "--model", "mlp", "--clients", "6", "--rounds", "30"]
    flags += ["--train-rows", "300"]  # short rounds: whoever went on training would get to the end
    journals = [out / "runs" / name / "seed-0" / "journal.jsonl" for name in ("fedavg", "smofi")]
    with forked(leading, ["compare", *flags, "--quiet", "--jobs", "2", "--out", str(out)]) as parent:
        while not all(path.exists() for path in journals):
            assert not parent.ended, parent.err
            time.sleep(0.01)
        assert len(members(parent.pid)) >= 3
        parent.kill()
        parent.wait()
        while members(parent.pid):
            time.sleep(0.01)
    assert all(len(path.read_text().splitlines()) < 30 for path in journals)
    assert main(["resume", str(out), "--quiet"]) == 0
    assert [len(path.read_text().splitlines()) for path in journals] == [30, 30]
