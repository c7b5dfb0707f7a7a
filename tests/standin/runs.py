"""Runs of every kind on a device, whichever it is: how far they are from the CPU's, and what they cost."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cutlayer as cl
from tests.network.harness import network, play, rows
from tests.standin import cases

SERVED = ("smofi", "mergesfl", "cyclesfl", "sflv2", "sglr")
PLACES = ("yes", "no", "auto")  # of rows: on the device, sent step by step
MIB = 2**20
MEASURED = ("fedavg", "smofi", "sflv2", "mergesfl", "psl", "cyclesfl", "aligned")  # schemes whose memory is measured
SIZES = ((8, 16), (2000, 4))  # widths of a model, and its batch sizes
Count = Callable[[dict[str, Any]], dict[str, int]]
"""Plays a run on the device, and returns what it cost, by name."""


def precise() -> None:
    """Let a GPU compute products in the precision of the numbers."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def longer(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same with three times as many steps."""
    more: dict[str, Any] = {"local_epochs": 3}
    if "local_steps" in arguments:
        more["local_steps"] = 3 * arguments["local_steps"]
    return {**arguments, **more}


def added(count: Count, arguments: dict[str, Any]) -> dict[str, int]:
    """What more steps add to the costs of a run."""
    once, more = count(arguments), count(longer(arguments))
    return {what: more[what] - once[what] for what in once}


def difference(device: str, arguments: dict[str, Any]) -> float:
    """The largest difference between the weights of a run on the CPU and on the device."""
    ours, theirs = (cases.weights(cases.train(where, arguments)) for where in ("cpu", device))
    assert ours.keys() == theirs.keys()
    return max(float((w.double() - theirs[name].double()).abs().max()) for name, w in ours.items() if w.numel())


