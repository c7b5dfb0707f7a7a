"""About how long an item takes on this machine: a step costs its multiply-accumulates, the numbers that are written and
drawn for them, and a fixed time for each layer. The rates are measured here, on a small network. A rough number: models
differ in how well they use a core."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from cutlayer.core.randomness import OwnRandomness
from cutlayer.core.threads import torch_threads
from cutlayer.models import resnet
from cutlayer.nn.macs import TRAINING
from cutlayer.reproduce.item import Item
from cutlayer.reproduce.runs import key
from cutlayer.reproduce.scales import scaled
from cutlayer.reproduce.sizes import counted, size

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
    """One core of this machine: its multiply-accumulates in a second; and the seconds that a layer takes in a training
    step however small it is, that writing a number takes, and that drawing one takes."""

    rate: float
    layer: float
    number: float
    draw: float


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


def seconds(values: Mapping[str, Any], machine: Machine) -> float:
    """Return about how long a run of these values takes on one core."""
    done, model = work(values), size(values["model"], str(values["task"]))
    passes = done.samples + done.evaluated / TRAINING  # a forward pass is a third of a step
    each = TRAINING * model.macs / machine.rate + model.numbers * machine.number
    return passes * each + done.samples * model.draws * machine.draw + done.steps * model.layers * machine.layer


def of_item(item: Item, scale: str, seeds: int, machine: Machine) -> tuple[int, float]:
    """Return how many runs an item needs at a scale, and about how long they take on one core."""
    runs = {key(values): values for values in (scaled(cell.values, scale) for cell in item.cells)}
    return seeds * len(runs), seeds * sum(seconds(values, machine) for values in runs.values())


def this_machine(length: float = 0.3) -> Machine:
    """Measure one core of this machine for `length` seconds, most of it on a small ResNet with large and small
    batches."""
    rows = 32
    with torch_threads(), OwnRandomness():
        model = resnet((3, 32, 32), 10)
        x, y = torch.rand(rows, 3, 32, 32), torch.zeros(rows, dtype=torch.int64)
        macs, layers, numbers, _ = counted(model, x[:2])
        a, b = torch.rand(2, 2**18), torch.empty(2**16)
        number = _timed(lambda: torch.mul(a[0], a[1]), length / 10) / a[0].numel()
        draw = _timed(lambda: b.bernoulli_(0.5), length / 10) / b.numel()
        large, small = (_timed(lambda n=n: _step(model, x[:n], y[:n]), 0.4 * length) for n in (rows, 2))  # type: ignore[misc]
    each = max(large - small, large / rows) / (rows - 2)
    multiplying = max(each - numbers * number, each / 4)
    return Machine(TRAINING * macs / multiplying, max(0.0, small - 2 * each) / layers, number, draw)


def _step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]


def _timed(call: Callable[[], object], length: float) -> float:
    """Return the seconds of a call, the mean over at least `length` seconds; the first is not counted."""
    call()
    begin, calls, passed = time.perf_counter(), 0, 0.0
    while passed < length:
        call()
        calls, passed = calls + 1, time.perf_counter() - begin
    return passed / calls
