"""The small models: right outputs at every size, blocks as documented, group norm on request."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cutlayer.errors import ContractError
from cutlayer.macs import shape_of
from cutlayer.models import MODELS, cnn, leaf_cnn, mlp, resnet

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32)]
BLOCKS = {"mlp": 4, "cnn": 4, "resnet": 5, "leaf_cnn": 4}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_output_and_blocks(name: str, shape: tuple[int, int, int]) -> None:
    model = MODELS[name].make(shape, 7)
    assert model(torch.rand(3, *shape)).shape == (3, 7)
    assert len(model) == BLOCKS[name]


def test_group_norm_replaces_every_batch_norm() -> None:
    kinds = {norm: [type(m) for m in resnet((3, 32, 32), 10, norm=norm).modules()] for norm in ("bn", "gn")}
    assert kinds["bn"].count(nn.BatchNorm2d) == kinds["gn"].count(nn.GroupNorm) > 0
    assert nn.BatchNorm2d not in kinds["gn"]
    with pytest.raises(ContractError, match="norm = 'ln'"):
        resnet((3, 32, 32), 10, norm="ln")


def test_the_leaf_network_is_the_published_one() -> None:
    model = leaf_cnn((1, 28, 28), 62)
    assert sum(p.numel() for p in model.parameters()) == 6_603_710
    assert model[:2](torch.rand(2, 1, 28, 28)).shape == (2, 64, 7, 7)
    assert leaf_cnn((3, 30, 21), 5, hidden=8)(torch.rand(2, 3, 30, 21)).shape == (2, 5)
    with pytest.raises(ContractError, match="at least 4x4"):
        leaf_cnn((1, 3, 28), 62)
    with pytest.raises(ContractError, match="hidden = 0"):
        leaf_cnn((1, 28, 28), 62, hidden=0)


def test_macs_equal_counts_by_hand() -> None:
    assert shape_of(mlp((1, 8, 8), 10, width=64), torch.rand(2, 1, 8, 8)).macs == [64 * 64, 64 * 64, 64 * 64, 64 * 10]
    by_hand = [64 * 16 * 9, 64 * 32 * 16 * 9, 16 * 32 * 32 * 9, 32 * 2 * 2 * 10]
    assert shape_of(cnn((1, 8, 8), 10, width=16), torch.rand(2, 1, 8, 8)).macs == by_hand
    by_hand = [784 * 32 * 25, 196 * 64 * 32 * 25, 3136 * 2048, 2048 * 62]
    assert shape_of(leaf_cnn((1, 28, 28), 62), torch.rand(2, 1, 28, 28)).macs == by_hand


def test_macs_of_an_lstm_come_from_the_formula() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0][:, -1]

    model = nn.Sequential(Last(), nn.Linear(16, 5))
    per_position = 4 * 16 * (8 + 16) + 4 * 16 * (16 + 16)
    assert shape_of(model, torch.rand(3, 10, 8)).macs == [10 * per_position, 16 * 5]
