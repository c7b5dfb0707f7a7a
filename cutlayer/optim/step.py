"""One optimizer step of several rows: local rule, weight decay and update in one pass over their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from cutlayer.core.threads import Workers
from cutlayer.nn.flat import Rows
from cutlayer.optim.local import Local, clips_regularised, regularise
from cutlayer.optim.memory import Memory, runs
from cutlayer.optim.optimizer import Optimizer


@dataclass(frozen=True)
class Step:
    """The settings of a step. `w0`: the weights at the start of the round."""

    local: Local | None
    optimizer: Optimizer
    w0: Tensor
    eta: float


def optimizer_step(workers: Workers, how: Step, rows: Rows, memory: Memory, which: Sequence[int]) -> None:
    """Take one optimizer step in each of these rows.

    A rule may need the norm of the whole regularised gradient; then the caller has regularised it already.
    """
    done = clips_regularised(how.local)
    for some, t in list(runs(which, memory.t, workers.rows(rows.w.shape[1]))):

        def visit(at: slice, some: slice = some, t: int = t) -> None:
            w, g = rows.w[some, at], rows.g[some, at]
            if not done:
                regularise(how.local, how.optimizer, g, w, how.w0[at])
            how.optimizer.update(w, g, [m[some, at] for m in memory.moments], how.eta, t + 1)

        workers.sweep(rows.w.shape[1], visit)
    for row in which:
        memory.t[row] += 1
