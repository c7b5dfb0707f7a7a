"""Interrupted anywhere, with all that may live on between rounds: fronts, memory, places in the data, momentum."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import cutlayer as cl
from cutlayer.core import files, sealed
from cutlayer.experiment import checkpoint
from cutlayer.experiment import config as text
from cutlayer.experiment.config import Config
from cutlayer.experiment.experiment import Experiment
from cutlayer.registry import SCHEMES
from tests.experiment.test_resume import finish, interrupted, without_clock

BASE: dict[str, Any] = {
    "model": {"name": "mlp", "width": 8, "depth": 2},
    "train_rows": 240,
    "clients": 6,
    "participation": 3,
    "rounds": 4,
    "batch_size": 8,
    "local_steps": 2,
    "evaluate_every": 3,
}
KEEPING: dict[str, Any] = {**BASE, "protocol": "cyclesl", "scheme": "psl", "participation": 2, "local_steps": 1}


def kept_files(out: Path) -> dict[str, Path]:
    return {path.name: path for path in (out / "checkpoints" / "owned").iterdir() if path.is_file()}


def manifest(out: Path, n: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "checkpoints" / f"{n:06d}" / "manifest.json").read_text())
    return content


def end(out: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The journal of a finished run, and every parcel of its last checkpoint with its checksum."""
    return without_clock(out), manifest(out, len(without_clock(out)))["owned"]


