"""Labels that stay: the model that comes out, how it is tested, and runs that are interrupted or short of memory."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.engine.memory_limit import MIB
from cutlayer.experiment import config as text
from cutlayer.experiment.experiment import Experiment
from cutlayer.experiment.model_files import load
from cutlayer.report.retime import WhatIf, retimed
from tests.engine import test_memory_limit
from tests.equal.naive import difference
from tests.equal.test_u_shape import turned_model
from tests.experiment.test_resume import finish, interrupted, sha, without_clock
from tests.schemes.test_u_shape import BASE, T, clients, data

# ---- What comes out ----------------------------------------------------------------------------------------------


class Named(nn.Module):
    """Blocks in a module of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(turned_model())

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("make", [turned_model, Named])
@pytest.mark.parametrize("scheme", ["smofi", "psl"])
def test_the_model_has_its_blocks_in_order(scheme: str, make: Any) -> None:
    """And is the one that was tested; the last block has learned, too."""
    x, y = data(40, 1)
    result = cl.train(make(), clients(), test=(x, y), scheme=scheme, **BASE)
    assert list(result.model.state_dict()) == list(make().state_dict())
    blocks = result.model.blocks if make is Named else result.model
    whole = nn.Sequential(*blocks).eval()
    with torch.no_grad():
        out = whole(x)
    last = result.history[-1]
    assert last.accuracy == pytest.approx(float((out.argmax(1) == y).double().mean()))
    assert last.loss == pytest.approx(float(functional.cross_entropy(out, y)))
    moved = [difference(one, other) for one, other in zip(whole, turned_model(), strict=True)]
    assert min(moved) > 1e-3


def test_each_client_is_tested_with_its_own_ends() -> None:
    tests = [data(7, 2), data(12, 3), data(5, 4)]
    result = cl.train(turned_model(), clients(), test=tests, scheme="psl", protocol="cyclesl", **BASE)
    with torch.no_grad():
        outs = [result.clients[j].eval()(x) for j, (x, _) in enumerate(tests)]
    hits = sum(int((out.argmax(1) == y).sum()) for out, (_, y) in zip(outs, tests, strict=True))
    loss = functional.cross_entropy(torch.cat(outs), torch.cat([y for _, y in tests]))
    last = result.history[-1]
    assert last.accuracy == pytest.approx(hits / 24) and last.loss == pytest.approx(float(loss))
    lasts = [result.clients[j].get_submodule("3") for j in range(3)]
    assert min(difference(lasts[j], lasts[j - 1]) for j in range(3)) > 1e-4  # its last block is its own


@pytest.mark.parametrize("scheme", ["fedavg", "mergesfl"])
def test_threads_and_repetition_change_no_bit(scheme: str) -> None:
    """With dropout in middle and last block."""
    model = turned_model()
    for block in (2, 3):
        model[block].append(nn.Identity()).insert(2, nn.Dropout(0.3))
    runs = [cl.train(copy.deepcopy(model), clients(), scheme=scheme, threads=n, **BASE).model for n in (1, 1, 2)]
    assert difference(runs[0], runs[1]) == 0 and difference(runs[0], runs[2]) == 0
    other = cl.train(copy.deepcopy(model), clients(), scheme=scheme, seed=1, **BASE).model
    assert difference(runs[0], other) > 1e-4


MASKS: list[tuple[str, Tensor]] = []


