"""How good a model is on labelled outputs: mean loss, accuracy, macro F1, Matthews' correlation, AUC.

Each is computed once over the pooled rows, so a client counts by its rows; only the spread is over clients.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor


class Stream(Protocol):
    """A metric that sees the outputs batch by batch, so that they are never all in memory."""

    def update(self, out: Tensor, y: Tensor) -> None:
        """Take the outputs and labels of some rows."""

    def compute(self) -> float | Tensor:
        """Return the metric over all rows so far."""


Metric = Callable[[Tensor, Tensor], float | Tensor] | Stream | type[Stream]
"""The caller's own metric: a function of all outputs and all labels; or a stream, as an object that is copied for every
test, or as its class."""
LARGEST = 2**28  # bytes of outputs that are kept for the AUC, which needs them all at once; with more it is left out
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


class Tally:
    """Scores over the rows of several parts, which are added one after another and not kept, unless a score needs all
    outputs at once: the AUC, and a metric that is a function."""

    def __init__(self, metric: Metric | None = None) -> None:
        self._stream = _begun(metric)
        self._function = None if metric is None or self._stream is not None else metric
        self._losses: list[float] = []
        self.rows, self._bytes, self._categorical = 0, 0, True
        self._counts: Counter[tuple[int, int]] = Counter()  # (truth, guess)
        self._kept: list[Outputs] = []
        self.accuracies: list[float] = []  # of each part

    def add(self, part: Outputs) -> None:
        if not len(part.y):
            return
        self._losses.append(part.loss)
        self.rows += len(part.y)
        self._bytes += part.out.nbytes
        self._categorical = self._categorical and part.categorical
        if self._stream is not None:
            self._stream.update(part.out, part.y)
        if self._categorical:
            both = np.stack([part.y.numpy(), part.out.argmax(dim=1).numpy()])
            pairs, counts = np.unique(both, axis=1, return_counts=True)
            self._counts.update({(int(t), int(g)): int(n) for t, g, n in zip(*pairs, counts, strict=True)})
            self.accuracies.append(part.accuracy)
        if self._function is not None or (self._categorical and self._bytes <= LARGEST):
            self._kept.append(part)
        elif self._function is None:
            self._kept = []

    def scores(self) -> Scores:
        if not self.rows:
            return Scores()
        loss, own = math.fsum(self._losses) / self.rows, self._own()
        if not self._categorical:
            return Scores(loss, metric=own)
        confusion = self._confusion()
        whole = sum(len(part.y) for part in self._kept) == self.rows and self._bytes <= LARGEST
        out, y = self._together() if whole else (None, None)
        return Scores(
            loss=loss,
            accuracy=float(confusion.trace() / self.rows),
            f1=f1(confusion),
            mcc=mcc(confusion),
            auc=None if out is None or y is None else auc(out, y.numpy()),
            metric=own,
        )

    def _own(self) -> float | None:
        """The caller's own metric."""
        if self._stream is not None:
            return float(self._stream.compute())
        return None if self._function is None else float(cast(Callable[..., Any], self._function)(*self._together()))

    def _together(self) -> tuple[Tensor, Tensor]:
        return torch.cat([part.out for part in self._kept]), torch.cat([part.y for part in self._kept])

    def _confusion(self) -> np.ndarray:
        """The confusion matrix (row: truth, column: guess) of the classes that occur in either. scikit-learn's takes a
        hundred times as long for a client's few rows, and as long to import as torch."""
        classes = {c: i for i, c in enumerate(sorted({c for pair in self._counts for c in pair}))}
        found = np.zeros((len(classes), len(classes)))
        for (truth, guess), n in self._counts.items():
            found[classes[truth], classes[guess]] = n
        return found


def _begun(metric: Metric | None) -> Stream | None:
    """Return a metric that is a stream, ready for its first rows; None if it is a function."""
    if not (hasattr(metric, "update") and hasattr(metric, "compute")):
        return None
    return metric() if isinstance(metric, type) else copy.deepcopy(cast(Stream, metric))


def score(parts: Sequence[Outputs], metric: Metric | None = None) -> Scores:
    """Return all scores, over the rows of all parts together."""
    tally = Tally(metric)
    for part in parts:
        tally.add(part)
    return tally.scores()


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
    if out.shape[1] < 2 or not bool(torch.isfinite(out).all()):
        return None
    p = out.double().softmax(dim=1).numpy()
    n, classes = len(truth), [c for c in np.unique(truth) if not (truth == c).all()]
    classes = classes if out.shape[1] > 2 else classes[1:]
    areas = []  # by Mann and Whitney: from the ranks of the positives
    for c in classes:
        positive = truth == c
        m = int(positive.sum())
        areas.append((float(ranks(p[:, c])[positive].sum()) - m * (m + 1) / 2) / (m * (n - m)))
    return statistics.fmean(areas) if areas else None


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the place of each value in their order, from 1; equal ones share the mean of theirs. SciPy's takes a
    second to import."""
    _, which, times = np.unique(values, return_inverse=True, return_counts=True)
    mean: np.ndarray = np.cumsum(times) - (times - 1) / 2
    return mean[which]


def series(tally: Tally, clients: int) -> Series:
    """Return the scores of a tally with one part per client, and the spread over the clients."""
    pooled = tally.scores()
    found: Series = {
        **{name: getattr(pooled, name) for name in Scores.__dataclass_fields__},
        "clients": clients,
        "samples": tally.rows,
    }
    if pooled.accuracy is None:
        return found
    each = sorted(tally.accuracies)
    tenth = math.ceil(len(each) / 10)
    return {
        **found,
        "client_mean": statistics.fmean(each),
        "client_std": statistics.pstdev(each),
        "client_median": statistics.median(each),
        "worst_tenth": statistics.fmean(each[:tenth]),
        "best_tenth": statistics.fmean(each[-tenth:]),
    }
