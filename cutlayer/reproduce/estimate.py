"""About how long an item takes on this machine: a step costs its multiply-accumulates and a fixed time for each layer.
Both rates are measured on a small network. A rough number: models differ in how well they use a core."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from cutlayer.core.randomness import OwnRandomness
from cutlayer.core.threads import torch_threads
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
ROWS = {  # training and test rows as published, and the clients of natural partitions
    "digits": (1_433, 364, 30),
    "cifar10": (50_000, 10_000, 100),
    "cifar100": (50_000, 10_000, 100),
    "tiny_imagenet": (100_000, 10_000, 200),
    "femnist": (805_263, 80_000, 3550),
    "celeba": (200_288, 20_000, 9343),
    "shakespeare": (4_226_158, 400_000, 1129),
    "speech_commands": (94_824, 11_005, 200),
}


class Work(NamedTuple):
    """What a run does: training steps of all clients, the samples trained on, and the samples evaluated."""

    steps: float
    samples: float
    evaluated: float


class Machine(NamedTuple):
    """One core of this machine: its multiply-accumulates in a second, and the seconds that a layer takes in a training
    step however small it is."""

    rate: float
    layer: float


class Size(NamedTuple):
    """A model's multiply-accumulates for one sample, forward, and its layers."""

    macs: int
    layers: int


def work(values: Mapping[str, Any]) -> Work:
    """Return what a run of these values does."""
    task, rows = str(values["task"]), values.get("train_rows")
    published, test, owners = ROWS[task]
    clients = values.get("clients") or owners
    each = (rows or published) / clients
    if values["partition"]["name"] == "natural":
        each = min(published / owners, values["partition"].get("max_size") or published)
        test = round(test * each * clients / published)
    rate, batch, rounds = values["participation"], values["batch_size"], values["rounds"]
    selected = max(1, round(rate * clients)) if isinstance(rate, float) else rate
    if values.get("protocol") == "cyclesl":
        steps, samples = 1, float(batch)
    elif values.get("local_steps") is not None:
        steps, samples = values["local_steps"], float(values["local_steps"] * batch)
    else:
        epochs = values.get("local_epochs", 5)
        steps, samples = epochs * max(1, round(each / batch)), epochs * each
    evaluations = rounds // values.get("evaluate_every", 1)
    return Work(rounds * selected * steps, rounds * selected * samples, evaluations * test)


@cache
def _known() -> dict[str, list[int]]:
    """Return the sizes of the models here: counting those of all takes half a minute."""
    text = resources.files("cutlayer.reproduce").joinpath("sizes.json").read_text("utf-8")
    found: dict[str, list[int]] = json.loads(text)
    return found


def name_of(model: Mapping[str, Any], task: str) -> str:
    """Return a model's name in the file of sizes."""
    return " ".join([task, *(str(v) if k == "name" else f"{k}={v}" for k, v in sorted(model.items()))])


def size(model: Mapping[str, Any], task: str) -> Size:
    """Return the size of a task's model."""
    name = name_of(model, task)
    return Size(*_known()[name]) if name in _known() else count(model, task)


def count(model: Mapping[str, Any], task: str) -> Size:
    """Count the size of a task's model."""
    shape, classes = SHAPES[task]
    parameters = {key: value for key, value in model.items() if key != "name"}
    with OwnRandomness():
        built = MODELS[model["name"]].build(parameters, {"shape": shape, "classes": classes})
        return _size(built, example(built, shape))


def _size(model: nn.Module, x: Any) -> Size:
    return Size(sum(shape_of(model, x).macs), sum(not list(one.children()) for one in model.modules()))


def seconds(values: Mapping[str, Any], machine: Machine) -> float:
    """Return about how long a run of these values takes on one core."""
    done, model = work(values), size(values["model"], str(values["task"]))
    macs = model.macs * (TRAINING * done.samples + done.evaluated)
    return macs / machine.rate + done.steps * model.layers * machine.layer


def of_item(item: Item, scale: str, seeds: int, machine: Machine) -> tuple[int, float]:
    """Return how many runs an item needs at a scale, and about how long they take on one core."""
    runs = {key(values): values for values in (scaled(cell.values, scale) for cell in item.cells)}
    return seeds * len(runs), seeds * sum(seconds(values, machine) for values in runs.values())


def this_machine(length: float = 0.3) -> Machine:
    """Measure one core of this machine for `length` seconds, on a small ResNet with large and small batches."""
    rows = 32
    with torch_threads(), OwnRandomness():
        model = resnet((3, 32, 32), 10)
        x, y = torch.rand(rows, 3, 32, 32), torch.zeros(rows, dtype=torch.int64)
        macs, layers = _size(model, x[:2])
        large, small = (_step(model, x[:n], y[:n], length / 2) for n in (rows, 2))
    each = max(large - small, large / rows) / (rows - 2)
    return Machine(TRAINING * macs / each, max(0.0, small - 2 * each) / layers)


def _step(model: nn.Module, x: torch.Tensor, y: torch.Tensor, length: float) -> float:
    """Return the seconds of a training step, the mean over at least `length` seconds."""
    functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    begin, steps, passed = time.perf_counter(), 0, 0.0
    while passed < length:
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        steps, passed = steps + 1, time.perf_counter() - begin
    return passed / steps