def check(tmp_path: Path, config: Config, after: int = 2) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    expected = finish(Experiment.start(config, whole))
    interrupted(config, cut, after)
    assert finish(Experiment.resume(cut)) == expected
    assert end(cut) == end(whole)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("protocol", ["smofi", "cyclesl"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme(tmp_path: Path, scheme: str, protocol: str, optimizer: str) -> None:
    check(tmp_path, text.parse({**BASE, "scheme": scheme, "protocol": protocol, "optimizer": optimizer}))


@pytest.mark.parametrize(
    "changes",
    [
        {"scheme": "smofi", "local": {"name": "fednar", "max_norm": 1.0}, "update": "fedavgm"},
        {"scheme": "psl", "local": "fedprox", "update": "slowmo"},
        {"scheme": "cyclesglr", "protocol": "cyclesl", "update": "slowmo", "optimizer": "adamw"},
        {"scheme": "ssl", "protocol": "cyclesl", "local": "fedprox", "update": "fedavgm"},
        {"scheme": "fedavg", "update": "fednag"},
        {"scheme": "fedavg", "update": {"name": "slowmo", "buffers": "average"}, "optimizer": "adam"},
        {"scheme": "fedavg", "update": "fednag", "cut": [0, 1]},
        {"scheme": {"name": "sflv2", "reset": "never"}, "optimizer": "adam"},
        {"scheme": {"name": "aligned", "kappa": 0.5, "rho": 0.2, "lam": 0.5}, "calibrate": 0.5},
        {"scheme": {"name": "aligned", "kappa": 0.5, "fade": 0.9, "cycle": True}, "optimizer": "adam"},
        {"scheme": {"name": "smofi", "fuse_clients": True}, "protocol": "cyclesl", "optimizer": "adam"},
        {"scheme": {"name": "sflv1", "memory": "client"}, "protocol": "cyclesl"},
        {"scheme": {"name": "mergesfl", "select": "kl_greedy"}, "profile": "lognormal", "participation": 2},
        {"scheme": "psl", "model": {"name": "resnet"}, "noise": 0.1, "protocol": "cyclesl", "rounds": 3},
        {"scheme": "psl", "kept_memory": 0},
        {"scheme": "cyclepsl", "protocol": "cyclesl", "kept_memory": 0, "optimizer": "adam"},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values()),
)
def test_other_parts(tmp_path: Path, changes: dict[str, Any]) -> None:
    check(tmp_path, text.parse(BASE | changes))


def test_a_resumed_run_reads_parcels_until_they_are_replaced(tmp_path: Path) -> None:
    """With rare checkpoints, what the last one holds is needed for several rounds."""
    check(tmp_path, text.parse({**KEEPING, "rounds": 7, "checkpoint_every": 3}), after=4)


def test_interrupted_again_and_again(tmp_path: Path) -> None:
    config = text.parse(KEEPING)
    whole = finish(Experiment.start(config, tmp_path / "whole"))
    interrupted(config, tmp_path / "cut", after=1)
    for _ in range(2):
        next(iter(Experiment.resume(tmp_path / "cut")))
    assert finish(Experiment.resume(tmp_path / "cut")) == whole
    assert end(tmp_path / "cut") == end(tmp_path / "whole")


# ---- A crash at every write of a checkpoint ----------------------------------------------------------------------

WRITES: list[tuple[Any, str]] = [
    (checkpoint, "write_aside"),
    (checkpoint, "sync"),
    (shutil, "rmtree"),
    (os, "fsync"),
    (Path, "mkdir"),
    (Path, "replace"),
    (Path, "unlink"),
]


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, round: int, fatal: int | None) -> Iterator[list[str]]:
    """The names of the writes while the checkpoint of a round is saved; the fatal one dies before it does anything."""
    seen: list[str] = []
    saving = False
    real_save = checkpoint.save

    def watch(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def write(*args: Any, **kwargs: Any) -> Any:
            if saving:
                seen.append(name)
                if len(seen) == fatal:
                    raise KeyboardInterrupt
            return real(*args, **kwargs)

        return write

    def save(run: Path, state: Any, about: Any) -> None:
        nonlocal saving
        saving = state.n == round
        try:
            real_save(run, state, about)
        finally:
            saving = False

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", save)
        for owner, name in WRITES:
            patch.setattr(owner, name, watch(getattr(owner, name), name))
        yield seen


def test_a_crash_at_every_write_of_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = text.parse({**KEEPING, "rounds": 4, "clients": 4})
    with counted(monkeypatch, round=3, fatal=None) as writes:
        whole = finish(Experiment.start(config, tmp_path / "whole"))
    assert set(writes) == {name for _, name in WRITES}
    assert writes.count("write_aside") == 2 + 2 + 2 + 2  # clients, memories, copies, the weights and the manifest
    for fatal in range(1, len(writes) + 1):
        out = tmp_path / str(fatal)
        with counted(monkeypatch, 3, fatal) as seen, pytest.raises(KeyboardInterrupt):
            finish(Experiment.start(config, out))
        assert seen == writes[:fatal]
        assert finish(Experiment.resume(out)) == whole
        assert end(out) == end(tmp_path / "whole")
        assert set(kept_files(out)) == set(kept_files(tmp_path / "whole"))
        assert [path.name for path in (out / "checkpoints").glob(".*")] == []


# ---- What is written, and what is removed ------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "protocol"), [("psl", "cyclesl"), ("psl", "smofi"), ("sflv1", "cyclesl")])
def test_only_what_changed_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, protocol: str
) -> None:
    written: list[str] = []
    copied: list[str] = []
    real = files.write_aside

    def spy(path: Path, content: bytes) -> None:
        (copied if path.parent.name == "copies" else written).append(path.name)
        real(path, content)

    out = tmp_path / "run"
    config = text.parse({**KEEPING, "scheme": scheme, "protocol": protocol, "rounds": 6})
    experiment = Experiment.start(config, out)
    monkeypatch.setattr(checkpoint, "write_aside", spy)
    before: dict[str, tuple[int, int]] = {}
    unchanged = 0
    for record in experiment:
        slots = [f"slot-{i}" for i in range(2)] if protocol == "cyclesl" else []
        new = {f"{owner}.{record.n:06d}.safetensors" for owner in (*(f"client-{j}" for j in record.clients), *slots)}
        assert sorted(written) == sorted([*new, "global.safetensors", "manifest.json"])
        now = {name: (path.stat().st_ino, path.stat().st_mtime_ns) for name, path in kept_files(out).items()}
        assert new <= set(now) and not new & set(before)
        assert all(now[name] == before[name] for name in set(now) & set(before))
        unchanged += len(set(now) & set(before))
        before = now
        written.clear()
        if record.n == 5:
            break
    assert unchanged > 10
    assert len(set(copied)) == len(copied) > 0


def test_files_that_no_manifest_names_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    removed = 0
    for record in Experiment.start(text.parse({**KEEPING, "rounds": 6}), out):
        kept = {path.name for path in (out / "checkpoints").glob("[0-9]*")}
        assert kept == {f"{n:06d}" for n in (record.n - 1, record.n)}
        named = {entry["file"] for n in (record.n - 1, record.n) for entry in manifest(out, n)["owned"].values()}
        assert set(kept_files(out)) == named
        removed += any(name.endswith(f".{record.n - 2:06d}.safetensors") for name in named)
        latest = manifest(out, record.n)["owned"]
        assert {f"client/{j}" for j in record.clients} <= set(latest)
        assert all(latest[f"client/{j}"]["version"] == record.n for j in record.clients)
        if record.n == 5:
            break
    assert removed  # some parcels outlive the checkpoint they were written with


def test_a_leftover_of_a_crash_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    interrupted(text.parse(KEEPING), out, after=2)
    stray = out / "checkpoints" / "owned" / "client-0.000099.safetensors"
    stray.write_bytes(b"nothing")
    finish(Experiment.resume(out))
    assert not stray.exists()


def test_what_a_run_has_read_outlives_it(tmp_path: Path) -> None:
    """A checkpoint's files belong to the checkpoint, not to the run that was resumed from them."""
    out = tmp_path / "run"
    interrupted(text.parse({**KEEPING, "kept_memory": 0}), out, after=3)
    before = set(kept_files(out))
    resumed = Experiment.resume(out)
    assert all(parcel.in_memory == 0 for parcel in resumed.run.state.owned.values())
    resumed.run.setup.spill_cache.trim(resumed.run.state.owned)
    del resumed
    gc.collect()
    assert set(kept_files(out)) == before


# ---- Damage ------------------------------------------------------------------------------------------------------


def newest_only(out: Path, before: int, n: int) -> Path:
    """A kept file that the checkpoint of round n names and the one before it does not."""
    old, new = ({str(entry["file"]) for entry in manifest(out, which)["owned"].values()} for which in (before, n))
    return out / "checkpoints" / "owned" / min(new - old)


@pytest.mark.parametrize("damage", ["flip", "truncate", "gone", "empty"])
@pytest.mark.parametrize("every", [1, 2])
def test_a_damaged_parcel_spoils_its_checkpoint(tmp_path: Path, damage: str, every: int) -> None:
    config = text.parse({**KEEPING, "rounds": 6, "checkpoint_every": every})
    whole = finish(Experiment.start(config, tmp_path / "whole"))
    out = tmp_path / "cut"
    interrupted(config, out, after=4)
    path = newest_only(out, 4 - every, 4)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"")
    with pytest.warns(checkpoint.DamagedCheckpoint, match="000004"):
        experiment = Experiment.resume(out)
    assert experiment.run.state.n == 4 - every
    assert finish(experiment) == whole
    assert end(out) == end(tmp_path / "whole")
    for entry in manifest(out, 6)["owned"].values():
        content = (out / "checkpoints" / "owned" / entry["file"]).read_bytes()
        assert sealed.seal_of(content) == entry["seal"] and sealed.unpack(content)


def test_a_parcel_that_both_checkpoints_need_is_there_twice(tmp_path: Path) -> None:
    whole = finish(Experiment.start(text.parse(KEEPING), tmp_path / "whole"))
    out = tmp_path / "run"
    interrupted(text.parse(KEEPING), out, after=3)
    shared = {entry["file"] for entry in manifest(out, 2)["owned"].values()}
    shared &= {entry["file"] for entry in manifest(out, 3)["owned"].values()}
    first, second = (out / "checkpoints" / "owned" / place / min(shared) for place in ("", "copies"))
    assert first.read_bytes() == second.read_bytes()
    shutil.copytree(out, tmp_path / "lost")
    first.unlink()
    with pytest.warns(checkpoint.DamagedCheckpoint, match="written again from its copy"):
        experiment = Experiment.resume(out)
    assert experiment.run.state.n == 3 and first.read_bytes() == second.read_bytes()
    assert finish(experiment) == whole
    out = tmp_path / "lost"
    for place in ("", "copies"):
        (out / "checkpoints" / "owned" / place / min(shared)).unlink()
    with pytest.warns(checkpoint.DamagedCheckpoint), pytest.raises(cl.StoreError, match="none of its 2 checkpoints"):
        Experiment.resume(out)