class Masked(nn.Module):
    """Dropout that shows its mask."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part, self.dropout = part, nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        mask = self.dropout(torch.ones_like(x))
        MASKS.append((self.part, mask))
        return x * mask


def test_front_middle_and_last_block_draw_apart() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(5, 5), Masked(part)) for part in ("front", "middle", "last")))
    run = cl.rounds(model.double(), clients(), scheme="sflv2", backend="loop", threads=1, **{**BASE, "cut": 0})
    MASKS.clear()
    next(run)
    assert [part for part, _ in MASKS] == ["front", "middle", "last"] * sum(T)
    for i in range(0, len(MASKS), 3):
        one, two, three = (mask for _, mask in MASKS[i : i + 3])
        assert not torch.equal(one, two) and not torch.equal(two, three) and not torch.equal(one, three)


def test_a_run_that_diverges_is_stopped_without_its_loss() -> None:
    wild = cl.SGD(lr=1e200, momentum=0.9, weight_decay=0.0)
    with pytest.raises(cl.Diverged, match="round 1"):
        cl.train(nn.Sequential(*(nn.Linear(5, 5) for _ in range(4))).double(), clients(), optimizer=wild, **BASE)


# ---- Runs --------------------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {
    "model": {"name": "mlp", "width": 8},
    "clients": 5,
    "participation": 0.6,
    "rounds": 3,
    "batch_size": 16,
    "local_epochs": 1,
    "train_rows": 300,
    "labels": "stay",
}


@pytest.mark.parametrize(
    "more",
    [
        {"scheme": "smofi", "update": "fedavgm", "optimizer": "adam"},
        {"scheme": "psl"},
        {"scheme": "ssl", "protocol": "cyclesl", "optimizer": "adam"},
    ],
    ids=str,
)
def test_a_run_resumes_to_the_same_bits(tmp_path: Path, more: dict[str, Any]) -> None:
    config = text.parse({**RUN, **more})
    whole = finish(Experiment.start(config, tmp_path / "whole"))
    interrupted(config, tmp_path / "cut", after=2)
    assert finish(Experiment.resume(tmp_path / "cut")) == whole
    assert without_clock(tmp_path / "cut") == without_clock(tmp_path / "whole")


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["run", "--model", "mlp", "--model.width", "8", "--clients", "5", "--participation", "0.6", "--rounds", "3"]
    flags += ["--batch-size", "16", "--local-epochs", "1", "--train-rows", "300", "--quiet", "--scheme", "smofi"]
    out = tmp_path / "run"
    assert main([*flags, "--labels", "sty", "--out", str(out)]) == 2
    assert "labels" in capsys.readouterr().err and not out.exists()
    assert main([*flags, "--labels", "stay", "--out", str(out)]) == 0
    assert 'labels = "stay"' in (out / "config.toml").read_text()
    assert json.loads((out / "journal.jsonl").read_text().splitlines()[-1])["train_loss"] is None
    config = text.parse({**RUN, "scheme": "smofi"})
    interrupted(config, tmp_path / "cut", after=2)
    assert main(["resume", str(tmp_path / "cut"), "--quiet"]) == 0
    assert sha(tmp_path / "cut") == sha(out)
    x = torch.rand(5, 1, 8, 8)
    model, front, back = (load(out / f"{part}.safetensors") for part in ("model", "front", "back"))
    assert torch.equal(back(front(x)), model(x))


@pytest.mark.parametrize("sync", [False, True], ids=["plain", "sync"])
def test_time_counted_again_is_the_time_that_was_counted(tmp_path: Path, sync: bool) -> None:
    given = {**RUN, "scheme": "smofi", "profile": "lte", "count_sync": sync, "rounds": 2}
    experiment = Experiment.start(text.parse(given), tmp_path / "run")
    finish(experiment)
    again = retimed(tmp_path / "run", experiment.history, WhatIf())
    assert [r.sim_seconds for r in again] == pytest.approx([r.sim_seconds for r in experiment.history])
    with pytest.raises(cl.ContractError, match="cut = 2"):
        retimed(tmp_path / "run", experiment.history, WhatIf(cut=2))  # of four blocks; it leaves no middle


@pytest.mark.parametrize(
    "more",
    [{"scheme": "fedavg"}, {"scheme": "fedavg", "optimizer": cl.Adam(), "local": cl.FedNAR(0.5)}, {"scheme": "psl"}],
    ids=["fedavg", "fedavg adam joint", "psl"],
)
def test_groups_train_what_everybody_would(monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]) -> None:
    """Weights and what is kept to the bit; two clients at a time."""
    more = {"participation": 6, "labels": "stay", **more}
    limit = test_memory_limit.counted(monkeypatch, **more)(2).total / MIB
    whole, grouped = test_memory_limit.rounds(**more), test_memory_limit.rounds(**more, memory_limit=limit)
    assert whole.setup.group is None and grouped.setup.group == 2
    assert [r.accuracy for r in whole] == [r.accuracy for r in grouped]
    assert test_memory_limit.state(grouped) == test_memory_limit.state(whole)


PASSES: list[int] = [0, 0]  # under way, and the most there were


class Pass(torch.autograd.Function):
    """Counts the graphs that are alive."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        PASSES[0] += 1
        PASSES[1] = max(PASSES)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> Any:
        PASSES[0] -= 1
        return grad[0]


class Counted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Pass.apply(x) if torch.is_grad_enabled() and x.requires_grad else x


@pytest.mark.parametrize("heavy", ["middle", "last"])
def test_passes_that_wait_for_their_turn_are_counted(monkeypatch: pytest.MonkeyPatch, heavy: str) -> None:
    """What the heavy block saves for its backward, as often as it is there at once."""

    def model() -> nn.Sequential:
        wide = nn.Sequential(Counted(), nn.Linear(4, 500), nn.Tanh(), nn.Linear(500, 3))
        narrow = nn.Linear(4, 4) if heavy == "last" else nn.Linear(3, 3)
        return nn.Sequential(nn.Linear(4, 4), *((narrow, wide) if heavy == "last" else (wide, narrow)))

    more: dict[str, Any] = {"make": model, "scheme": "fedavg", "labels": "stay", "test": None, "rounds": 1}
    need = test_memory_limit.counted(monkeypatch, **more)(6)  # of the seven clients, one has no full batch
    PASSES[:] = [0, 0]
    (record,) = test_memory_limit.rounds(**more)
    assert record.participants == 6 and PASSES[0] == 0
    assert need.activations >= PASSES[1] * 3 * 500 * 4
