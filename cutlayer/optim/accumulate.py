"""Gradient accumulation: one optimizer step on the gradients of several micro-batches.

n_i   the samples of micro-batch i        g_i   the gradient of its mean loss
g     sum_i n_i*g_i / sum_i n_i, the gradient of the mean loss over all samples of the step
"""

from __future__ import annotations

import torch
from torch import Tensor


class Accumulated:
    """The gradients so far of steps that are under way, by owner."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[Tensor, int]] = {}
        self._spare: list[Tensor] = []  # buffers to use again

    def add(self, owner: int, g: Tensor, n: int, last: bool) -> None:
        """Add the gradient of a micro-batch of n samples; the last one is overwritten by the gradient of the step."""
        if last and owner not in self._sums:
            return  # it is the only one
        if owner in self._sums:
            total, samples = self._sums.pop(owner)
            total.add_(g, alpha=n)
        else:
            total, samples = self._spare.pop() if self._spare else torch.empty_like(g), 0
            torch.mul(g, n, out=total)
        if last:
            torch.div(total, samples + n, out=g)
            self._spare.append(total)
        else:
            self._sums[owner] = total, samples + n

    def clear(self) -> None:
        """Forget the steps under way."""
        self._spare += [total for total, _ in self._sums.values()]
        self._sums = {}
