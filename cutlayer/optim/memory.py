"""What optimizers remember: the moments of many rows, and which rows step in one expression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cutlayer.core.threads import TOGETHER
from cutlayer.optim.optimizer import Optimizer


class Moments(NamedTuple):
    """What an optimizer remembers of one vector: its moments, and the steps since they were empty."""

    m: tuple[Tensor, ...]
    t: int

    def clone(self) -> Moments:
        return Moments(tuple(m.clone() for m in self.m), self.t)

    @property
    def nbytes(self) -> int:
        return sum(m.nbytes for m in self.m)

    def named(self) -> dict[str, Tensor]:
        """As tensors with names, to be kept; `read` takes them back."""
        return {**{f"moment{i}": m for i, m in enumerate(self.m)}, "t": torch.tensor(self.t)}

    @classmethod
    def read(cls, named: Mapping[str, Tensor]) -> Moments:
        m = tuple(named[f"moment{i}"] for i in range(sum(name.startswith("moment") for name in named)))
        return cls(m, int(named["t"]))


class Memory:
    """The moments of n rows and the steps each has taken."""

    def __init__(self, optimizer: Optimizer, like: Tensor) -> None:
        self.moments = [torch.zeros_like(like, memory_format=torch.contiguous_format) for _ in range(optimizer.moments)]
        self.t = [0] * like.shape[0]

    def put(self, row: int, moments: Moments) -> None:
        """Remember this in a row."""
        for mine, theirs in zip(self.moments, moments.m, strict=True):
            mine[row] = theirs
        self.t[row] = moments.t

    def get(self, row: int) -> Moments:
        """What a row remembers, as views."""
        return Moments(tuple(m[row] for m in self.moments), self.t[row])

    def reset(self, row: int | slice = slice(None)) -> None:
        """Forget: moments zero, counters zero."""
        for moment in self.moments:
            moment[row].zero_()
        rows = range(len(self.t))[row] if isinstance(row, slice) else [row]
        for j in rows:
            self.t[j] = 0


def runs(rows: Sequence[int], t: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Neighbouring rows with the same count of steps, a few at a time, as slices: what steps in one expression."""
    start = 0
    for end in range(1, len(rows) + 1):
        full = end - start == TOGETHER
        if full or end == len(rows) or rows[end] != rows[end - 1] + 1 or t[rows[end]] != t[rows[start]]:
            yield slice(rows[start], rows[end - 1] + 1), t[rows[start]]
            start = end
