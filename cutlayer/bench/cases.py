"""The models that are measured, with their usual batch sizes; the data are random numbers."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cutlayer.clients.messages import Loss
from cutlayer.core.extras import EXTRAS, needs
from cutlayer.core.randomness import OwnRandomness
from cutlayer.hf.base import LoRA
from cutlayer.nn.language import next_token
from cutlayer.registry import MODELS

LLAMA = "llama with LoRA"


def llama(vocabulary: int) -> nn.Module:
    """A Llama of six layers, frozen, with adapters beside its queries and values."""
    needs("hf")
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=6,
        num_attention_heads=4,
        tie_word_embeddings=False,
    )
    return LoRA(r=8, targets="q_proj,v_proj").wrap(transformers.LlamaForCausalLM(config))


def measurable() -> list[str]:
    """The cases for which everything is installed."""
    there = all(importlib.util.find_spec(name) for name in EXTRAS["hf"])
    return [name for name, case in CASES.items() if there or case.model != LLAMA]


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
    predicts: bool = False  # the inputs themselves, token by token

    def build(self) -> nn.Module:
        with OwnRandomness():
            if self.model == LLAMA:
                return llama(self.codes)
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
            if self.predicts:
                return x, x
            return x, torch.randint(0, self.classes, (rows,), generator=draw)

        return [one() for _ in range(self.clients)]

    @property
    def loss(self) -> Loss:
        return next_token if self.predicts else functional.cross_entropy

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
        Case("tiny-llama", LLAMA, (64,), 512, 2, 8, 8, 3, codes=512, predicts=True),
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
    "tiny-llama": (0.9, 0.9, 1.0),
}
"""Our aims on two cores: our throughput over that of plain, tuned and naive training."""
