"""SIGTERM, as a scheduler sends it: what was under way can be gone on with, and nothing lies about."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from cutlayer.cli.main import main
from cutlayer.cli.signals import Terminated
from cutlayer.engine.spill import SpillCache
from cutlayer.experiment import pool
from cutlayer.experiment.run_directory import read_summary
from tests.cli.test_commands import leading, members
from tests.forks import Forked, forked
from tests.network.test_restart import free_port

KEEPS = ["--scheme", "psl", "--model", "mlp", "--clients", "6", "--train-rows", "300", "--kept-memory", "0", "--quiet"]


def rounds(out: Path) -> int:
    path = out / "journal.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def until(process: Forked, out: Path, n: int) -> None:
    """Wait for so many rounds."""
    while rounds(out) < n:
        assert not process.ended, process.err
        time.sleep(0.01)


def spilled(out: Path) -> list[Path]:
    return list(out.rglob(".spill"))


def test_a_run(tmp_path: Path) -> None:
    out = tmp_path / "x"
    with forked(main, ["run", *KEEPS, "--rounds", "100000", "--out", str(out)]) as process:
        until(process, out, 2)
        assert spilled(out)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 143
        assert process.err == "cutlayer: told to stop; `cutlayer resume` on the output folder goes on from here\n"
    assert not spilled(out)
    with forked(main, ["resume", str(out), "--quiet"]) as process:
        until(process, out, rounds(out) + 2)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 143
    assert not spilled(out)


def test_a_comparison(tmp_path: Path) -> None:
    out = tmp_path / "y"
    flags = ["--schemes", "psl", "sglr", "--seeds", "0", *KEEPS[2:], "--rounds", "15", "--jobs", "2", "--out", str(out)]
    runs = [out / "runs" / name / "seed-0" for name in ("psl", "sglr")]
    with forked(leading, ["compare", *flags]) as process:
        for run in runs:
            until(process, run, 2)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 143, process.err
        while members(process.pid):
            time.sleep(0.01)
    assert not spilled(out)
    assert main(["resume", str(out), "--quiet"]) == 0
    assert [rounds(run) for run in runs] == [15, 15] and not spilled(out)


@pytest.mark.parametrize(
    ("command", "status", "line"), [("serve", 0, "before clients could connect"), ("run", 143, "nothing had begun")]
)
def test_before_anything_began(
    command: str,
    status: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def early(*_: object) -> None:
        raise Terminated

    monkeypatch.setattr("cutlayer.experiment.server_directory.start", early)
    monkeypatch.setattr("cutlayer.experiment.experiment.Experiment.start", early)
    assert main([command, "--out", str(tmp_path / "x"), "--quiet"]) == status
    assert line in capsys.readouterr().err and not (tmp_path / "x").exists()


def worker(folder: Path) -> None:
    """A process of a comparison that has put something on disk."""
    pool._prepare(multiprocessing.get_context("fork").Event(), ())
    kept = SpillCache(0)
    kept.place(folder)
    while True:
        time.sleep(0.01)


def test_a_worker_of_a_comparison(tmp_path: Path) -> None:
    folder = tmp_path / ".spill"
    with forked(worker, folder) as process:
        while not folder.exists():
            assert not process.ended, process.err
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 1, process.err
    assert not folder.exists()


@pytest.mark.parametrize("what", ["server", "client"])
def test_a_server_and_its_clients(tmp_path: Path, what: str) -> None:
    stopped(tmp_path, what, after=2, last=12)


def stopped(folder: Path, what: str, after: int, last: int, pause: float = 0.0) -> None:
    """The server ends with 0, a client with 143; whoever is told to stop comes back, and the run ends as any other."""
    dice = np.random.default_rng(0)
    for name in ("server", "a", "b"):
        np.savez(folder / f"{name}.npz", x=dice.normal(size=(24, 4)).astype(np.float32), y=np.arange(24) % 3)
    out, place = folder / "run", f"127.0.0.1:{free_port()}"
    env = {"CUTLAYER_CACHE": str(folder / "cache")}
    model = ["--model", "mlp", "--rounds", str(last), "--batch-size", "8", "--min-clients", "2", "--quorum", "1.0"]
    serve = ["serve", "--data", str(folder / "server.npz"), *model, "--listen", place, "--out", str(out), "--quiet"]
    serve += ["--deadline", "240"]
    joins = [
        ["join", "--server", place, "--name", name, "--data", str(folder / f"{name}.npz"), "--out", str(folder)]
        for name in ("a", "b")
    ]
    with (
        forked(main, serve, env=env) as server,
        forked(main, joins[0], env=env) as a,
        forked(main, joins[1], env=env) as b,
    ):
        until(server, out, after)
        time.sleep(pause)
        if what == "client" and not a.ended:
            os.kill(a.pid, signal.SIGTERM)
            found = a.wait()
            assert found == 0 or (found == 143 and "told to stop; the same command takes part again" in a.err)
            with forked(main, joins[0], env=env) as again:
                assert server.wait() == 0 and b.wait() == 0, server.err
                assert found == 0 or again.wait() == 0
        elif what == "server" and not server.ended:
            os.kill(server.pid, signal.SIGTERM)
            assert server.wait() == 0, server.err
            if rounds(out) < last:
                assert "told to stop after round" in server.err and f"`cutlayer resume {out}` goes on" in server.err
                assert not spilled(out)
                with forked(main, ["resume", str(out), "--quiet"], env=env) as again:
                    assert again.wait() == 0, again.err
                assert "the server goes on without us: the server ends: Terminated" in a.err
            assert a.wait() == 0 and b.wait() == 0
    assert rounds(out) == last and (read_summary(out) or {})["status"] == "complete"
