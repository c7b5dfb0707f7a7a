"""Find out about the stand-in device, in a process of its own. Argument: the folder with the device.

Each line of standard input names a finding; the answer is a line of JSON with its value, and what went wrong if it has
none.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cutlayer as cl
from cutlayer.cli.main import main as main_of_cutlayer
from tests.standin import cases, runs
from tests.standin.device import DEVICE, load

COUNTED = ("waits", "blocking_uploads", "downloads", "launches")


def counted(counters: Any, arguments: dict[str, Any]) -> dict[str, int]:
    """What a run on the device costs."""
    counters.reset()
    cases.train(DEVICE, arguments)
    found = counters.stats()
    return {name: found[name] for name in COUNTED}


def case(count: runs.Count, arguments: dict[str, Any]) -> dict[str, Any]:
    """How far a run is from the CPU's, and what more steps cost."""
    return {"difference": runs.difference(DEVICE, arguments), "added by more steps": runs.added(count, arguments)}


def uploaded(counters: Any) -> dict[str, Any]:
    """The bytes that are sent where rows are on the device, and where they are sent step by step, and how far the
    weights are from the CPU's."""
    found: dict[str, Any] = {}
    for name, clients in runs.placed().items():
        alone = runs.near("cpu", clients, "auto")
        for where in runs.PLACES:
            counters.reset()
            there = runs.near(DEVICE, clients, where)
            found[f"{name} {where}"] = [counters.stats()["bytes_up"], runs.distance(there, alone)]
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
        found["difference"] = runs.distance(_last(resumed), _last(alone))
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


def findings(counters: Any) -> dict[str, Callable[[], Any]]:
    """All that can be found."""
    count = functools.partial(counted, counters)
    both = product(cases.SCHEMES, ("loop", "stacked"))
    return {
        **{f"case {name}": functools.partial(case, count, arguments) for name, arguments in cases.cases()},
        **{f"served {scheme}": functools.partial(runs.served, DEVICE, scheme) for scheme in runs.SERVED},
        "joined": functools.partial(runs.served, DEVICE, "smofi", DEVICE),
        "joined a server on the CPU": functools.partial(runs.served, "cpu", "cyclesfl", DEVICE),
        "stored": functools.partial(runs.stored, DEVICE),
        "detailed": functools.partial(runs.detailed, DEVICE),
        "uploaded": functools.partial(uploaded, counters),
        "stacks": stacks,
        "refused": refused,
        "bench": benched,
        **{f"peaks {scheme}": functools.partial(runs.peaks, DEVICE, scheme) for scheme in runs.MEASURED},
        **{f"limited {width}": functools.partial(runs.limited, DEVICE, width, batch) for width, batch in runs.SIZES},
        "testing": functools.partial(runs.testing, count),
        **{f"budget {scheme} {how}": functools.partial(runs.budget, count, scheme, how) for scheme, how in both},
    }


def answer(find: Callable[[], Any]) -> list[Any]:
    """The value of a finding, and what went wrong. The watchdog of the tests, if there is one, looks on meanwhile."""
    watchdog = sys.modules.get("cutlayer_watchdog")
    if watchdog is not None:
        watchdog.arm(float(os.environ[watchdog.VARIABLE]))
    try:
        return [find(), ""]
    except Exception:
        return [None, traceback.format_exc()]
    finally:
        if watchdog is not None:
            watchdog.rest()


def main(folder: str) -> None:
    counters = load(Path(folder))
    warnings.simplefilter("ignore")
    known, answers = findings(counters), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what runs print is not an answer
    for line in sys.stdin:
        print(json.dumps(answer(known[line.strip()])), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # torch's threads for the device cannot be joined
