"""Halves that torch has compiled train as those that it has not, up to rounding."""

from __future__ import annotations

import shutil
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl

COMPILER = shutil.which("g++") or shutil.which("clang++")
WITHOUT = "torch.compile needs a C++ compiler"


def network(dropout: float = 0.0) -> nn.Sequential:
    torch.default_generator.manual_seed(0)
    front = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(dropout))
    return nn.Sequential(front, nn.Flatten(), nn.Linear(48, 8), nn.Linear(8, 3)).double()


def rows(n: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1, 6, 6, generator=draw).double(), torch.randint(0, 3, (n,), generator=draw)


CLIENTS = [rows(n, n) for n in (8, 11, 14)]
FAST: dict[str, Any] = {"cut": 0, "rounds": 2, "batch_size": 4, "local_epochs": 1, "last_batch": "keep"}


@pytest.mark.extras
@pytest.mark.timeout(900)
@pytest.mark.skipif(COMPILER is None, reason=WITHOUT)
@pytest.mark.parametrize(
    "more", [{"scheme": "smofi"}, {"scheme": "cyclesfl"}, {"scheme": "psl", "labels": "stay"}], ids=str
)
def test_compiled_halves_train_alike(more: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's compiler warns of itself
        compiled = cl.train(network(), CLIENTS, rows(9, 1), compile=True, **FAST, **more)
    plain = cl.train(network(), CLIENTS, rows(9, 1), backend="loop", **FAST, **more)
    for mine, theirs in zip(compiled.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-9)
    assert compiled.history[-1].loss == pytest.approx(plain.history[-1].loss, abs=1e-9)


@pytest.mark.parametrize(
    ("match", "model", "more"),
    [
        ("compile = True: expected False: the model or its loss draws random numbers", network(0.2), {}),
        ("compile = True: expected False with backend 'stacked'", network(), {"backend": "stacked"}),
    ],
)
def test_what_cannot_be_compiled_is_refused(match: str, model: nn.Module, more: dict[str, Any]) -> None:
    with pytest.raises(cl.ContractError, match=match):
        cl.train(model, CLIENTS, compile=True, **FAST, **more)
