"""One file of a run or of a comparison is damaged: it is named, and the run goes on to the bits it would have had."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.errors import Restored
from cutlayer.experiment import checkpoint, compare, comparison, description, journal, pool, run_directory
from cutlayer.experiment import config as text
from cutlayer.experiment.comparison import Comparison
from cutlayer.experiment.experiment import Experiment
from cutlayer.experiment.methods import method
from tests.experiment.test_resume import finish, interrupted, sha, without_clock

BASE: dict[str, Any] = {
    "model": {"name": "mlp", "width": 4},
    "train_rows": 100,
    "clients": 4,
    "participation": 2,
    "rounds": 4,
    "batch_size": 8,
    "local_steps": 1,
}
FIRST = Path("checkpoints") / "000000"


def flip(path: Path, at: int, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    path.write_bytes(content)


# ---- Before the second checkpoint ----------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["manifest.json", "global.safetensors"])
@pytest.mark.parametrize("damage", ["flip", "gone", "empty"])
def test_the_only_checkpoint_is_made_again(tmp_path: Path, file: str, damage: str) -> None:
    """It is of round 0, and what a run begins with follows from its config."""
    config, out = text.parse({**BASE, "checkpoint_every": 3}), tmp_path / "cut"
    whole = finish(Experiment.start(config, tmp_path / "whole"))
    interrupted(config, out, after=2)
    path = out / FIRST / file
    if damage == "flip":
        flip(path, -40)
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"")
    with pytest.warns((checkpoint.DamagedCheckpoint, checkpoint.LostJournal)):
        experiment = Experiment.resume(out)
    assert experiment.run.state.n == 0 and finish(experiment) == whole
    assert without_clock(out) == without_clock(tmp_path / "whole")


@pytest.mark.parametrize("file", ["manifest.json", "global.safetensors"])
def test_unless_it_began_with_other_weights(tmp_path: Path, file: str) -> None:
    """Of the checkpoint's two files, the other one knows."""
    given, out = tmp_path / "given.safetensors", tmp_path / "run"
    for seed in (1, 2):
        finish(Experiment.start(text.parse({**BASE, "rounds": 1, "seed": seed}), tmp_path / str(seed)))
    shutil.copy(tmp_path / "1" / "model.safetensors", given)
    interrupted(text.parse({**BASE, "init": str(given), "checkpoint_every": 3}), out, after=1)
    (out / FIRST / file).write_bytes(b"")
    shutil.copytree(out, tmp_path / "same")
    shutil.copy(tmp_path / "2" / "model.safetensors", given)
    with (
        pytest.warns(checkpoint.DamagedCheckpoint),
        pytest.raises(cl.StoreError, match="its initial weights have changed"),
    ):
        Experiment.resume(out)
    shutil.copy(tmp_path / "1" / "model.safetensors", given)
    with pytest.warns((checkpoint.DamagedCheckpoint, checkpoint.LostJournal)):
        assert len(list(Experiment.resume(tmp_path / "same"))) == 4


# ---- The journal ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [b"{}\n", b'{"n": 4}\n', b"\xff\n"])
def test_lines_that_only_the_copy_has_do_not_count(tmp_path: Path, more: bytes) -> None:
    """A flipped bit may make a line end."""
    out = tmp_path / "run"
    interrupted(text.parse(BASE), out, after=3)
    copy = out / "checkpoints" / "journal.jsonl"
    copy.write_bytes(copy.read_bytes() + more)
    experiment = Experiment.resume(out)
    assert experiment.run.state.n == 3
    finish(experiment)
    assert copy.read_bytes() == (out / "journal.jsonl").read_bytes()


def test_a_line_has_a_checksum_at_once(tmp_path: Path) -> None:
    """Also before the next checkpoint: whoever reads it then sees no other number."""
    out = tmp_path / "run"
    interrupted(text.parse({**BASE, "checkpoint_every": 4}), out, after=2)
    path = out / "journal.jsonl"
    line = path.read_bytes().split(b"\n")[0]
    at = line.index(b'"train_loss": ') + len(b'"train_loss": 0.')
    flip(path, at)
    json.loads(path.read_bytes().split(b"\n")[0])  # it is still a line
    with pytest.warns(journal.DamagedJournal, match="line 1: damaged: it does not match its checksum"):
        assert journal.read(path) == []


def test_checksums_are_written_once(tmp_path: Path) -> None:
    out = tmp_path / "run"
    finish(Experiment.start(text.parse({**BASE, "checkpoint_every": 3}), out))
    seals = (out / "checkpoints" / "journal.seals").read_bytes().split(b"\n")
    assert len(seals) == 4 + 1 and seals[-1] == b""


