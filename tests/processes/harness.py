"""Plays small runs of every kind and writes down what came out: alone, or as one of several ranks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.models import resnet
from cutlayer.processes.ranks import join, leave
from cutlayer.registry import SCHEMES
from tests.schemes.outside import median

SHAPE = (1, 8, 8)
SPREAD = ("fedavg", "sflv1", "smofi", "psl")
FAST = "fast sums"
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


def thin() -> nn.Sequential:
    """At the cut, images of one channel, which torch calls plain and channels last at once; BatchNorm comes next."""
    torch.manual_seed(0)
    front = [nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), nn.Conv2d(4, 1, 3)]
    return nn.Sequential(*front, nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 4, 1), nn.Flatten(), nn.Linear(64, 10)))


class Beside(nn.Module):
    """Gives a mask beside the activations."""

    def forward(self, h: Tensor) -> dict[str, Tensor]:
        return {"h": h, "on": (h.detach() > 0).sum(1) > 5}


class Masked(nn.Module):
    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return x["h"] * x["on"][:, None]


def beside() -> nn.Sequential:
    front, second, *back = tiny()
    return nn.Sequential(front, nn.Sequential(second, Beside()), Masked(), *back)


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and arguments; clients have unequal amounts, so that some finish earlier."""
    for scheme in SCHEMES:
        yield f"{scheme}", {"scheme": scheme, "backend": "loop"}
    for scheme in ("smofi", "psl", "cyclepsl"):
        yield f"{scheme} cyclesl", {"scheme": scheme, "backend": "loop", "protocol": "cyclesl"}
    for scheme in ("smofi", "mergesfl", "cyclesfl"):
        yield f"{scheme} stacked", {"scheme": scheme, "backend": "stacked", "model": pictures()}
    for scheme in ("smofi", "sflv2", "mergesfl", "cyclesfl"):
        yield f"{scheme} with a mask", {"scheme": scheme, "backend": "loop", "model": beside()}
    yield "sflv2 one channel", {"scheme": "sflv2", "backend": "loop", "model": thin()}
    for scheme in ("smofi", "sflv2"):
        yield f"{scheme} joint norm", {"scheme": scheme, "backend": "loop", "local": NAR}
    for scheme in ("smofi", "sflv1"):
        yield f"{scheme} adam", {"scheme": scheme, "backend": "loop", "optimizer": cl.Adam(), "last_batch": "keep"}
    for scheme in ("fedavg", "sflv2", "smofi", "mergesfl", "psl", "ssl"):
        yield f"{scheme} stay", {"scheme": scheme, "backend": "loop", "labels": "stay"}
    yield "smofi stay stacked", {"scheme": "smofi", "backend": "stacked", "labels": "stay", "model": pictures()}
    for scheme in ("smofi", "ssl"):
        yield f"{scheme} stay joint norm", {"scheme": scheme, "backend": "loop", "labels": "stay", "local": NAR}
    yield "smofi adaptive", {"scheme": cl.SMoFi(adaptive=True), "backend": "loop"}
    spread = cl.Aligned(kappa=0.5, fade=0.9, weights="samples")
    yield "aligned spread", {"scheme": spread, "backend": "loop", "calibrate": 0.5}
    yield "aligned central", {"scheme": cl.Aligned(kappa=0.5, lam=0.5, rho=0.2, cycle=True), "backend": "loop"}
    yield "smofi fused clients", {"scheme": cl.SMoFi(fuse_clients=True), "backend": "loop"}
    yield "smofi dropout", {"scheme": "smofi", "backend": "loop", "model": tiny(dropout=True)}
    yield "fedavg fednag", {"scheme": "fedavg", "backend": "loop", "update": "fednag"}
    yield "a scheme from outside", {"scheme": median(), "backend": "loop"}
    small: dict[str, Any] = {"backend": "loop", "batch_size": 2, "accumulate": 3, "last_batch": "keep", "detail": True}
    yield "smofi accumulate joint", {"scheme": "smofi", "local": NAR, **small}
    yield "mergesfl accumulate", {"scheme": "mergesfl", **small}
    yield "sflv1 rates by step", {"scheme": "sflv1", "backend": "loop", "lr_schedule": cl.Warmup(2, 3), "detail": True}
    yield "smofi few", {"scheme": "smofi", "backend": "loop", "participation": 1}
    yield "psl few", {"scheme": "psl", "backend": "loop", "participation": 1}
    yield "mergesfl few", {"scheme": "mergesfl", "backend": "loop", "participation": 1}


