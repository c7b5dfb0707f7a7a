"""Run the cases on the stand-in device and on the CPU, in a process of its own. Arguments: the folder, and a file.

The file gets a line for everything that is found, as soon as it is: what it is called, and its value. Of each case: the
largest difference between the weights; what two more epochs, more clients and more weights add to the host's waits, to
its blocking copies, to the copies that it asks for and to the launches.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cutlayer as cl
from cutlayer.cli.main import main as main_of_cutlayer
from tests.network.harness import network, play, rows
from tests.standin import cases
from tests.standin.device import DEVICE, load

RANKS = ("smofi", "mergesfl", "cyclesfl", "adaptive", "labels stay", "psl", "smofi cyclesl adam")
SERVED = ("smofi", "mergesfl", "cyclesfl", "sflv2", "sglr")
COUNTED = ("waits", "blocking_uploads", "downloads", "launches")


def counted(counters: Any, arguments: dict[str, Any]) -> dict[str, int]:
    """What a run on the device costs."""
    counters.reset()
    cases.train(DEVICE, arguments)
    found = counters.stats()
    return {name: found[name] for name in COUNTED}


def longer(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same with three times as many steps."""
    more: dict[str, Any] = {"local_epochs": 3}
    if "local_steps" in arguments:
        more["local_steps"] = 3 * arguments["local_steps"]
    return {**arguments, **more}


def difference(arguments: dict[str, Any]) -> float:
    """The largest difference between the weights of a run on the CPU and on the device."""
    ours, theirs = (cases.weights(cases.train(device, arguments)) for device in ("cpu", DEVICE))
    assert ours.keys() == theirs.keys()
    return max(float((w.double() - theirs[name].double()).abs().max()) for name, w in ours.items() if w.numel())


def budget(counters: Any, scheme: str, backend: str) -> dict[str, Any]:
    """What grows with the weights and the clients."""
    base: dict[str, Any] = {"scheme": scheme, "backend": backend, "sizes": (8,) * 3}
    few, many = counted(counters, base), counted(counters, {**base, "sizes": (8,) * 9})
    wide = counted(counters, {**base, "model": cases.network(width=20_000)})
    return {"base": few, "more clients": many, "more weights": wide}


def peaks(counters: Any) -> dict[str, list[float]]:
    """What runs are said to need, and the peak of what they used, in bytes: small and wide models, both backends."""
    found = {}
    schemes = ("fedavg", "smofi", "sflv2", "mergesfl", "psl", "cyclesfl", cl.Aligned(lam=0.5))
    for scheme, backend, optimizer in product(schemes, ("loop", "stacked"), ("sgd", "adam")):
        for width, batch in ((8, 16), (2000, 4)):
            data = [cases.pictures(32, j) for j in range(8)]
            told: dict[str, Any] = {"scheme": scheme, "backend": backend, "optimizer": optimizer, "batch_size": batch}
            told["data_on_device"] = "no"  # rows are not counted
            gc.collect()
            counters.reset()
            before = counters.stats()["allocated"]
            run = cl.rounds(cases.network(width), data, cut=0, rounds=2, local_epochs=1, device=DEVICE, **told)
            need = run.setup.need().total
            for _ in run:
                pass
            found[f"{scheme} {backend} {optimizer} {width}"] = [need, counters.stats()["peak"] - before]
            del run
    return found


def served(scheme: str) -> bool:
    """Whether a server on the device, with clients over a transport in memory, has the simulator's bits on the CPU."""
    told: dict[str, Any] = {"cut": 0, "rounds": 2, "batch_size": 4, "local_epochs": 1, "scheme": scheme}
    data, model = rows(), network()
    with tempfile.TemporaryDirectory() as out:
        played = play(Path(out), data, model=model, memory=True, device=DEVICE, **told).result.model.cpu()
    alone = cl.train(model, data, test=data[0], backend="loop", **told).model
    return same(played[1:], alone[1:])  # the server does not get fronts that clients keep


def stored() -> dict[str, bool]:
    """Data that are on the device already, for a run there and for one on the CPU; and a run that is resumed."""
    data = [cases.pictures(n, n) for n in (9, 13, 17)]
    told: dict[str, Any] = {"cut": 0, "batch_size": 4, "local_epochs": 1}
    alone = cl.train(cases.network(), data, data[0], rounds=2, **told).model
    there = [tuple(t.to(DEVICE) for t in pair) for pair in data]
    found = {
        f"data there, run on {device}": cl.train(
            cases.network(), there, there[0], rounds=2, device=device, **told
        ).model
        for device in (DEVICE, "cpu")
    }
    with tempfile.TemporaryDirectory() as out:
        begun = cl.rounds(cases.network(), data, data[0], rounds=2, device=DEVICE, out=out, **told)
        next(iter(begun))
        begun.close()
        found["resumed"] = cl.train(cases.network(), data, data[0], rounds=2, device=DEVICE, out=out, **told).model
    return {name: same(model.cpu(), alone) for name, model in found.items()}


