"""Every preset is a training: the papers' values, and one step of one round on rows of the right kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutlayer.core import toml
from cutlayer.data.dataset import Dataset
from cutlayer.data.rows import StoredRows, none_of
from cutlayer.data.tasks import SOURCES
from cutlayer.errors import ContractError
from cutlayer.experiment import config as text
from cutlayer.experiment import experiment
from cutlayer.experiment.config import Config
from cutlayer.experiment.presets import PRESETS, preset

SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {
    "digits": ((1, 8, 8), np.float32),
    "cifar10": ((3, 32, 32), np.uint8),
    "cifar100": ((3, 32, 32), np.uint8),
    "tiny_imagenet": ((3, 64, 64), np.uint8),
    "femnist": ((1, 28, 28), np.uint8),
    "celeba": ((3, 84, 84), np.uint8),
    "shakespeare": ((80,), np.uint8),
    "speech_commands": ((1, 32, 32), np.float32),
}
OWNED = ("femnist", "celeba", "shakespeare")


def made_up(task: str) -> Dataset:
    """Rows of a task's kind: three owners where it has owners, test rows where it has them."""
    shape, kind = SHAPES[task]
    n = 2400 if task == "shakespeare" else 120
    rng = np.random.default_rng(0)
    high = 80 if task == "shakespeare" else 256
    x = rng.integers(0, high, (n, *shape)).astype(kind)
    y = np.arange(n) % (SOURCES[task].classes)
    owners = np.arange(n) % 3 if task in OWNED else None
    rows = StoredRows(x, y, owners, ("a", "b", "c") if owners is not None else ())
    test = none_of(rows) if task in OWNED else StoredRows(x[:4], y[:4])
    about = SOURCES[task]
    return Dataset(rows, test, about.classes, about.plain, about.changed or about.plain, about.gap)


