"""Optimizer memory: the moments of many rows, and which rows can step in one expression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cutlayer.optim.optimizer import Optimizer


class Moments(NamedTuple):
    """An optimizer's memory of one vector: its moments, and the number of steps since they were reset."""

    m: tuple[Tensor, ...]
    t: int

    def clone(self) -> Moments:
        return Moments(tuple(m.clone() for m in self.m), self.t)

    @property
    def nbytes(self) -> int:
        return sum(m.nbytes for m in self.m)

    def named(self) -> dict[str, Tensor]:
        """Return it as named tensors, for storage; `read` is the inverse."""
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
        """Write these moments into a row."""
        for mine, theirs in zip(self.moments, moments.m, strict=True):
            mine[row] = theirs
        self.t[row] = moments.t

    def get(self, row: int) -> Moments:
        """The moments of a row, as views."""
        return Moments(tuple(m[row] for m in self.moments), self.t[row])

    def reset(self, row: int | slice = slice(None)) -> None:
        """Set the moments and the step counters of these rows to zero."""
        for moment in self.moments:
            moment[row].zero_()
        rows = range(len(self.t))[row] if isinstance(row, slice) else [row]
        for j in rows:
            self.t[j] = 0


def runs(rows: Sequence[int], t: Sequence[int], together: int) -> Iterator[tuple[slice, int]]:
    """Yield slices of neighbouring rows with the same step count, which step in one expression, and that count."""
    start = 0
    for end in range(1, len(rows) + 1):
        full = end - start == together
        if full or end == len(rows) or rows[end] != rows[end - 1] + 1 or t[rows[end]] != t[rows[start]]:
            yield slice(rows[start], rows[end - 1] + 1), t[rows[start]]
            start = end
