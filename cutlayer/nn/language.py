"""Language models: the loss of the next token, and perplexity.

Labels are aligned with the inputs, and usually are the inputs: position t predicts the label at t + 1. Labels of -100
are not predicted, as in transformers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from cutlayer.errors import ContractError, expect

IGNORED = -100
LARGEST = 700.0  # e to this power is still a number; journals hold no infinity


def next_token(out: Tensor, y: Tensor) -> Tensor:
    """Return the mean of -log p(y[t+1] | tokens 0..t) over all labels of a batch that count.

    out         logits [B, S, V]; shorter types than float32 are taken to float32
    y           labels [B, S], -100 where there is nothing to predict

    >>> y = torch.tensor([[3, 1, 2, -100]])
    >>> out = functional.one_hot(torch.tensor([[1, 2, 0, 0]]), 4) * 20.0       # sure of 1 after 3, and of 2 after 1
    >>> f"{next_token(out, y):.4f}"
    '0.0000'
    """
    counted = _following(out, y)
    if not bool((counted != IGNORED).any()):
        words = f"all {y[:, 1:].numel()} after the first of each row are ignored ({IGNORED})"
        raise ContractError(f"labels: {words}; expected at least one that counts")
    # the labels are shifted and not the logits: part of them would have to be copied
    return functional.cross_entropy(_long(out).flatten(0, 1), counted.flatten(), ignore_index=IGNORED)


class Perplexity:
    """A metric of language models: e to the mean of -log p over all tokens of the test that count, each of them once.

    >>> metric = Perplexity()
    >>> metric.update(torch.zeros(2, 5, 10), torch.tensor([[1, 2, 3, 4, 5], [6, 7, -100, -100, -100]]))
    >>> round(metric.compute(), 4)                                             # ten words, all equally likely
    10.0
    """

    def __init__(self) -> None:
        self._total, self._tokens = 0.0, 0

    def update(self, out: Tensor, y: Tensor) -> None:
        """Take logits [B, S, V] and labels [B, S] of some rows."""
        for logits, labels in zip(out, _following(out, y), strict=True):  # row by row: logits can be large
            each = functional.cross_entropy(_long(logits), labels, ignore_index=IGNORED, reduction="none")
            self._total += float(each.double().sum())
            self._tokens += int((labels != IGNORED).sum())

    def compute(self) -> float:
        """Return the perplexity of all rows so far."""
        if not self._tokens:
            raise ContractError(f"labels of the test: all are ignored ({IGNORED}); expected at least one that counts")
        return math.exp(min(self._total / self._tokens, LARGEST))


def _following(out: Tensor, y: Tensor) -> Tensor:
    """Return the label that each position predicts, [B, S]; the last of a row predicts nothing."""
    expect(out.ndim == 3, "outputs: shape", tuple(out.shape), "logits [rows, tokens, vocabulary] of a language model")
    expect(y.shape == out.shape[:2], "labels: shape", tuple(y.shape), f"{tuple(out.shape[:2])}, one for each token")
    expect(not y.is_floating_point(), "labels", str(y.dtype)[6:], "whole numbers, the tokens themselves")
    return functional.pad(y[:, 1:], (0, 1), value=IGNORED)


def _long(logits: Tensor) -> Tensor:
    return logits.float() if logits.itemsize < torch.float32.itemsize else logits
