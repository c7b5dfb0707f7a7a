"""Parts from outside the package: by import path, registered, or installed; and what is never imported."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.errors import ContractError, FrameError
from cutlayer.experiment import config as text
from cutlayer.network.protocol.codec import NamedParts
from cutlayer.registry import MODELS, OPTIMIZERS, SCHEMES, own
from cutlayer.registry.table import Table
from tests.forks import forked
from tests.network.test_restart import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_scheme.py"
PARTS = """
import os
from subprocess import run
import numpy as np
from torch import nn
import cutlayer as cl
open("imported", "a").close()

def build(shape, classes, width: int = 8, act=nn.ReLU):
    size = int(np.prod(shape))
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(size, width), act()), nn.Linear(width, classes))

def needs(width):
    return nn.Sequential(nn.Linear(6, width), nn.Linear(width, 2))

def plain():
    return nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))

def load():
    x = np.random.default_rng(0).normal(size=(120, 6)).astype("float32")
    return x, (x[:, 0] > 0).astype("int64")

def split():
    x, y = load()
    return {"x": x[20:], "y": y[20:], "x_test": x[:20], "y_test": y[:20], "owners": ["ab"[i % 2] for i in range(100)]}

def wrong():
    return 3

def broken():
    raise KeyError("no")

class Slow(cl.SGD):
    pass

class NoScheme:
    pass

class Net(nn.Module):
    def __init__(self, classes, width: int = 5):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, classes)
    def forward(self, x):
        h = self.first(x).relu()
        return self.last(h + self.second(h).relu())
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with modules of the user's, as the current one; nothing has been named or imported yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own, "_named", set())
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_parts.py").write_text(PARTS)
    (tmp_path / "my_schemes.py").write_text(EXAMPLE.read_text())
    yield tmp_path
    for name in ("my_parts", "my_schemes", "plugin_parts"):
        sys.modules.pop(name, None)
    for table in (SCHEMES, MODELS, OPTIMIZERS):
        table._own.clear()


SMALL = ["--rounds", "2", "--clients", "4", "--batch-size", "8", "--local-epochs", "1", "--quiet"]
OURS = [
    "--model",
    "my_parts:build",
    "--model.width",
    "6",
    "--scheme",
    "my_schemes:MedianServer",
    "--task",
    "my_parts:load",
]


def sha(run: Path) -> str:
    return str(json.loads((run / "summary.json").read_text())["sha256"])


def test_a_run_of_ones_own_parts_is_as_durable_as_any(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *OURS, *SMALL, "--out", "whole"]) == 0
    assert main(["run", *OURS, *SMALL, "--rounds", "1", "--out", "part"]) == 0
    config = here / "part" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 1", "rounds = 2"))
    assert 'name = "my_parts:build"\nwidth = 6\n' in config.read_text()
    capsys.readouterr()
    named = ["--import", "my_parts", "--import", "my_schemes"]
    own._named.clear()
    assert main(["resume", "part", "--accept-changes", "--quiet"]) == 2
    assert "expected --import my_schemes --import my_parts too" in capsys.readouterr().err
    assert main(["resume", "part", *named, "--accept-changes", "--quiet"]) == 0
    assert sha(here / "part") == sha(here / "whole")
    own._named.clear()
    for command in (["report", "part"], ["clock", "part", "--profile", "lte"]):
        assert main(command) == 0
    assert not own.allowed()


def test_a_folder_imports_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *OURS, *SMALL, "--out", "run"]) == 0
    sys.modules.pop("my_parts")
    (here / "imported").unlink()
    own._named.clear()
    config = here / "run" / "config.toml"
    for command in (["resume", "run"], ["run", "--config", str(config), "--out", "again"], ["report", "run"]):
        assert main([*command, "--quiet"]) == (0 if command[0] == "report" else 2)
    assert not (here / "imported").exists() and "my_parts" not in sys.modules
    evil = config.read_text().replace('"my_parts:build"', '"os:system"')
    config.write_text(evil.replace("width = 6", 'command = "touch hacked"'))
    for name in ("os", "my_parts"):
        assert main(["resume", "run", "--accept-changes", "--import", "my_schemes", "--import", name]) == 2
    config.write_text(config.read_text().replace('"os:system"', '"my_parts:run"'))
    assert main(["resume", "run", "--accept-changes", "--import", "my_schemes", "--import", "my_parts"]) == 2
    assert "defined in subprocess; expected one that my_parts defines" in capsys.readouterr().err
    assert not (here / "hacked").exists()


