"""How good a model is on labelled outputs: mean loss, accuracy, macro F1, Matthews' correlation, AUC.

Each is computed once over the pooled rows, so a client counts by its rows; only the spread is over clients.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Metric = Callable[[Tensor, Tensor], float | Tensor]
"""The caller's own metric: one number from all outputs and all labels."""
Series = dict[str, float | None]
"""Numbers of one group of clients, by name: those of Scores, how many clients and samples, and the spread."""


@dataclass(frozen=True)
class Scores:
    """Mean loss and, for class labels, top-1 accuracy, macro F1, Matthews' correlation, one-against-rest AUC."""

    loss: float | None = None
    accuracy: float | None = None
    f1: float | None = None
    mcc: float | None = None
    auc: float | None = None
    metric: float | None = None  # the caller's own metric


class Outputs(NamedTuple):
    """A model's results on some test rows: the summed loss, the outputs and the labels."""

    loss: float
    out: Tensor
    y: Tensor

    @property
    def categorical(self) -> bool:
        """Whether the outputs are class scores and the labels are classes."""
        return self.out.ndim == 2 and self.y.ndim == 1 and not self.y.is_floating_point()

    @property
    def accuracy(self) -> float:
        return float((self.out.argmax(dim=1) == self.y).double().mean())


def score(parts: Sequence[Outputs], metric: Metric | None = None) -> Scores:
    """Return all scores, over the rows of all parts together."""
    parts = [part for part in parts if len(part.y)]
    if not parts:
        return Scores()
    rows = sum(len(part.y) for part in parts)
    loss = math.fsum(part.loss for part in parts) / rows
    out, y = torch.cat([part.out for part in parts]), torch.cat([part.y for part in parts])
    own = None if metric is None else float(metric(out, y))
    if not all(part.categorical for part in parts):
        return Scores(loss, metric=own)
    truth = y.numpy()
    guess = out.argmax(dim=1).numpy()
    confusion = confused(truth, guess)
    return Scores(
        loss=loss,
        accuracy=float((truth == guess).mean()),
        f1=f1(confusion),
        mcc=mcc(confusion),
        auc=auc(out, truth),
        metric=own,
    )


def confused(truth: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Return the confusion matrix (row: truth, column: guess) of the classes that occur in either. scikit-learn's takes
    a hundred times as long for a client's few rows, and as long to import as torch."""
    classes, codes = np.unique(np.concatenate([truth, guess]), return_inverse=True)
    n = len(classes)
    both = codes.reshape(2, -1)
    return np.bincount(both[0] * n + both[1], minlength=n * n).reshape(n, n).astype(np.float64)


def f1(confusion: np.ndarray) -> float:
    """Return the harmonic mean of precision and recall, averaged over the classes."""
    return float(np.mean(2 * confusion.diagonal() / (confusion.sum(axis=0) + confusion.sum(axis=1))))


def mcc(confusion: np.ndarray) -> float:
    """Return Matthews' correlation between truth and guess; 0 where one of them is always the same class."""
    true, taken, n = confusion.sum(axis=1), confusion.sum(axis=0), confusion.sum()
    spread = (n**2 - taken @ taken) * (n**2 - true @ true)
    return float((confusion.trace() * n - true @ taken) / np.sqrt(spread)) if spread > 0 else 0.0


def auc(out: Tensor, truth: np.ndarray) -> float | None:
    """Return the area under the ROC curve, one class against the rest, averaged over the classes that occur in the
    truth; None where there is only one class, or the outputs are not finite."""
    from scipy.stats import rankdata  # only here: it takes a while to import

    if out.shape[1] < 2 or not bool(torch.isfinite(out).all()):
        return None
    p = out.double().softmax(dim=1).numpy()
    n, classes = len(truth), [c for c in np.unique(truth) if not (truth == c).all()]
    classes = classes if out.shape[1] > 2 else classes[1:]
    areas = []  # by Mann and Whitney: from the ranks of the positives
    for c, rank in zip(classes, rankdata(p[:, classes], axis=0).T, strict=True):
        positive = truth == c
        m = int(positive.sum())
        areas.append((float(rank[positive].sum()) - m * (m + 1) / 2) / (m * (n - m)))
    return statistics.fmean(areas) if areas else None


def series(parts: Sequence[Outputs], metric: Metric | None = None) -> Series:
    """Return the scores over all parts together (one part per client), and the spread over the clients."""
    parts = [part for part in parts if len(part.y)]
    pooled = score(parts, metric)
    found: Series = {
        **{name: getattr(pooled, name) for name in Scores.__dataclass_fields__},
        "clients": len(parts),
        "samples": sum(len(part.y) for part in parts),
    }
    if pooled.accuracy is None:
        return found
    each = sorted(part.accuracy for part in parts)
    tenth = math.ceil(len(each) / 10)
    return {
        **found,
        "client_mean": statistics.fmean(each),
        "client_std": statistics.pstdev(each),
        "client_median": statistics.median(each),
        "worst_tenth": statistics.fmean(each[:tenth]),
        "best_tenth": statistics.fmean(each[-tenth:]),
    }
