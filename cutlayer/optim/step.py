"""One optimizer step of several rows: regularised, remembered and applied in one pass over their vectors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cutlayer.core.threads import Workers
from cutlayer.nn.flat import Rows
from cutlayer.optim.local import Local, clips, regularise
from cutlayer.optim.memory import Memory, runs
from cutlayer.optim.optimizer import Optimizer


def descend(
    workers: Workers,
    rule: Local | None,
    optimizer: Optimizer,
    rows: Rows,
    memory: Memory,
    which: Sequence[int],
    w0: Tensor,
    eta: float,
) -> None:
    """Step these rows, each with its gradient row. `w0`: the weights the round began with.

    A rule that clips needs the norm of the whole regularised gradient: there `clipped` has regularised it already.
    """
    done = clips(rule)
    for some, t in list(runs(which, memory.t)):

        def visit(at: slice, some: slice = some, t: int = t) -> None:
            w, g = rows.w[some, at], rows.g[some, at]
            if not done:
                regularise(rule, optimizer, g, w, w0[at])
            optimizer.update(w, g, [m[some, at] for m in memory.moments], eta, t + 1)

        workers.sweep(rows.w.shape[1], visit)
    for row in which:
        memory.t[row] += 1