def test_a_config_that_the_user_wrote_counts_as_their_word(here: Path) -> None:
    (here / "mine.toml").write_text(
        'task = "my_parts:split"\nrounds = 1\n[model]\nname = "my_parts:build"\nwidth = 5\n'
    )
    assert main(["run", "--config", "mine.toml", "--partition", "natural", "--out", "run", "--quiet"]) == 0
    assert "width = 5" in (here / "run" / "config.toml").read_text()
    (here / "both.toml").write_text(
        'seeds = [0]\n[base]\ntask = "my_parts:load"\nrounds = 1\nclients = 4\n[[methods]]\nlabel = "ours"\n'
        'scheme = "my_schemes:MedianServer"\n[[methods]]\nlabel = "FedAvg"\nscheme = "fedavg"\n'
    )
    assert main(["compare", "--config", "both.toml", "--out", "both", "--jobs", "1", "--quiet"]) == 0
    assert (here / "both" / "runs" / "ours" / "seed-0" / "summary.json").exists()


def test_compare_takes_import_paths(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["compare", "--schemes", "fedavg", "my_schemes:MedianServer+fedprox", "--seeds", "0", "--jobs", "1", *SMALL]
    assert main([*line, "--task", "my_parts:load"]) == 0
    out = here / "runs" / "compare-my_parts-load"
    assert (out / "runs" / "medianserver-fedprox" / "seed-0" / "summary.json").exists()
    own._named.clear()
    assert main(["resume", str(out)]) == 2 and main(["report", str(out), "--quiet"]) == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--model my_parts:nothing", "no class or function 'nothing' in module my_parts"),
        ("--model no_such:build", "cannot import no_such: ModuleNotFoundError"),
        ("--model my_parts:", "expected MODULE:NAME, such as my_nets:build"),
        ("--model my_parts:build --model.widht 3", "unknown parameter of model 'my_parts:build' 'widht': did you mean"),
        ("--model my_parts:build --model.width big", "width = 'big'"),
        ("--model my_parts:needs", "width"),
        ("--model my_parts:load", "expected a class or function that makes a torch.nn.Module"),
        ("--model my_parts:broken", "cannot be built"),
        ("--scheme my_parts:NoScheme", "scheme = <my_parts.NoScheme"),
        ("--scheme my_parts:broken", "it cannot be made: KeyError: 'no'"),
        ("--task my_parts:wrong", "task 'my_parts:wrong': it returned something else; expected (x, y)"),
        ("--task my_parts:broken", "task 'my_parts:broken': KeyError: 'no'"),
        ("--scheme smofi --scheme.nothing 3", "unknown flag --scheme.nothing"),
    ],
)
def test_what_is_wrong_is_said(here: Path, line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["run", *line.split(), *SMALL, "--out", "run"])
    except SystemExit as end:
        status = int(str(end.code))
    error = capsys.readouterr().err
    assert status == 2 and said in error and error.count("\n") == 1 and not (here / "run").exists()


def test_installed_packages_add_names(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = here / "cutlayer_median-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: cutlayer-median\nVersion: 1.0\n")
    points = "[cutlayer.schemes]\nmedian = my_schemes:MedianServer\nsmofi = my_parts:broken\n"
    (about / "entry_points.txt").write_text(f"{points}[cutlayer.tasks]\nmine = my_parts:load\n")
    sys.path.insert(0, str(here))
    tables: list[Table[object]] = [SCHEMES, cl.registry.TASKS]  # type: ignore[list-item, attr-defined]
    try:
        for table in tables:
            table.__dict__.pop("_installed", None)
        assert main(["list", "schemes"]) == 0
        assert "from the package cutlayer-median" in " ".join(capsys.readouterr().out.split())
        assert "my_schemes" not in sys.modules
        assert main(["run", "--scheme", "median", "--task", "mine", *SMALL, "--out", "run"]) == 0
        assert main(["resume", "run", "--quiet"]) == 0
        assert text.parse({"scheme": "smofi"}).scheme["alpha"] == -0.1  # ours come first
    finally:
        for table in tables:
            table.__dict__.pop("_installed", None)