def distance(one: nn.Module, other: nn.Module) -> float:
    """The largest difference between two models."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a.cpu().double() - b.cpu().double()).abs().max()) for a, b in pairs)


def served(device: str, scheme: str, joins_on: str = "cpu") -> float:
    """How far a server on the device is from the simulator on the CPU; its clients dial it over a transport in memory,
    and compute on `joins_on`."""
    told: dict[str, Any] = {"cut": 0, "rounds": 2, "batch_size": 4, "local_epochs": 1, "scheme": scheme}
    data, model = rows(), network()
    with tempfile.TemporaryDirectory() as out:
        played = play(Path(out), data, model=model, memory=True, device=device, joins_on=joins_on, **told)
    alone = cl.train(model, data, test=data[0], backend="loop", **told).model
    assert isinstance(played.result.model, nn.Sequential) and isinstance(alone, nn.Sequential)
    return distance(played.result.model[1:], alone[1:])  # the server does not get fronts that clients keep


def stored(device: str) -> dict[str, float]:
    """How far runs are from the CPU's: where data are on the device already, for a run there and for one on the CPU;
    where a run is resumed."""
    data = [cases.pictures(n, n) for n in (9, 13, 17)]
    told: dict[str, Any] = {"cut": 0, "batch_size": 4, "local_epochs": 1}
    alone = cl.train(cases.network(), data, data[0], rounds=2, **told).model
    there = [tuple(t.to(device) for t in pair) for pair in data]
    found = {
        f"data there, run on {where}": cl.train(cases.network(), there, there[0], rounds=2, device=where, **told).model
        for where in (device, "cpu")
    }
    with tempfile.TemporaryDirectory() as out:
        begun = cl.rounds(cases.network(), data, data[0], rounds=2, device=device, out=out, **told)
        next(iter(begun))
        begun.close()
        found["resumed"] = cl.train(cases.network(), data, data[0], rounds=2, device=device, out=out, **told).model
    return {name: distance(model, alone) for name, model in found.items()}


def placed() -> dict[str, Sequence[Any]]:
    """Clients with tensors, and clients that share a data set."""
    x, y = cases.pictures(40, 3)
    shared = cl.partition.iid(y.numpy(), clients=4).clients(x.numpy(), y.numpy())
    return {"tensors": [cases.pictures(9, j) for j in range(3)], "shared": shared}


def near(device: str, clients: Sequence[Any], where: str) -> nn.Module:
    """The model of a run whose rows are on the device, or sent there step by step."""
    told: dict[str, Any] = {"cut": 0, "batch_size": 4, "local_epochs": 5, "rounds": 2, "data_on_device": where}
    return cl.train(cases.network(), clients, device=device, **told).model


def detailed(device: str) -> float:
    """The largest difference between the columns of `detail` on the CPU and on the device."""
    told: dict[str, Any] = {"scheme": "smofi", "detail": True}
    ours, theirs = (
        [value for round in cases.train(where, told).history for column in _columns(round) for value in column]
        for where in ("cpu", device)
    )
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def _columns(round: cl.Round) -> Iterator[list[float]]:
    assert round.detail is not None
    for name in ("loss", "drift_client", "drift_server", "cosine"):
        yield [float(value) for value in round.detail[name]]


def budget(count: Count, scheme: str, backend: str) -> dict[str, Any]:
    """What grows with the weights, the clients and the rounds."""
    base: dict[str, Any] = {"scheme": scheme, "backend": backend, "sizes": (8,) * 3}
    more = {
        "base": {},
        "more clients": {"sizes": (8,) * 9},
        "more weights": {"model": cases.network(width=20_000)},
        "more rounds": {"rounds": 3},
    }
    return {name: count({**base, **changed}) for name, changed in more.items()}


def testing(count: Count) -> dict[str, list[int]]:
    """The waits of two rounds with test sets of more and more batches; and with more and more clients, each of whom has
    a test set."""
    base: dict[str, Any] = {"scheme": "smofi", "sizes": (8,) * 4}
    sizes = (512, 2048, 2049, 4096, 4097)
    each: dict[str, Any] = {"scheme": "cyclesfl", "protocol": "cyclesl"}
    return {
        "batches": [count({**base, "tested": tested})["waits"] for tested in sizes],
        "clients": [count({**each, "sizes": (8,) * n})["waits"] for n in (4, 8, 12)],
    }


def peaks(device: str, name: str, sizes: Sequence[tuple[int, int]] = SIZES) -> dict[str, list[float]]:
    """What runs of a scheme are said to need, and the peak of what they used, in bytes: small and wide models, both
    backends, two optimizers."""
    found, scheme = {}, cl.Aligned(lam=0.5) if name == "aligned" else name
    for backend, optimizer, (width, batch) in product(("loop", "stacked"), ("sgd", "adam"), sizes):
        told: dict[str, Any] = {"scheme": scheme, "backend": backend, "optimizer": optimizer, "batch_size": batch}
        found[f"{backend} {optimizer} {width}"] = list(peak(device, width, **told))
    return found


def limited(device: str, width: int, batch: int) -> dict[str, list[float]]:
    """The limits of runs that test, and the peak of what they used, in bytes. A limit is about what looped clients need
    without testing; where clients may train in groups, it is less."""
    found = {}
    for scheme, backend in product(("fedavg", "smofi", "mergesfl", "psl", "cyclesfl"), ("loop", "stacked")):
        told: dict[str, Any] = {"scheme": scheme, "batch_size": batch}
        if scheme != "psl":  # clients that keep their fronts have test rows each
            told["test"] = cases.pictures(700, 9)
        least, _ = peak(device, width, **{**told, "test": None, "backend": "loop"})
        limit = least * (0.9 if scheme in ("fedavg", "psl") else 1.05)
        _, used = peak(device, width, **told, backend=backend, memory_limit=limit / MIB)
        found[f"{scheme} {backend}"] = [limit, used]
    return found


def peak(device: str, width: int, **told: Any) -> tuple[float, int]:
    """What a run is said to need, and the peak of what it used. Rows are not counted: they stay where they are."""
    module, data = torch.get_device_module(device), [cases.pictures(32, j) for j in range(8)]
    gc.collect()
    module.reset_peak_memory_stats()
    before = module.memory_allocated()
    given = {"cut": 0, "rounds": 2, "local_epochs": 1, "data_on_device": "no", **told}
    run = cl.rounds(cases.network(width), data, device=device, **given)
    need = run.setup.need().total
    for _ in run:
        pass
    return need, module.max_memory_allocated() - before
