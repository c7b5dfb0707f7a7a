"""A server that is killed goes on where it was, its clients come back by themselves, and the bits are the same."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cutlayer.experiment.client_data import ClientData
from cutlayer.network.client.loop import ClientLoop, Joined, Peer, Workplace
from cutlayer.network.protocol.settings import Limits
from cutlayer.network.transport import dial
from tests.forks import forked
from tests.network.harness import NAMES, SOON, certs, rows
from tests.network.server_process import lives

POINTS = [["plan", 2], ["step", 2], ["report", 2], ["checkpoint", 3]]
FLAGS = (
    *("--model", "mlp", "--cut", "0", "--batch-size", "4", "--rounds", "4", "--local-epochs", "1"),
    *("--min-clients", "4", "--quiet", "--grace", "20", "--deadline", "240"),
)
LONG = 3600.0  # seconds: the clients of the second server wait until all lives of the first are over
SCHEMES = {
    "smofi": ("--scheme", "smofi", "--update", "fedavgm"),
    "psl": ("--scheme", "psl", "--optimizer", "adam", "--optimizer.lr", "0.01"),
    "cyclesfl": ("--scheme", "cyclesfl", "--protocol", "cyclesl", "--optimizer", "adam", "--local-steps", "3"),
}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def save(path: Path, x: torch.Tensor, y: torch.Tensor) -> Path:
    np.savez(path, x=x.numpy(), y=y.numpy())
    return path


@pytest.mark.parametrize("scheme", SCHEMES)
def test_killed_at_four_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """Plans sent, in the middle of a step, reports in, checkpoint on disk: the end is that of an undisturbed run. Also
    where clients keep their half, or their optimizer's memory: they have what they began a round with."""
    monkeypatch.setattr(dial, "FIRST", 0.05)
    monkeypatch.setattr(dial, "LONGEST", 0.3)
    data = [save(tmp_path / f"{name}.npz", *pair) for name, pair in zip(NAMES, rows(), strict=True)]
    test = save(tmp_path / "test.npz", *rows()[1])
    jobs, threads, ended = [], [], {}
    for what, points in (("killed", POINTS), ("whole", [])):
        port = free_port()
        place = ("--listen", f"127.0.0.1:{port}", "--certs", str(certs()), "--out", str(tmp_path / what))
        mine = ("--data", str(data[0]), "--data-test", str(test))
        jobs.append([[*FLAGS, *SCHEMES[scheme], *place, *mine], points])

        def client(j: int, what: str = what, port: int = port) -> None:
            work = Workplace(ClientData(data[j], Limits()), tmp_path / f"joined-{what}")
            peer = Peer(f"localhost:{port}", certs() / NAMES[j], patience=LONG)
            try:
                ended[what, j] = ClientLoop(peer, work)()
            except BaseException as error:  # told to the test
                ended[what, j] = error

        threads += [threading.Thread(target=client, args=(j,), daemon=True) for j in range(len(data))]
    for thread in threads:
        thread.start()
    with forked(lives, jobs, env={"CUTLAYER_CACHE": str(tmp_path / "cache")}) as process:
        process.wait()
        ends = [json.loads(line) for line in process.out.splitlines() if line.startswith("[")]
        assert ends == [*([point, -9] for point in POINTS), [None, 0], [None, 0]], process.out + process.err
    for thread in threads:
        thread.join(SOON)
    check(tmp_path, ended)


def check(folder: Path, ended: dict[tuple[str, int], Any]) -> None:
    """Both runs have the same weights, journals and fronts."""
    runs = [folder / what for what in ("killed", "whole")]
    summaries = [json.loads((run / "summary.json").read_bytes()) for run in runs]
    assert summaries[0]["sha256"] == summaries[1]["sha256"] and summaries[0]["status"] == "complete"
    journals = [[json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()] for run in runs]
    for ours, theirs in zip(*journals, strict=True):
        assert {**ours, "seconds": 0, "faults": 0} == {**theirs, "seconds": 0, "faults": 0}
    for j in range(len(NAMES)):
        one, other = ended["killed", j], ended["whole", j]
        assert isinstance(one, Joined) and isinstance(other, Joined), (one, other)
        assert one.path is not None and other.path is not None
        fronts = [load_file(path) for path in (one.path, other.path)]
        assert fronts[0].keys() == fronts[1].keys() and all(fronts[0][k].equal(fronts[1][k]) for k in fronts[0])
