"""Two ranks of one machine, each with a device of its own. Arguments: the device, and a file for what a rank found."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import cutlayer as cl
from cutlayer.processes import ranks
from cutlayer.processes.ordered_sum import Bridge
from tests.standin import cases, runs
from tests.standin.device import DEVICE, load

ROOT = Path(__file__).parents[2]
ORDERED = ("smofi", "mergesfl", "cyclesfl", "adaptive", "labels stay", "psl", "smofi cyclesl adam")
FAST, SENT = "smofi, fast", "smofi, sent"


def launched(device: str, file: Path) -> list[dict[str, Any]]:
    """Start two ranks and return what each of them found: its device, what a device for both of them raises, and
    weights by name."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "STANDIN_DEVICES": "2"}
    files = [file.with_suffix(f".{rank}") for rank in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.standin.ranks", device, str(own)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
        )
        for rank, own in enumerate(files)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    return [json.loads(own.read_text()) for own in files]


def farthest(there: dict[str, Any], alone: dict[str, Tensor]) -> float:
    """The largest difference between weights that a rank found and those of a run of one process."""
    pairs = [(torch.tensor(there[key], dtype=torch.float64), w.double()) for key, w in alone.items() if w.numel()]
    return max(float((a - b).abs().max()) for a, b in pairs)


def main(device: str, file: str) -> None:
    if device == DEVICE:
        load(Path(os.environ["CUTLAYER_STANDIN"]))
    warnings.simplefilter("ignore")
    runs.precise()
    given, found = dict(cases.cases()), {}
    for name in ORDERED:
        found[name] = cases.train(device, {**given[name], "ranks": "ordered"})
    found[FAST] = cases.train(device, {**given["smofi"], "ranks": "fast"})
    try:
        cases.train(f"{device}:0", {**given["smofi"], "ranks": "ordered"})
        shared = ""
    except cl.ContractError as error:
        shared = str(error)
    ranks._joined.clear()
    with mock.patch.object(Bridge, "possible", return_value=False):  # as between machines
        found[SENT] = cases.train(device, {**given["smofi"], "ranks": "ordered"})
    weights = {name: {key: w.tolist() for key, w in cases.weights(result).items()} for name, result in found.items()}
    data = [cases.pictures(9, j) for j in range(2)]
    where = cl.rounds(cases.network(), data, batch_size=4, device=device, ranks="ordered").state.W.w.device
    Path(file).write_text(json.dumps({"device": str(where), "shared": shared, "weights": weights}))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # torch's threads for the device cannot be joined
