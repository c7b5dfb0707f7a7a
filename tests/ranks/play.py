"""Plays small runs of every kind and writes down what came out: alone, or as one of the ranks of torchrun.

python -m tests.ranks.play FILE (none | one | ordered | fast) [NAME ...]     one, fast: a single round
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.models import resnet
from cutlayer.parts import SCHEMES
from cutlayer.ranks import join, leave

SHAPE = (1, 8, 8)
NAR = cl.FedNAR(max_norm=0.5, norm="joint")


def data(client: int, rows: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(client)
    return torch.rand(rows, *SHAPE, generator=draw), torch.randint(0, 10, (rows,), generator=draw)


def tiny(dropout: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU())
    middle = nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.3 if dropout else 0.0))
    return nn.Sequential(first, nn.Sequential(nn.Linear(12, 12), nn.ReLU()), middle, nn.Linear(12, 10))


def pictures() -> nn.Sequential:
    torch.manual_seed(0)
    return resnet(SHAPE, 10, width=8)


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and arguments; clients have unequal amounts, so that some finish earlier."""
    for scheme in SCHEMES:
        yield f"{scheme}", {"scheme": scheme, "backend": "loop"}
    for scheme in ("smofi", "psl", "cyclepsl"):
        yield f"{scheme} cyclesl", {"scheme": scheme, "backend": "loop", "protocol": "cyclesl"}
    for scheme in ("smofi", "mergesfl"):
        yield f"{scheme} stacked", {"scheme": scheme, "backend": "stacked", "model": pictures()}
    for scheme in ("smofi", "sflv2"):
        yield f"{scheme} joint norm", {"scheme": scheme, "backend": "loop", "local": NAR}
    for scheme in ("smofi", "sflv1"):
        yield f"{scheme} adam", {"scheme": scheme, "backend": "loop", "optimizer": cl.Adam(), "last_batch": "keep"}
    yield "smofi adaptive", {"scheme": cl.SMoFi(adaptive=True), "backend": "loop"}
    yield "smofi fused clients", {"scheme": cl.SMoFi(fuse_clients=True), "backend": "loop"}
    yield "smofi dropout", {"scheme": "smofi", "backend": "loop", "model": tiny(dropout=True)}
    yield "fedavg fednag", {"scheme": "fedavg", "backend": "loop", "update": "fednag"}
    yield "smofi few", {"scheme": "smofi", "backend": "loop", "participation": 1}
    yield "psl few", {"scheme": "psl", "backend": "loop", "participation": 1}
    yield "mergesfl few", {"scheme": "mergesfl", "backend": "loop", "participation": 1}


def play(arguments: dict[str, Any], ranks: str) -> tuple[cl.Run, list[cl.Round]]:
    """Two rounds of 5 of 6 clients."""
    given = {"model": tiny(), "participation": 0.8, "protocol": "smofi", **arguments}
    mode: Any = None if ranks in ("none", "one") else ranks
    tests: Any = data(50, 40)
    if given["protocol"] == "cyclesl":
        tests = [data(50 + j, 9) for j in range(6)]
    run = cl.rounds(
        given.pop("model"),
        [data(j, 10 + 4 * j) for j in range(6)],
        test=tests,
        cut=1,
        rounds=1 if ranks in ("one", "fast") else 2,
        batch_size=4,
        local_epochs=1,
        seed=3,
        threads=1,
        ranks=mode,
        **given,
    )
    return run, list(run)


def digest(run: cl.Run) -> str:
    kept = {owner: parcel.open() for owner, parcel in sorted(run.state.kept.items())}
    tensors = [*run.state.W, *(t for _, some in sorted(kept.items()) for _, t in sorted(some.items()))]
    return hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in tensors)).hexdigest()


def main(file: str, ranks: str, *names: str) -> None:
    found: dict[str, Any] = {}
    for name, arguments in cases():
        if names and name not in names:
            continue
        run, history = play(arguments, ranks)
        record = history[-1].__dict__ | {"seconds": 0.0}
        found[name] = {"digest": digest(run), "record": record, "w": run.state.W.w.tolist() if names else []}
    if ranks in ("none", "one") or join(ranks).root:
        Path(file).write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
