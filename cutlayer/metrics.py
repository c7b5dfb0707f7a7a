"""How good the global model is: the whole test set, inference mode, large batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from cutlayer.cut import blocks_of
from cutlayer.data.source import Source
from cutlayer.flat import Vectors, half

BATCH = 512


@dataclass(frozen=True)
class Scores:
    """Mean loss and, for class labels, top-1 accuracy, macro F1 and Matthews' correlation."""

    loss: float | None = None
    accuracy: float | None = None
    f1: float | None = None
    mcc: float | None = None


class Evaluator:
    """Scores weights on test sources, pooled."""

    def __init__(
        self, model: nn.Module, tests: Sequence[Source], loss: Callable[[Tensor, Tensor], Tensor], device: torch.device
    ) -> None:
        self.half = half(model, 0, len(blocks_of(model)), device)
        self.half.train(False)
        self.tests, self.loss = tests, loss

    @torch.no_grad()
    def __call__(self, state: Vectors) -> Scores:
        views = self.half.views(state)
        total, count = 0.0, 0
        truth, guess = [], []
        for test in self.tests:
            for start in range(0, len(test), BATCH):
                x, y = test.take(np.arange(start, min(start + BATCH, len(test))), self.half.device)
                out = self.half(x, views)
                total += float(self.loss(out, y)) * len(x)
                count += len(x)
                truth.append(y.cpu())
                guess.append(out.argmax(dim=1).cpu() if out.ndim == 2 else out.cpu())
        if not count:
            return Scores()
        labels, guesses = torch.cat(truth), torch.cat(guess)
        if labels.shape != guesses.shape or labels.is_floating_point() or guesses.is_floating_point():
            return Scores(loss=total / count)
        from sklearn.metrics import f1_score, matthews_corrcoef  # only here: it takes as long to import as torch

        y_true, y_pred = labels.numpy(), guesses.numpy()
        return Scores(
            loss=total / count,
            accuracy=float((y_true == y_pred).mean()),
            f1=float(f1_score(y_true, y_pred, average="macro", zero_division=0)),
            mcc=float(matthews_corrcoef(y_true, y_pred)),
        )
