"""`cutlayer sweep`, and what `cutlayer report` can be asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cutlayer.cli.main import main
from cutlayer.experiment import comparison

SMALL = [
    "--model",
    "mlp",
    "--train-rows",
    "480",
    "--clients",
    "6",
    "--rounds",
    "2",
    "--local-epochs",
    "1",
    "--participation",
    "3",
    "--quiet",
]


def test_a_sweep_is_one_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "alpha"
    flags = ["--scheme.alpha", "-1", "-0.1", "0", "--against", "fedavg", "--seeds", "0", "1", "--validation", "0.2"]
    assert main(["sweep", *flags, *SMALL, "--out", str(out)]) == 0
    both = comparison.read(out)
    assert [m.label for m in both.methods] == ["FedAvg", "alpha -1", "alpha -0.1", "alpha 0"]
    assert [dict(m.at) for m in both.methods[1:]] == [{"scheme.alpha": a} for a in (-1.0, -0.1, 0.0)]
    configs = [both.config(m, 0) for m in both.methods]
    assert [c.scheme["name"] for c in configs] == ["fedavg", "smofi", "smofi", "smofi"]
    assert [c.scheme["alpha"] for c in configs[1:]] == [-1.0, -0.1, 0.0]
    assert all(c.validation == 0.2 and c.clients == 6 for c in configs)
    for name in ("sweep.png", "curves.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    assert "validation rows" in (out / "report.html").read_text()
    capsys.readouterr()

    assert main(["report", str(out), "--score", "final", "--target", "0.05", "--curves", "loss", "f1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["score"] == "final" and said["target"] == 0.05
    assert [row["rounds_to_target"] is not None for row in said["rows"]] == [True] * 4
    assert [one["label"] for one in said["differences"]] == ["alpha -1", "alpha -0.1", "alpha 0"]
    assert all(one["baseline"] == "FedAvg" and one["score"]["seeds"] == 2 for one in said["differences"])


def test_points_are_all_combinations_and_a_range_is_one_value(capsys: pytest.CaptureFixture[str]) -> None:
    line = "sweep --model mlp --scheme smofi --cut 0,1 1,2 --optimizer.lr 0.1 0.2 --rounds 1 --dry-run --clients 4"
    assert main([*line.split(), "--seeds", "0"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in ("cut 0 1, lr 0.1", "cut 0 1, lr 0.2", "cut 1 2, lr 0.1", "cut 1 2, lr 0.2", "4 runs"):
        assert words in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sweep --scheme smofi", "expected a flag with several values"),
        ("sweep --seed 0 1", "--seed: a sweep takes --seeds"),
        ("sweep --scheme.alpha -1 1", "scheme.alpha = 1.0: expected a finite number, at most 0"),
        ("sweep --scheme.alph -1 1", "did you mean --scheme.alpha?"),
        ("sweep --scheme fedavg --scheme.alpha -1 -2", "unknown parameter of scheme 'fedavg' 'alpha'"),
        ("sweep --rounds 1 2 --config x --preset demo", "--preset and --config: give one of them"),
        (
            "sweep --seeds 1 --rounds " + " ".join(map(str, range(1, 203))),
            "202 combinations of values: expected at most 200",
        ),
    ],
)
def test_what_cannot_be_swept(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(line.split())
    except SystemExit as exit:
        status = int(str(exit.code))
    assert status == 2 and said in capsys.readouterr().err


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "x"
    assert main(["run", *SMALL, "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--target 70", "target = 70.0: expected an accuracy in (0, 1]"),
        ("--score best-of-all", "unknown score 'best_of_all'"),
        ("--baseline nobody", "unknown baseline 'nobody'"),
        ("--curves speed", "unknown curve 'speed'"),
    ],
)
def test_what_cannot_be_reported(line: str, said: str, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(trained), *line.split()]) == 2
    assert said in capsys.readouterr().err