def small(config: Config) -> Config:
    """The same with a handful of clients, one step of two samples, and narrower layers (`tests/models/test_papers.py`
    holds the models as the papers have them)."""
    values = {k: v for k, v in config.model_dump().items() if v is not None}
    more: dict[str, Any] = {"rounds": 1, "participation": 2, "local_steps": 1, "batch_size": 2}
    more["model"] = config.model | {k: v // 4 for k, v in config.model.items() if k in ("width", "growth") and v >= 32}
    if config.partition["name"] == "natural":
        more |= {"clients": None, "partition": {**config.partition, "min_size": min(config.partition["min_size"], 35)}}
        if config.task == "shakespeare":
            more["partition"]["min_size"] = 791
    else:
        more |= {"clients": 3, "partition": {"name": "iid"}}
    return text.parse({**values, **more})


def trained() -> dict[str, list[str]]:
    """The presets by what is left of them when they are made small: some differ in their clients alone."""
    found: dict[str, list[str]] = {}
    for name in PRESETS:
        chosen = preset(name)
        found.setdefault(text.dump(small(chosen.comparison.config(chosen.method(None), 0))), []).append(name)
    return found


@pytest.mark.parametrize("config", [pytest.param(config, id="|".join(names)) for config, names in trained().items()])
def test_a_preset_trains_a_step(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = text.parse(toml.loads(config))
    monkeypatch.setattr(experiment, "load_data", lambda config: made_up(config.task))
    record = next(experiment.assemble(config))
    assert record.participants == 2 and record.steps == 2
    assert record.loss is not None and np.isfinite(record.loss)
    assert record.sim_seconds is not None and record.sim_seconds > 0


@pytest.mark.parametrize("name", PRESETS)
def test_every_method_of_a_preset_is_a_config(name: str) -> None:
    comparison = preset(name).comparison
    configs = [comparison.config(m, seed) for m, seed in comparison.runs()]
    assert len({text.dump(config) for config in configs}) == len(configs)


def of(name: str, label: str | None = None) -> Config:
    chosen = preset(name)
    return chosen.comparison.config(chosen.method(label), 0)


@pytest.mark.parametrize(
    ("name", "clients", "m", "model", "batch", "lr", "wd", "rounds", "beta"),
    [
        ("smofi-cifar10", 100, 20, "resnet18", 32, 0.05, 5e-4, 1000, 0.3),
        ("smofi-cifar100", 100, 20, "resnet18", 32, 0.05, 5e-4, 600, 0.5),
        ("smofi-tiny", 200, 40, "resnet34", 64, 0.05, 1e-3, 400, 0.5),
        ("smofi-shakespeare", 100, 20, "transformer", 100, 0.01, 5e-4, 300, 0.5),
        ("smofi-speech", 200, 20, "vgg11", 32, 0.01, 5e-4, 300, 0.5),
    ],
)
def test_the_table_of_smofi(
    name: str, clients: int, m: int, model: str, batch: int, lr: float, wd: float, rounds: int, beta: float
) -> None:
    c = of(name)
    assert (c.clients, c.participation, c.model["name"], c.batch_size, c.rounds) == (clients, m, model, batch, rounds)
    assert (c.optimizer["lr"], c.optimizer["weight_decay"], c.optimizer["momentum"]) == (lr, wd, 0.9)
    assert (c.optimizer["decay"], c.local_epochs, c.cut) == (0.998, 5, 2)
    assert c.scheme["name"] == "smofi" and c.scheme["alpha"] == -0.1
    assert c.update == {"name": "fedavgm", "beta": beta}


def test_the_tuned_values_of_each_method() -> None:
    ten, hundred, tiny = ("smofi-cifar10", "smofi-cifar100", "smofi-tiny")
    assert [of(p, "FedAvgM").update["beta"] for p in (ten, hundred, tiny)] == [0.3, 0.5, 0.5]
    assert of("smofi-shakespeare", "FedAvgM").update["beta"] == 0.7
    slow = [of(p, "SlowMo").update for p in (ten, hundred, tiny)]
    assert [(u["lr"], u["beta"]) for u in slow] == [(0.5, 0.4), (1.0, 0.6), (1.0, 0.6)]
    assert [of(p, "FedProx").local["mu"] for p in (ten, hundred, tiny)] == [0.01, 0.01, 0.1]
    fixed = ("SlowMo", "FedNAG", "MergeSFL")
    tasks = {ten: 75, hundred: 75, tiny: 40, "smofi-shakespeare": 115, "smofi-speech": 15}
    for name, T in tasks.items():
        assert [of(name, label).local_steps for label in fixed] == [T] * 3
        assert of(name, "FedAvg").local_steps is None
    both = of(hundred, "FedNAR + SMoFi + FedAvgM")
    assert (both.local["name"], both.scheme["name"], both.update["beta"]) == ("fednar", "smofi", 0.5)


@pytest.mark.parametrize(
    ("name", "batch", "lr", "rounds", "cut"),
    [
        ("cyclesl-femnist", 32, 3e-4, 600, 1),
        ("cyclesl-celeba", 16, 1e-2, 600, 1),
        ("cyclesl-shakespeare", 32, 3e-2, 600, 1),
        ("cyclesl-cifar100-0.1", 64, 1e-4, 1000, 2),
    ],
)
def test_the_table_of_cyclesl(name: str, batch: int, lr: float, rounds: int, cut: int) -> None:
    c = of(name)
    assert (c.batch_size, c.optimizer["name"], c.optimizer["lr"], c.rounds, c.cut) == (batch, "adam", lr, rounds, cut)
    assert (c.protocol, c.participation, c.last_batch) == ("cyclesl", 0.05, "keep")
    assert len(preset(name).comparison.methods) == 8 and len(preset(name).comparison.seeds) == 5


def test_unknown_names_are_told_the_nearest() -> None:
    with pytest.raises(ContractError, match="did you mean 'smofi-cifar10'"):
        preset("smofi-cifar-10")
    with pytest.raises(ContractError, match="did you mean 'SFLV2'"):
        preset("demo").method("sflv3")
    with pytest.raises(ContractError, match="unknown method of this preset 'SMoFi'"):
        preset("demo").method("SMoFi")  # fusion alone, which the demo has not
