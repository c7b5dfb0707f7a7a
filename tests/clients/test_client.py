"""What goes wrong inside a client's computation names its round, client and step, and keeps its cause."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl


class Breaks(nn.Module):
    """Raises in the forward pass of rows that hold 7 in a run under way (whatever is tried before has none)."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x[..., 0] == 7).any()):
            raise OverflowError("seven")
        return x


class Rows(torch.utils.data.Dataset[Any]):
    """Twelve rows, of which the ninth cannot be read."""

    def __init__(self, bad: int | None) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        if i == self.bad:
            raise OSError("torn page")
        return torch.full((4,), float(i % 3)), i % 3


def model(*blocks: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(blocks or (nn.Linear(4, 5),)), nn.Linear(5 if not blocks else 4, 5), nn.Linear(5, 3))


def rows(seven: int | None = None) -> tuple[Tensor, Tensor]:
    x = torch.rand(12, 4)
    if seven is not None:
        x[seven, 0] = 7.0
    return x, torch.arange(12) % 3


TASK: dict[str, Any] = {"rounds": 2, "batch_size": 4, "local_epochs": 1, "shuffle": False}


@pytest.mark.parametrize("scheme", ["smofi", "mergesfl", "ssl"])
@pytest.mark.parametrize("labels", ["send", "stay"])
def test_a_block(scheme: str, labels: str) -> None:
    with pytest.raises(cl.ClientError, match="round 1, client 2, step 1: OverflowError: seven") as error:
        cl.train(model(Breaks()), [rows(), rows(), rows(seven=5)], scheme=scheme, labels=labels, **TASK)
    assert isinstance(error.value.__cause__, OverflowError)


def test_a_data_set() -> None:
    """Which says for itself which row it was."""
    with pytest.raises(
        cl.ContractError, match=r"round 1, client 1, step 2: clients\[1\], .* OSError: torn page"
    ) as error:
        cl.train(model(), [Rows(None), Rows(bad=9)], backend="loop", **TASK)
    assert isinstance(error.value.__cause__, cl.ContractError)
    assert isinstance(error.value.__cause__.__cause__, OSError)


def test_clients_in_one_graph() -> None:
    with pytest.raises(cl.ContractError, match=r"round 1, clients 0, 1, step 2: clients\[1\], .* OSError: torn page"):
        cl.train(model(), [Rows(None), Rows(bad=9)], backend="stacked", **TASK)


def test_our_own_errors_stay_what_they_are() -> None:
    x, y = rows()
    with pytest.raises(cl.Diverged):
        cl.train(model(), [(x, y)], optimizer=cl.SGD(lr=1e30), **TASK | {"rounds": 5})