def play(arguments: dict[str, Any], ranks: Any, rounds: int) -> tuple[cl.Run, list[cl.Round]]:
    """5 of 6 clients a round."""
    given = {"model": tiny(), "participation": 0.8, "protocol": "smofi", "batch_size": 4, **arguments}
    tests: Any = data(50, 40)
    if given["protocol"] == "cyclesl":
        tests = [data(50 + j, 9) for j in range(6)]
    run = cl.rounds(
        given.pop("model"),
        [data(j, 10 + 4 * j) for j in range(6)],
        test=tests,
        cut=1,
        rounds=rounds,
        local_epochs=1,
        seed=3,
        threads=1,
        ranks=ranks,
        **given,
    )
    return run, list(run)


def digest(run: cl.Run) -> str:
    kept = {owner: parcel.open() for owner, parcel in sorted(run.state.owned.items())}
    tensors = [*run.state.W, *(t for _, some in sorted(kept.items()) for _, t in sorted(some.items()))]
    return hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in tensors)).hexdigest()


def played(names: Sequence[str], ranks: str | None) -> dict[str, Any]:
    """Two rounds of each, in order: everything that lives on, and the record."""
    found: dict[str, Any] = {}
    for name, arguments in cases():
        if not names or name in names:
            run, history = play(arguments, ranks, 2)
            found[name] = {"digest": digest(run), "record": asdict(history[-1]) | {"seconds": 0.0}}
    return json.loads(json.dumps(found))


def weights(ranks: str | None) -> dict[str, list[float]]:
    """After one round of the schemes whose sums may be fast."""
    given = dict(cases())
    return {name: play(given[name], ranks, 1)[0].state.W.w.tolist() for name in SPREAD}


def main(file: str, *names: str) -> None:
    """As a rank: these in order, or fast ones."""
    fast = names == (FAST,)
    found = {"ordered": {} if fast else played(names, "ordered"), "fast": weights("fast") if fast else {}}
    if join("ordered").root:
        Path(file).write_text(json.dumps(found))
    leave()


class Broken(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Rows of which the sixth cannot be read."""

    def __init__(self, client: int, rows: int) -> None:
        self.rows, self.client = data(client, rows), client

    def __len__(self) -> int:
        return len(self.rows[1])

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        if self.client == 3 and row == 5:
            raise OSError("the disk is gone")
        return self.rows[0][row], int(self.rows[1][row])


def fails(file: str, scheme: str) -> None:
    """Train with a client whose data break in the first round; write down how that ended here."""
    _ended(file, [Broken(j, 12) for j in range(4)], scheme=scheme, backend="loop")


def stacks(file: str, scheme: str) -> None:
    """Train with stacks of another size at every rank, as GPUs of different memory choose them."""
    _ended(file, [data(j, 12) for j in range(4)], scheme=scheme, backend="stacked", stack=2 + join("ordered").rank)


def _ended(file: str, clients: Sequence[Any], **more: Any) -> None:
    given: dict[str, Any] = {"batch_size": 4, "local_epochs": 1, "rounds": 2}
    try:
        cl.train(tiny(), clients, data(9, 8), ranks="ordered", **given, **more)
        said = "nothing"
    except cl.CutlayerError as error:
        said = f"{type(error).__name__}: {error}"
    Path(f"{file}.{join('ordered').rank}").write_text(said)
    leave()
