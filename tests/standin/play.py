"""Run the cases on the stand-in device and on the CPU, in a process of its own. Arguments: the folder, and a file.

The file gets, for each case: the largest difference between the weights; what two more epochs, more clients and more
weights add to the host's waits, to its blocking copies and to the launches.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.standin import cases
from tests.standin.device import DEVICE, load

COUNTED = ("waits", "blocking_uploads", "launches")


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


def budgets(counters: Any) -> dict[str, Any]:
    """What grows with the weights and the clients, scheme by scheme and backend by backend."""
    found: dict[str, Any] = {}
    for name in cases.SCHEMES:
        for backend in ("loop", "stacked"):
            base: dict[str, Any] = {"scheme": name, "backend": backend, "sizes": (8,) * 3}
            few, many = counted(counters, base), counted(counters, {**base, "sizes": (8,) * 9})
            wide = counted(counters, {**base, "model": cases.network(width=20_000)})
            found[f"{name} {backend}"] = {"base": few, "more clients": many, "more weights": wide}
    return found


def main(folder: str, file: str) -> None:
    counters = load(Path(folder))
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {"cases": {}, "budgets": budgets(counters)}
    for name, arguments in cases.cases():
        once, more = counted(counters, arguments), counted(counters, longer(arguments))
        added = {what: more[what] - once[what] for what in COUNTED}
        found["cases"][name] = {"difference": difference(arguments), "added by more steps": added}
    Path(file).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # torch's threads for the device cannot be joined
