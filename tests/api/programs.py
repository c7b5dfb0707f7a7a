"""Small programs that train into a folder; tests kill them and start them again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cutlayer as cl
from cutlayer.experiment import checkpoint, journal

ROUNDS = 5


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def rows(n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(n)
    return torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)


def clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [rows(40), rows(30), rows(24)]


def slower(n: int) -> float:
    return 0.9**n


SCHEMES: dict[str, dict[str, Any]] = {
    "smofi": {"scheme": cl.SMoFi(alpha=-0.2), "update": cl.FedAvgM(0.3), "optimizer": cl.SGD(lr=0.05, decay=slower)},
    "psl": {"scheme": "psl", "protocol": "cyclesl", "optimizer": "adam", "participation": 2},
}
ARGUMENTS: dict[str, Any] = {"cut": 1, "rounds": ROUNDS, "batch_size": 8, "local_epochs": 2}


def train(out: str, scheme: str, die: tuple[str, int] | None = None) -> int:
    """Train into a folder; `die`: end like a killed process, after writing this (a line or a checkpoint) of a round."""
    _die(die)
    cl.train(net(), clients(), test=rows(20), out=out, **ARGUMENTS, **SCHEMES[scheme])
    return 0


def serve(out: str, port: int, die: tuple[str, int] | None = None) -> int:
    _die(die)
    arguments = {**ARGUMENTS, **SCHEMES["smofi"]}
    net_ = cl.Net(f"127.0.0.1:{port}", min_clients=2, deadline=240.0, grace=30.0)
    cl.serve(net(), rows(20), net=net_, out=out, **arguments)
    return 0


def _die(when: tuple[str, int] | None) -> None:
    if when is None:
        return
    what, n = when
    module: Any = journal if what == "line" else checkpoint
    name = "append" if what == "line" else "save"
    real = getattr(module, name)

    def fatal(path: Path, record: Any, *more: Any) -> None:
        real(path, record, *more)
        if record.n == n:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, name, fatal)
