"""Gradients that are written into their rows by the product that computes them: the same bits, whatever else has the
same shape."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.nn import gradients
from cutlayer.nn.flat import Rows, half
from cutlayer.nn.gradients import differentiate

CPU = torch.device("cpu")


class Twice(nn.Module):
    """Uses one matrix at two places, and another one the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        turned: Tensor = self.one(self.one(x).tanh()) @ self.other.weight
        return turned + self.other(x)


def square(n: int) -> list[nn.Module]:
    return [layer for _ in range(n) for layer in (nn.Linear(6, 6), nn.Tanh())]


MODELS: dict[str, Callable[[], list[nn.Module]]] = {
    "same shapes": lambda: square(3),
    "twice": lambda: [Twice(), nn.Linear(6, 3)],
    "branches": lambda: [nn.TransformerEncoderLayer(6, 2, 6, 0.0, batch_first=True), *square(1)],
    "images": lambda: [nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 6, 1), nn.Flatten(), nn.Linear(36, 6)],
    "recurrent": lambda: [nn.Unflatten(1, (1, 6)), First(), nn.Linear(6, 6)],
}


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(6, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0][:, -1]  # type: ignore[no-any-return]


def found(kind: str, batch: int, large: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Tensor], Tensor, int]:
    """All gradients of three rows, that of the input, and how many were written in place."""
    monkeypatch.setattr(gradients, "LARGE", large)
    torch.default_generator.manual_seed(0)
    layers = MODELS[kind]()
    which = half(nn.Sequential(*layers), range(len(layers)), CPU)
    rows = Rows(which, 3)
    rows.w.normal_(generator=torch.Generator().manual_seed(1))
    rows.g.fill_(7.0)  # what was there is replaced
    written = 0
    real = gradients._same

    def same(place: Tensor, g: Tensor) -> bool:
        nonlocal written
        written += real(place, g)
        return real(place, g)

    monkeypatch.setattr(gradients, "_same", same)
    x = torch.randn(batch, 6, generator=torch.Generator().manual_seed(2))
    grads = []
    for j in range(3):
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            out = rows.forward(j, leaf)
            assert isinstance(out, Tensor)
            total = out.sin().sum()
        grads += differentiate(total, [rows.views[j]], inputs=[leaf])
    return [view for views in rows.views for view in views.g], torch.stack(grads), written


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("batch", [5, 6])  # with 6, the gradients of activations are shaped like weights
def test_in_place_or_copied(kind: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as copied:
        right, cut, written = found(kind, batch, 10**9, copied)
        assert written == 0
    mine, mine_cut, written = found(kind, batch, 1, monkeypatch)
    assert written > 0 or batch == 6, "nothing was written in place, so nothing is tested"
    assert all(map(torch.equal, mine, right))
    assert torch.equal(mine_cut, cut)


@pytest.mark.parametrize(
    ("scheme", "labels"), [("smofi", "send"), ("smofi", "stay"), ("cyclesfl", "send"), ("ssl", "send"), ("psl", "stay")]
)
def test_a_training_has_the_same_bits(scheme: str, labels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def weights() -> list[Tensor]:
        torch.default_generator.manual_seed(0)
        model = nn.Sequential(*square(3), nn.Linear(6, 6))
        data = [(torch.randn(18, 6), torch.randint(0, 6, (18,))) for _ in range(3)]
        result = cl.train(
            model, data, cut=1, scheme=scheme, labels=labels, rounds=2, batch_size=6, local_epochs=1, backend="loop"
        )
        return list(result.model.state_dict().values())

    right = weights()
    monkeypatch.setattr(gradients, "LARGE", 1)
    assert all(map(torch.equal, weights(), right))


@pytest.mark.parametrize(("rows", "batch"), [(2048, 10), (700, 32), (64, 1000)])
def test_a_place_anywhere_in_memory_gets_the_same_bits(rows: int, batch: int) -> None:
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(batch, rows, generator=draw).t(), torch.randn(batch, 501, generator=draw)
    right, memory = torch.mm(a, b), torch.empty(rows * 501 + 16)
    for offset in range(16):
        place = memory[offset : offset + rows * 501].view(rows, 501)
        assert torch.equal(torch.mm(a, b, out=place), right)
