"""What the benchmark measures in a separate process: its peak memory, or the seconds of rounds shared by ranks.

python -m cutlayer.bench.child peak SCHEME CLIENTS
torchrun ... -m cutlayer.bench.child ranks MODEL
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from cutlayer.bench.cases import Case
from cutlayer.bench.sections import ranked, run
from cutlayer.core import heap
from cutlayer.processes.ranks import join, leave

WIDE = Case("wide", "mlp", (8,), 10, 0, 4, 4, 2, (("width", 1536), ("depth", 4)))


def peak(scheme: str, clients: int) -> dict[str, int | None]:
    """The peak memory of this process after two rounds, with a small front and a wide back."""
    ours = run(replace(WIDE, clients=clients), scheme, threads=1, backend="loop")
    next(ours)
    next(ours)
    W_c, W_s = ours.state.W.split(ours.setup.offsets[0])
    return {
        "peak": heap.peak(),
        "server_parameters": len(W_s.w),
        "client_parameters": len(W_c.w),
    }


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    found = peak(rest[0], int(rest[1])) if what == "peak" else {"seconds": ranked(rest[0])}
    if join("ordered").root:
        print(json.dumps(found))
    leave()
