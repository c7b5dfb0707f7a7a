"""The weighted mean of many halves, in this process or spread over ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cutlayer.core.group import ProcessGroup
from cutlayer.core.threads import Workers
from cutlayer.nn.flat import Vectors


class Mean:
    """sum_j p_j row_j, in the order the rows are added and at least in single precision; of counters, the maximum.

    Rows may be added in several groups. Where they are spread over ranks, every rank calls `add` exactly once.
    """

    def __init__(self, like: Vectors, workers: Workers, processes: ProcessGroup) -> None:
        self.like, self.workers, self.processes = like, workers, processes
        precise = (torch.promote_types(v.dtype, torch.float32) for v in (like.w, like.b))
        self.w, self.b = (torch.zeros_like(v, dtype=t) for v, t in zip((like.w, like.b), precise, strict=True))
        self.i = torch.zeros_like(like.i)

    def add(self, rows: Sequence[Vectors], p: Sequence[float]) -> None:
        self._add(self.w, [row.w for row in rows], p)
        self._add(self.b, [row.b for row in rows], p)
        for i in (row.i for row in rows):
            torch.maximum(self.i, i, out=self.i)
        for found in self.processes.all_tensors({"i": self.i}) if self.processes.size > 1 else ():
            torch.maximum(self.i, found["i"].to(self.i.device), out=self.i)

    def _add(self, total: Tensor, rows: Sequence[Tensor], p: Sequence[float]) -> None:
        def visit(at: slice, first: bool) -> None:
            for row, p_j in zip(rows, p, strict=True):
                total[at].add_(row[at], alpha=p_j)

        if len(total):
            self.processes.add_up([total], visit, self.workers)()

    def scale(self, factor: float) -> None:
        """Multiply by a factor, where the weights did not add up to 1."""
        self.w.mul_(factor)
        self.b.mul_(factor)

    @property
    def value(self) -> Vectors:
        return Vectors(self.w.to(self.like.w.dtype), self.b.to(self.like.b.dtype), self.i)


def average(
    rows: Sequence[Vectors], p: Sequence[float], like: Vectors, workers: Workers, processes: ProcessGroup
) -> Vectors:
    """The weighted mean of these rows. `like`: vectors of the same shapes and types, for a rank without rows."""
    mean = Mean(like, workers, processes)
    mean.add(rows, p)
    return mean.value


def drift(rows: Sequence[Vectors], center: Vectors, workers: Workers, processes: ProcessGroup) -> float:
    """The mean distance of the rows of all ranks from their center."""
    mine = distances(rows, center, workers)
    everybodys = [distance for some in processes.everyones(mine) for distance in some]
    return math.fsum(everybodys) / len(everybodys)


def distances(rows: Sequence[Vectors], center: Vectors, workers: Workers) -> list[float]:
    """The distance of each row from a center; a GPU is waited for once."""
    if not rows:
        return []

    def norms(at: slice) -> list[float]:
        away = (row.w[at] - center.w[at] for row in rows)
        found: list[float] = torch.stack(
            [torch.linalg.vector_norm(part, dtype=torch.float64) for part in away]
        ).tolist()
        return found

    found = zip(*workers.map(norms, workers.parts(len(center.w))), strict=True)
    return [math.sqrt(math.fsum(norm**2 for norm in pieces)) for pieces in found] or [0.0] * len(rows)