def uploaded(counters: Any) -> dict[str, Any]:
    """Whether rows on the device, and rows that are sent step by step, give the same weights, and the bytes that were
    sent: rows of tensors, and of a data set that all clients share."""
    x, y = cases.pictures(40, 3)
    parts = cl.partition.iid(y.numpy(), clients=4)
    shared, told = parts.clients(x.numpy(), y.numpy()), {"cut": 0, "batch_size": 4, "local_epochs": 5, "rounds": 2}
    found: dict[str, Any] = {}
    for name, clients in (("tensors", [cases.pictures(9, j) for j in range(3)]), ("shared", shared)):
        alone, sent = cl.train(cases.network(), clients, **told).model, {}
        for where in ("yes", "no", "auto"):
            counters.reset()
            there = cl.train(cases.network(), clients, device=DEVICE, data_on_device=where, **told).model
            sent[where] = counters.stats()["bytes_up"]
            assert same(there.cpu(), alone), (name, where)
        found[name] = sent
    return found


def stacks() -> dict[str, Any]:
    """The sizes of stacks that fit into different amounts of free memory, and what a resumed run takes."""
    module, data = torch.get_device_module(DEVICE), [cases.pictures(8, j) for j in range(40)]
    before, found = module.mem_get_info, {}
    told: dict[str, Any] = {"cut": 0, "batch_size": 8, "local_epochs": 1, "rounds": 2, "device": DEVICE}

    def begin(free: int, **more: Any) -> cl.Run:
        module.mem_get_info = lambda device=None: (free, 2**30)
        return cl.rounds(cases.network(), data, **told, **more)

    for mib in (64, 4, 2, 1):
        run = begin(mib * 2**20)
        found[f"{mib} MiB"] = [run.setup.stack, run.setup.need().total]
    found["asked"] = begin(2**20, stack=16).setup.stack
    with tempfile.TemporaryDirectory() as out:
        begun = begin(4 * 2**20, out=out)
        next(iter(begun))
        begun.close()
        resumed = begin(2**20, out=out)
        found["begun and resumed"] = [begun.setup.stack, resumed.setup.stack]
        alone = begin(4 * 2**20)
        found["same bits"] = same(_last(resumed).cpu(), _last(alone).cpu())
    module.mem_get_info = before
    return found


def refused() -> list[str]:
    """What is said of threads, which a device does not use."""
    said = []
    for option in ("threads", "torch_threads"):
        try:
            cases.train(DEVICE, {option: 2})
        except cl.ContractError as error:
            said.append(str(error))
    return said


def benched() -> str:
    """What `cutlayer bench --device` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main_of_cutlayer(["bench", "--device", DEVICE, "--quick", "--models", "tiny-cnn", "mlp"]) == 0
    return said.getvalue()


def _last(run: cl.Run) -> nn.Module:
    for _ in run:
        pass
    return run.model


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(a.equal(b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def rank(folder: str, file: str) -> None:
    """One of several ranks: the differences of some cases from a run of one process on the CPU."""
    load(Path(folder))
    warnings.simplefilter("ignore")
    given, found = dict(cases.cases()), {}
    for name in RANKS:
        there = cases.weights(cases.train(DEVICE, {**given[name], "ranks": "ordered"}))
        if os.environ["RANK"] == "0":
            found[name] = {key: w.tolist() for key, w in there.items()}
    if found:
        Path(file).write_text(json.dumps(found))


def findings(counters: Any) -> Iterator[tuple[str, Any]]:
    """Everything that is found, in the order in which the tests ask for it."""
    for name, arguments in cases.cases():
        once, more = counted(counters, arguments), counted(counters, longer(arguments))
        added = {what: more[what] - once[what] for what in COUNTED}
        yield f"case {name}", {"difference": difference(arguments), "added by more steps": added}
    for scheme in SERVED:
        yield f"served {scheme}", served(scheme)
    yield "stored", stored()
    yield "uploaded", uploaded(counters)
    yield "stacks", stacks()
    yield "refused", refused()
    yield "bench", benched()
    yield "peaks", peaks(counters)
    for scheme, backend in product(cases.SCHEMES, ("loop", "stacked")):
        yield f"budget {scheme} {backend}", budget(counters, scheme, backend)


def go_on() -> None:
    """Tell the watchdog of the tests, if there is one, that this process does not stand still."""
    watchdog = sys.modules.get("cutlayer_watchdog")
    if watchdog is not None:
        watchdog.arm(float(os.environ[watchdog.VARIABLE]))


def main(folder: str, file: str) -> None:
    if "RANK" in os.environ:
        return rank(folder, file)
    counters = load(Path(folder))
    warnings.simplefilter("ignore")
    with Path(file).open("w") as out:
        for what, value in findings(counters):
            print(json.dumps([what, value]), file=out, flush=True)
            go_on()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # torch's threads for the device cannot be joined