def test_a_module_registers_names(here: Path) -> None:
    (here / "plugin_parts.py").write_text(
        "import cutlayer as cl, my_schemes, my_parts\n"
        "cl.register('scheme', 'median', my_schemes.MedianServer)\ncl.register('model', 'tiny', my_parts.plain)\n"
        "cl.register('task', 'mine', my_parts.load)\n"
    )
    line = ["--scheme", "median", "--model", "tiny", "--task", "mine", *SMALL]
    assert main(["run", *line, "--out", "a"]) == 2
    assert main(["run", *line, "--import", "plugin_parts", "--out", "a"]) == 0
    cl.registry.TASKS._own.clear()  # type: ignore[attr-defined]
    with pytest.raises(ContractError, match="cutlayer has one of this name"):
        cl.register("scheme", "smofi", object)
    with pytest.raises(ContractError, match="unknown kind 'schema': did you mean 'scheme'"):
        cl.register("schema", "x", object)
    with pytest.raises(ContractError, match="name = 'a b'"):
        cl.register("scheme", "a b", object)


def test_no_server_names_a_module(here: Path) -> None:
    own.allow("my_parts")
    assert OPTIMIZERS["my_parts:Slow"].make().lr == 0.05
    words = {"name": "my_parts:Slow", "numbers": {}}
    with pytest.raises(FrameError, match="a plan whose optimizer is 'my_parts:Slow'"):
        NamedParts().part("optimizer", words)


def test_python_takes_import_paths_too(here: Path) -> None:
    import torch

    x, y = torch.randn(40, 6), torch.arange(40) % 2
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 2))
    run = cl.rounds(model, [(x, y)], scheme="my_schemes:MedianServer", optimizer="my_parts:Slow", rounds=1)
    assert type(run.setup.scheme).__name__ == "MedianServer" and type(run.setup.optimizer).__name__ == "Slow"
    with pytest.raises(ContractError, match=r"scheme = <my_parts\.NoScheme"):
        cl.rounds(model, [(x, y)], scheme="my_parts:NoScheme")


def in_folder(folder: str, words: list[str]) -> int:
    os.chdir(folder)
    return main(words)


def test_serve_and_join_with_a_model_of_ones_own(here: Path) -> None:
    """The client names the model itself; a server's import path is not taken."""
    import numpy as np

    dice = np.random.default_rng(0)
    for name in ("server", "a", "b"):
        np.savez(here / f"{name}.npz", x=dice.normal(size=(24, 6)).astype(np.float32), y=np.arange(24) % 2)
    place, model = f"127.0.0.1:{free_port()}", ["--model", "my_parts:Net", "--model.width", "4"]
    serve = [
        "serve",
        "--data",
        "server.npz",
        *model,
        "--cut",
        "first",
        "--rounds",
        "2",
        "--batch-size",
        "8",
        "--listen",
    ]
    serve += [place, "--min-clients", "2", "--deadline", "240", "--out", "run", "--quiet"]
    join = ["join", "--server", place, "--quiet", "--data"]
    env = {"CUTLAYER_CACHE": str(here / "cache")}
    with forked(in_folder, str(here), serve, env=env) as server:
        with forked(in_folder, str(here), [*join, "a.npz", "--name", "stranger"], env=env) as without:
            assert without.wait() == 2, without.err  # before the others come: they would end the run without it
            refused = "the server trains my_parts:Net, code of its own: expected the same model here, with --model"
            assert refused in without.err
        with (
            forked(in_folder, str(here), [*join, "a.npz", "--name", "a", *model], env=env) as a,
            forked(in_folder, str(here), [*join, "b.npz", "--name", "b", *model], env=env) as b,
        ):
            assert (a.wait(), b.wait(), server.wait()) == (0, 0, 0), a.err + b.err + server.err
    assert cl.open(here / "run").status == "complete"