# ---- The description -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default")
def test_a_damaged_config_is_no_obstacle_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = text.parse(BASE), tmp_path / "cut"
    whole = finish(Experiment.start(config, tmp_path / "whole"))
    interrupted(config, out, after=2)
    (out / "config.toml").write_bytes(b"\xff\x00 rounds = ")
    assert not description.serves(out, checkpoint.config(out))
    assert main(["resume", str(out), "--quiet"]) == 0
    assert "written again, as the run was" in capsys.readouterr().err and sha(out) == whole
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.toml").write_bytes(b"rounds = ")
    with pytest.raises(cl.StoreError, match="not readable as TOML"):
        description.serves(tmp_path / "other", None)


# ---- A comparison --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run, complete."""
    out = tmp_path_factory.mktemp("compared") / "out"
    both = Comparison({**BASE, "rounds": 2}, [method("fedavg")], [0])
    compare.start(both, out, False).close()
    compare.copy(both, out)
    pool._work(text.dump(both.config(both.methods[0], 0)), str(run_of(out)))
    return out


def run_of(out: Path) -> Path:
    return out / "runs" / "fedavg" / "seed-0"


@pytest.mark.parametrize("content", [b"", b"\xff", b"seeds = ", b"seeds = [7]\n"])
def test_a_damaged_copy_is_not_believed(compared: Path, tmp_path: Path, content: bytes) -> None:
    out = shutil.copytree(compared, tmp_path / "out")
    (out / "runs" / "compare.toml").write_bytes(content)
    with pytest.warns(Restored, match=r"runs.compare.toml: damaged: .*; written again"):
        both, lock = compare.resume(out, "refuse")
    lock.close()
    assert both.dump() == comparison.read(compared).dump()
    compare.copy(both, out)
    assert (out / "runs" / "compare.toml").read_bytes() == (compared / "runs" / "compare.toml").read_bytes()


@pytest.mark.parametrize("content", [None, b"", b"seeds = "])
def test_what_is_compared_is_written_again_from_its_copy(compared: Path, tmp_path: Path, content: bytes | None) -> None:
    out = shutil.copytree(compared, tmp_path / "out")
    path = out / "compare.toml"
    path.unlink() if content is None else path.write_bytes(content)
    changed = content == b""  # a file that says nothing, and can be read
    if changed:
        with pytest.raises(cl.ContractError, match="it has changed since the run began: seeds was"):
            compare.resume(out, "refuse")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        both, lock = compare.resume(out, "undo")
    lock.close()
    assert [one.category for one in said] == [] if changed else [Restored]
    assert path.read_bytes() == (compared / "compare.toml").read_bytes() and both.seeds == [0]


def test_undoing_changes_undoes_those_of_its_runs(compared: Path, tmp_path: Path) -> None:
    out = shutil.copytree(compared, tmp_path / "out")
    path = run_of(out) / "config.toml"
    before = path.read_text()
    path.write_text(before.replace("rounds = 2", "rounds = 3"))
    (run_of(out) / "summary.json").unlink()
    config = text.dump(comparison.read(out).config(method("fedavg"), 0))
    with pytest.raises(cl.ContractError, match="rounds was 2, is 3"):
        pool._work(config, str(run_of(out)))
    compare.resume(out, "undo")[1].close()
    assert path.read_text() == before
    pool._work(config, str(run_of(out)))
    assert sha(run_of(out)) == sha(run_of(compared))


@pytest.mark.parametrize("file", [*run_directory.MODELS, "journal.jsonl", "manifest.json", "global.safetensors"])
@pytest.mark.parametrize("damage", ["flip", "gone"])
@pytest.mark.filterwarnings(
    "ignore::cutlayer.experiment.journal.DamagedJournal",
    "ignore::cutlayer.experiment.journal.TornJournal",
    "ignore::cutlayer.experiment.checkpoint.DamagedCheckpoint",
)
def test_a_complete_run_whose_weights_or_rounds_are_damaged_is_not_done(
    compared: Path, tmp_path: Path, file: str, damage: str
) -> None:
    out = shutil.copytree(compared, tmp_path / "out")
    assert pool.done(run_of(out))
    (path,) = (one for one in run_of(out).rglob(file) if one.parent.name not in ("checkpoints", "000001"))
    whole = path.read_bytes()
    flip(path, -1) if damage == "flip" else path.unlink()
    with pytest.warns(Restored, match=f"({file}|checkpoint .*): .*; written again"):
        assert not pool.done(run_of(out))
    pool._work(text.dump(comparison.read(out).config(method("fedavg"), 0)), str(run_of(out)))
    assert path.read_bytes() == whole and pool.done(run_of(out))


def test_a_complete_run_needs_no_checkpoints(compared: Path, tmp_path: Path) -> None:
    out = shutil.copytree(compared, tmp_path / "out")
    shutil.rmtree(run_of(out) / "checkpoints")
    assert pool.done(run_of(out))
