"""The models that are measured, with their usual batch sizes; the data are random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cutlayer.core.randomness import OwnRandomness
from cutlayer.registry import MODELS


@dataclass(frozen=True)
class Case:
    """A model, where it is cut, its batches and its clients; `steps`: of each client in a measured round."""

    name: str
    model: str
    shape: tuple[int, ...]
    classes: int
    cut: int
    batch: int
    clients: int
    steps: int
    options: tuple[tuple[str, Any], ...] = ()
    codes: int = 0  # above 0: inputs are whole numbers below this, not pictures

    def build(self) -> nn.Module:
        with OwnRandomness():
            model: nn.Module = MODELS[self.model].make(self.shape, self.classes, **dict(self.options))
        return model

    def data(self) -> list[tuple[Tensor, Tensor]]:
        """The data of each client: `steps` batches."""
        draw = torch.Generator().manual_seed(1)
        rows = self.batch * self.steps

        def one() -> tuple[Tensor, Tensor]:
            if self.codes:
                x = torch.randint(0, self.codes, (rows, *self.shape), generator=draw)
            else:
                x = torch.rand(rows, *self.shape, generator=draw)
            return x, torch.randint(0, self.classes, (rows,), generator=draw)

        return [one() for _ in range(self.clients)]

    @property
    def samples(self) -> int:
        """Samples of a measured round."""
        return self.clients * self.batch * self.steps


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("tiny-cnn", "cnn", (1, 8, 8), 10, 0, 8, 20, 10),
        Case("mlp", "mlp", (1, 8, 8), 10, 0, 8, 20, 10),
        Case("femnist-cnn", "leaf_cnn", (1, 28, 28), 62, 1, 10, 10, 20),
        Case("resnet9", "resnet9", (3, 32, 32), 10, 1, 32, 4, 2),
        Case("resnet18", "resnet18", (3, 32, 32), 10, 1, 32, 4, 8, (("stem", "imagenet"),)),
        Case("resnet18-cifar", "resnet18", (3, 32, 32), 10, 1, 32, 2, 1, (("stem", "cifar"),)),
        Case("lstm", "leaf_lstm", (80,), 80, 0, 10, 8, 4, codes=80),
        Case("transformer", "transformer", (80,), 80, 1, 10, 4, 3, codes=80),
    )
}
AIMS: dict[str, tuple[float, float, float]] = {
    "tiny-cnn": (4.0, 3.5, 5.0),
    "mlp": (1.8, 1.6, 2.5),
    "femnist-cnn": (1.1, 1.0, 1.5),
    "resnet9": (1.15, 1.05, 1.2),
    "resnet18": (1.15, 1.05, 1.2),
    "resnet18-cifar": (1.15, 1.05, 1.2),
    "lstm": (1.05, 1.0, 1.05),
    "transformer": (1.05, 1.0, 1.05),
}
"""Our aims on two cores: our throughput over that of plain, tuned and naive training."""
