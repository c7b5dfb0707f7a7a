"""About how long an item takes on this machine: the multiply-accumulates of its runs, over those that this machine does
in a second when it trains a small network. A rough number: models differ in how well they use a core."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import torch
from torch.nn import functional

from cutlayer.core.randomness import OwnRandomness
from cutlayer.core.threads import one_thread
from cutlayer.models import example, resnet
from cutlayer.nn.macs import TRAINING, shape_of
from cutlayer.registry import MODELS
from cutlayer.reproduce.item import Item
from cutlayer.reproduce.runs import key
from cutlayer.reproduce.scales import scaled

SHAPES: dict[str, tuple[tuple[int, ...], int]] = {  # a row's shape and the classes of each task
    "digits": ((1, 8, 8), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "tiny_imagenet": ((3, 64, 64), 200),
    "femnist": ((1, 28, 28), 62),
    "celeba": ((3, 84, 84), 2),
    "shakespeare": ((80,), 80),
    "speech_commands": ((1, 32, 32), 35),
}
ROWS = {  # training rows as published, and the clients of natural partitions
    "digits": (1_433, 30),
    "cifar10": (50_000, 100),
    "cifar100": (50_000, 100),
    "tiny_imagenet": (100_000, 200),
    "femnist": (805_263, 3550),
    "celeba": (200_288, 9343),
    "shakespeare": (4_226_158, 1129),
    "speech_commands": (94_824, 200),
}


def samples(values: Mapping[str, Any]) -> float:
    """Return how many samples a run trains on, all clients and rounds together."""
    task, rows = str(values["task"]), values.get("train_rows")
    published, owners = ROWS[task]
    clients = values.get("clients") or owners
    each = (rows or published) / clients
    if values["partition"]["name"] == "natural":
        each = min(published / owners, values["partition"].get("max_size") or published)
    rate = values["participation"]
    selected = max(1, round(rate * clients)) if isinstance(rate, float) else rate
    if values.get("protocol") == "cyclesl":
        per_round = float(values["batch_size"])
    elif values.get("local_steps") is not None:
        per_round = float(values["local_steps"] * values["batch_size"])
    else:
        per_round = values.get("local_epochs", 5) * each
    return float(values["rounds"] * selected * per_round)


@cache
def _known() -> dict[str, int]:
    """Return the multiply-accumulates of the models here: counting those of all takes half a minute."""
    text = resources.files("cutlayer.reproduce").joinpath("macs.json").read_text("utf-8")
    found: dict[str, int] = json.loads(text)
    return found


def macs(model: Mapping[str, Any], task: str) -> int:
    """Return the multiply-accumulates of a model for one sample, forward."""
    name = " ".join([task, *(str(v) if k == "name" else f"{k}={v}" for k, v in sorted(model.items()))])
    return _known()[name] if name in _known() else count(model, task)


def count(model: Mapping[str, Any], task: str) -> int:
    """Count the multiply-accumulates of a model for one sample, forward."""
    shape, classes = SHAPES[task]
    parameters = {key: value for key, value in model.items() if key != "name"}
    with OwnRandomness():
        built = MODELS[model["name"]].build(parameters, {"shape": shape, "classes": classes})
        return sum(shape_of(built, example(built, shape)).macs)


def work(item: Item, scale: str, seeds: int) -> tuple[int, float]:
    """Return how many runs an item needs, and their multiply-accumulates."""
    runs = {key(values): values for values in (scaled(cell.values, scale) for cell in item.cells)}
    total = 0.0
    for values in runs.values():
        total += TRAINING * macs(values["model"], str(values["task"])) * samples(values)
    return seeds * len(runs), seeds * total


def speed(seconds: float = 0.3) -> float:
    """Return the multiply-accumulates that one core of this machine does in a second, training a small ResNet."""
    with one_thread(), OwnRandomness():
        model = resnet((3, 32, 32), 10)
        x, y = torch.rand(32, 3, 32, 32), torch.zeros(32, dtype=torch.int64)
        each = TRAINING * sum(shape_of(model, x[:2]).macs) * len(x)
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        begin, steps = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            steps += 1
        return each * steps / (time.perf_counter() - begin)
