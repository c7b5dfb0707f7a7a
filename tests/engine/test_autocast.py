"""Forward passes in bfloat16: it is on where it is asked for, and everything that lives longer than a pass stays as it
was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.clients.messages import CutGrad, Smashed
from cutlayer.clients.simulated import LocalCohort

SHAPE = (1, 6, 6)
BASE: dict[str, Any] = {"cut": 0, "rounds": 2, "batch_size": 4, "local_epochs": 2, "threads": 1, "backend": "loop"}


class Seen(nn.Module):
    """Writes down the types of what comes by, in training and in testing."""

    types: ClassVar[set[tuple[str, bool, torch.dtype]]] = set()

    def __init__(self, side: str) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        Seen.types.add((self.side, self.training, x.dtype))
        return x


def types(training: torch.dtype) -> set[tuple[str, bool, torch.dtype]]:
    """What is seen where a run trains in this type, and tests in its own."""
    return {
        (side, mode, training if mode else torch.float32) for side in ("client", "server") for mode in (True, False)
    }


def model() -> nn.Sequential:
    torch.default_generator.manual_seed(2)
    front = nn.Sequential(nn.Conv2d(1, 4, 3), Seen("client"), nn.BatchNorm2d(4), nn.ReLU())
    back = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Seen("server"), nn.Tanh(), nn.Linear(8, 3))
    return nn.Sequential(front, back)


def data(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pictures whose brightness tells their class."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (rows,), generator=draw)
    return torch.randn(rows, *SHAPE, generator=draw) + 2 * y[:, None, None, None], y


CLIENTS = [data(rows, seed) for seed, rows in enumerate((12, 8, 16))]
TEST = data(60, 9)


def rounds(make: Callable[[], nn.Module] = model, **more: Any) -> cl.Run:
    return cl.rounds(make(), **{"clients": CLIENTS, "test": TEST, **BASE, **more})


def played(**more: Any) -> tuple[cl.Run, list[cl.Round]]:
    run = rounds(**more)
    Seen.types.clear()  # looking at a model is no pass of the training
    return run, list(run)


@pytest.mark.parametrize("scheme", ["smofi", "mergesfl", "cyclesfl"])
def test_it_is_on_and_weights_stay(scheme: str) -> None:
    """Inside either half there is bfloat16, in training only; it learns what it learns without, but for rounding."""
    run, short = played(scheme=scheme, autocast="bfloat16")
    assert Seen.types == types(torch.bfloat16)
    twin, full = played(scheme=scheme)
    assert Seen.types == types(torch.float32)
    ours, theirs = run.model.state_dict(), twin.model.state_dict()
    assert all(ours[name].dtype == theirs[name].dtype != torch.bfloat16 for name in theirs)
    assert run.state.W.w.dtype == torch.float32 and not torch.equal(run.state.W.w, twin.state.W.w)
    assert 0 < float((run.state.W.w - twin.state.W.w).norm() / twin.state.W.w.norm()) < 0.05
    assert short[0].train_loss != full[0].train_loss == pytest.approx(short[0].train_loss, rel=0.1)
    assert short[-1].loss == pytest.approx(full[-1].loss, rel=0.1)
    for name in ("steps", "samples", "bytes_up", "bytes_down"):
        assert getattr(short[0], name) == getattr(full[0], name)


def convolutions() -> nn.Sequential:
    torch.default_generator.manual_seed(2)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sequential(nn.ReLU(), nn.Conv2d(4, 3, 4), nn.Flatten()))


def layers() -> nn.Sequential:
    torch.default_generator.manual_seed(2)
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(36, 8)), nn.Sequential(nn.Tanh(), nn.Linear(8, 3)))


def normed() -> nn.Sequential:
    """The server half begins with a BatchNorm, which vmap cannot give the shorter type."""
    torch.default_generator.manual_seed(2)
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(36, 8)), nn.BatchNorm1d(8), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("make", "backend"),
    [
        (normed, "stacked"),
        (convolutions, "loop"),
        (layers, "loop"),
        (layers, "stacked"),
        (convolutions, "stacked"),  # by looping: vmap does not autocast convolutions
    ],
)
def test_it_is_on_in_either_backend(make: Callable[[], nn.Module], backend: str) -> None:
    more: dict[str, Any] = {"make": make, "backend": backend, "clients": [data(8, seed) for seed in range(3)]}
    short, full = (played(**more, autocast=autocast)[0].state.W.w for autocast in ("bfloat16", None))
    assert short.dtype == torch.float32 and torch.isfinite(short).all()
    assert not torch.equal(short, full)


def test_messages_and_gradients_keep_the_models_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes through the cut either way, gradient rows, and the optimizer's memory that is kept."""
    sent: list[Smashed | CutGrad] = []
    plain = LocalCohort.ask

    def ask(self: LocalCohort, messages: Any) -> Any:
        found = plain(self, messages)
        sent.extend(message for message in (*messages, *found) if isinstance(message, Smashed | CutGrad))
        return found

    monkeypatch.setattr(LocalCohort, "ask", ask)
    run = rounds(scheme="sglr", autocast="bfloat16", protocol="cyclesl", test=[TEST] * 3)
    list(run)
    smashed, grads = [m.a for m in sent if isinstance(m, Smashed)], [m.grad for m in sent if isinstance(m, CutGrad)]
    assert len(smashed) == len(grads) == 6
    for tensor in (*smashed, *grads):
        assert tensor is not None and tensor.dtype == torch.float32 and float(tensor.abs().sum()) > 0
    kept = [t for parcel in run.state.owned.values() for name, t in parcel.open().items() if name.startswith("moment")]
    assert len(kept) == 6 and all(t.dtype == torch.float32 for t in kept)


def test_it_repeats_itself_on_any_number_of_threads() -> None:
    one, other, third = (played(autocast="bfloat16", threads=n)[0].state.W.w for n in (1, 1, 2))
    assert torch.equal(one, other) and torch.equal(one, third)


@pytest.mark.parametrize("value", ["float16", "bf16", "", True, torch.bfloat16], ids=str)
def test_another_type_is_refused(value: Any) -> None:
    with pytest.raises(cl.ContractError, match=rf"autocast = {value!r}: expected 'bfloat16', or None \(float16 needs"):
        rounds(autocast=value)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["run", "--model", "mlp", "--clients", "4", "--rounds", "1", "--local-epochs", "1", "--quiet", "--out"]
    assert main([*flags, str(tmp_path / "x"), "--autocast", "float16"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("cutlayer: error: autocast = 'float16'") and "bfloat16" in said and said.count("\n") == 1
    assert "float16 needs scaled losses, since small gradients are 0 in it" in said
    assert not (tmp_path / "x").exists()
    assert main([*flags, str(tmp_path / "x"), "--autocast", "bfloat16"]) == 0
    assert 'autocast = "bfloat16"' in (tmp_path / "x" / "config.toml").read_text()
