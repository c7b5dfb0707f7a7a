"""What each tracker's own reader finds is what the journal says, each figure once; also after a resume."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.track.names import TRACKERS
from tests.api.programs import clients, net
from tests.forks import forked
from tests.track.test_tracked import SMALL, journal

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]  # the trackers' packages warn of each other
Triple = tuple[int, str, float]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's settings, and nobody is told that a test ran."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_DIR", "TRACKIO_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def from_tensorboard(folder: Path) -> Iterator[Triple]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    for name in events.Tags()["scalars"]:
        yield from ((event.step, name, event.value) for event in events.Scalars(name))


def from_mlflow(folder: Path) -> Iterator[Triple]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (run,) = client.search_runs(
        [one.experiment_id for one in client.search_experiments()]
    )  # deleted ones are not there
    assert run.info.run_name == "x" and run.info.status == "FINISHED"
    assert run.data.params["batch_size"] == "8" and run.data.params["scheme.name"] == "smofi"
    for name in run.data.metrics:
        yield from ((one.step, name, one.value) for one in client.get_metric_history(run.info.run_id, name))


def from_wandb(folder: Path) -> Iterator[Triple]:
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # now all its files are written
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    step, summary, config = 0, dict[str, Any](), dict[str, Any]()
    for line in _records(file.read_bytes()):
        record = Record.FromString(line)
        config |= {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.run.config.update}
        summary |= {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.summary.update}
        for item in record.history.item:
            step = record.history.step.num
            if not item.key.startswith("_") and not (item.nested_key and item.nested_key[0].startswith("_")):
                yield step, item.key or "/".join(item.nested_key), json.loads(item.value_json)
    assert config["batch_size"] == 8 and summary["status"] == "complete"
    yield from ((step, name, value) for name, value in summary.items() if name.startswith("summary/"))


def _records(content: bytes) -> Iterator[bytes]:
    """The records of a W&B file: blocks of 32 KiB as LevelDB's log has them, after seven bytes."""
    place, parts = 7, b""
    while place + 7 <= len(content):
        left = -place % 32768
        if 0 < left < 7:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def from_trackio(folder: Path) -> Iterator[Triple]:
    with sqlite3.connect(folder / "cutlayer.db") as database:
        for step, metrics in database.execute("SELECT step, metrics FROM metrics").fetchall():
            yield from ((step, name, value) for name, value in json.loads(metrics).items())


READERS: dict[str, tuple[str, Callable[[Path], Iterator[Triple]]]] = {
    "tensorboard": ("tensorboard", from_tensorboard),
    "mlflow": ("mlflow", from_mlflow),
    "wandb": ("wandb", from_wandb),
    "trackio": ("trackio", from_trackio),
}


def found(out: Path, name: str) -> list[Triple]:
    return sorted(READERS[name][1](out / "track" / name))


def expected(out: Path, name: str) -> list[Triple]:
    summary = json.loads((out / "summary.json").read_text())
    kept = {f"summary/{k}": v for k, v in summary.items() if isinstance(v, int | float) and k != "peak_memory_mib"}
    single = struct.Struct("<f")
    triples = [(n, k, float(v)) for n, values in [*journal(out), (6, kept)] for k, v in values.items()]
    if name == "tensorboard":
        return sorted((n, k, single.unpack(single.pack(v))[0]) for n, k, v in triples)
    return sorted(triples)


def killed(out: str, name: str) -> None:
    """Train three rounds and end like a killed process."""
    run = cl.rounds(net(), clients(), out=out, track=name, checkpoint_every=2, **SMALL)
    assert [next(run).n for _ in range(3)] == [1, 2, 3]
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("name", READERS)
def test_read_back(tmp_path: Path, name: str) -> None:
    pytest.importorskip(
        READERS[name][0], reason=f"{name} is not installed (pip install cutlayer[{TRACKERS[name].extra}])"
    )
    out = tmp_path / "x"
    with forked(killed, str(out), name) as process:
        assert process.wait() == -9, process.err
    before = journal(out)[2]
    cl.train(net(), clients(), out=out, track=name, checkpoint_every=2, **SMALL)
    assert journal(out)[2] != before  # the third round was played again, in other seconds
    live = found(out, name)
    assert live == expected(out, name)
    fresh = tmp_path / "fresh" / "x"
    shutil.copytree(out, fresh, ignore=shutil.ignore_patterns("track"))
    for again in (fresh, out):
        assert main(["report", str(again), "--to", name, "--quiet"]) == 0
        assert found(again, name) == live


def test_a_run_goes_on_where_no_round_is_played_again(tmp_path: Path) -> None:
    """MLflow adds to the run that it has."""
    pytest.importorskip("mlflow", reason="mlflow is not installed (make test-extras has it)")
    out = tmp_path / "x"
    run = cl.rounds(net(), clients(), out=out, track="mlflow", **SMALL)
    assert [next(run).n for _ in range(3)] == [1, 2, 3]
    run.close()
    was = (out / "track" / "mlflow.json").read_text()
    cl.train(net(), clients(), out=out, track="mlflow", **SMALL)
    assert (out / "track" / "mlflow.json").read_text() == was and found(out, "mlflow") == expected(out, "mlflow")


def test_a_comparison_on_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (make test-extras has it)")
    out = tmp_path / "y"
    tiny = ["--clients", "4", "--participation", "2", "--local-steps", "1", "--rounds", "6", "--model", "mlp"]
    words = ["compare", "--schemes", "fedavg", "smofi", "--seeds", "0", *tiny, "--out", str(out), "--quiet"]
    assert main([*words, "--track", "tensorboard"]) == 0
    runs = sorted(out.glob("runs/*/seed-0"))
    assert [run.parent.name for run in runs] == ["fedavg", "smofi"]
    for run in runs:
        assert found(run, "tensorboard") == expected(run, "tensorboard")
    assert main(["report", str(out), "--to", "tensorboard", "--quiet"]) == 0
    for run in runs:
        assert found(run, "tensorboard") == expected(run, "tensorboard")


def test_a_run_on_the_command_line_and_its_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (make test-extras has it)")
    out = tmp_path / "x"
    words = ["run", "--clients", "4", "--participation", "2", "--local-steps", "1", "--model", "mlp", "--rounds", "6"]
    assert main([*words, "--out", str(out), "--quiet", "--track", "tensorboard"]) == 0
    assert found(out, "tensorboard") == expected(out, "tensorboard")
    shutil.rmtree(out / "track")
    assert main(["resume", str(out), "--quiet", "--track", "tensorboard"]) == 0
    assert found(out, "tensorboard") == expected(out, "tensorboard")
