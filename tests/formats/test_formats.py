"""Run directories, checkpoints and frames that an earlier version wrote: this one reads them and goes on."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer.cli.main import main
from cutlayer.experiment.checkpoint import FORMAT
from cutlayer.experiment.experiment import Experiment
from cutlayer.network.protocol.codec import decode
from cutlayer.network.protocol.handshake import Hello, Welcome, read
from cutlayer.network.transport.frames import VERSION, Frame, Reader
from tests.clients.test_codec import LOSS, MESSAGES, same
from tests.formats import make

HERE = Path(__file__).parent
RUNS = sorted(path.stem for path in HERE.glob("run-*.zip"))
FRAMES = {path.stem: json.loads(path.read_text()) for path in sorted(HERE.glob("frames-*.json"))}
EVERY = [(version, name) for version, frames in FRAMES.items() for name in frames]


def unpacked(name: str, folder: Path) -> Path:
    with zipfile.ZipFile(HERE / f"{name}.zip") as archive:
        archive.extractall(folder / name)
    return folder / name


def arrived(version: str, name: str) -> Frame:
    found = Reader(2**20).read(bytes.fromhex(FRAMES[version][name]))
    assert found is not None
    return found


def test_todays_formats_are_among_them() -> None:
    assert {f"run-{FORMAT}-{name}" for name in make.RUNS} <= set(RUNS)
    assert f"frames-{VERSION}" in FRAMES


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_an_earlier_version_began(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its state is read to the bit, it is trained to its end and reported; what was in its journal stays."""
    out, expected = unpacked(name, tmp_path), json.loads((HERE / f"{name}.json").read_text())
    experiment = Experiment.resume(out)
    journal = expected.pop("journal")
    assert make.held(experiment.run.state) == expected
    assert [record.n for record in experiment] == [3, 4]
    lines = (out / "journal.jsonl").read_text().splitlines()
    assert lines[:2] == journal and len(lines) == 4
    assert (out / "model.safetensors").exists() and json.loads((out / "summary.json").read_text())["rounds"] == 4
    assert main(["report", str(out)]) == 0 and "acc" in capsys.readouterr().out.lower()


@pytest.mark.parametrize(("version", "name"), EVERY)
def test_a_frame_of_an_earlier_version(version: str, name: str) -> None:
    found, known = arrived(version, name), make.OTHERS.get(name)
    if name in MESSAGES:
        assert same(decode(found, LOSS), make.numbered(MESSAGES[name]))
    elif known is not None:
        kind, said, tensors = known
        assert (found.kind, plain(found.words)) == (kind, plain(said)) and all(map(torch.equal, found.tensors, tensors))
    else:
        (tensor,) = found.tensors
        near = torch.arange(24.0).view(2, 3, 2, 2)
        assert torch.allclose(tensor, near, atol=0.1 if name == "eight bits" else 0.0)


def plain(words: Any) -> Any:
    return json.loads(json.dumps(words))


@pytest.mark.parametrize("version", FRAMES)
def test_greetings(version: str) -> None:
    assert read(arrived(version, "hello").words, Hello) == Hello(name="ward-1")
    assert read(arrived(version, "welcome").words, Welcome) == make.WELCOME


def test_todays_frames_are_written_as_they_were() -> None:
    """To the byte, but for what zstd makes of them, which depends on its version."""
    known, now = FRAMES[f"frames-{VERSION}"], make.frames()
    assert known.keys() == now.keys()
    assert [name for name in known if name != "compressed" and known[name] != now[name].hex()] == []
