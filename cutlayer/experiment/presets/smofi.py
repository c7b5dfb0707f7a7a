"""The tasks of SMoFi (Yang et al., extended version): tables 1 to 5, figures 4 and 5, with the values tuned there.

Our choices where the paper is silent: cut 2 everywhere; the ImageNet stem with batch norm, crops and mirrors;
VGG with batch norm and one linear layer at its end; 300 rounds and the rate's decay of the other tasks for Shakespeare
and Speech; clip 10 for FedNAR. The fixed T of Speech, 15, is a fifth of the steps that five epochs are for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cutlayer.experiment.comparison import Comparison
from cutlayer.experiment.methods import Method
from cutlayer.experiment.presets.base import Preset

PAPER = "Yang et al. (SMoFi), 2026"


@dataclass(frozen=True)
class Tuned:
    """What the paper found best for each method on a task."""

    T: int  # steps of SlowMo, FedNAG and MergeSFL, which take a fixed number
    avgm: float
    slow: tuple[float, float]  # rate, momentum
    beta_g: float
    mu: float | None  # FedProx was not run everywhere
    alpha: float = -0.1


TUNED = {
    "cifar10": Tuned(75, 0.3, (0.5, 0.4), 0.3, 0.01),
    "cifar100": Tuned(75, 0.5, (1.0, 0.6), 0.5, 0.01),
    "tiny": Tuned(40, 0.5, (1.0, 0.6), 0.5, 0.1),
    "shakespeare": Tuned(115, 0.7, (1.0, 0.6), 0.5, None),
    "speech": Tuned(15, 0.5, (1.0, 0.6), 0.5, None),
}


def _task(
    task: str, model: str, clients: tuple[int, int], batch: int, rate: tuple[float, float], rounds: int, **more: Any
) -> dict[str, Any]:
    """Return the config of a task. `clients`: in all, and per round; `rate`: learning rate and weight decay."""
    (everybody, m), (lr, wd) = clients, rate
    return {
        "task": task,
        "model": {"name": model},
        "cut": 2,
        "clients": everybody,
        "participation": m,
        "batch_size": batch,
        "local_epochs": 5,
        "rounds": rounds,
        "optimizer": {"name": "sgd", "lr": lr, "momentum": 0.9, "weight_decay": wd, "decay": 0.998},
        "partition": {"name": "dirichlet", "gamma": 0.2},
        "profile": "lognormal",
        "augment": True,
        **more,
    }


ROLES = {"partition": {"name": "natural", "min_size": 800, "max_size": 10_000}, "augment": False}
TASKS = {
    "cifar10": _task("cifar10", "resnet18", (100, 20), 32, (0.05, 5e-4), 1000),
    "cifar100": _task("cifar100", "resnet18", (100, 20), 32, (0.05, 5e-4), 600),
    "tiny": _task("tiny_imagenet", "resnet34", (200, 40), 64, (0.05, 1e-3), 400),
    "shakespeare": _task("shakespeare", "transformer", (100, 20), 100, (0.01, 5e-4), 300, **ROLES),
    "speech": _task("speech_commands", "vgg11", (200, 20), 32, (0.01, 5e-4), 300, augment=False),
}


def _momentum(t: Tuned, name: str = "", local: Mapping[str, Any] | None = None) -> list[Method]:
    """Return a block of table 1: a baseline, alone and combined with other methods. Under Adam, FedNAG averages and
    hands on both moments."""
    base = {"scheme": "fedavg"} if local is None else {"scheme": "fedavg", "local": dict(local)}
    plus, also = (f"{name} + ", f"{name.lower()}+") if name else ("", "")
    slow = {"name": "slowmo", "lr": t.slow[0], "beta": t.slow[1]}
    fused = {"scheme": {"name": "smofi", "alpha": t.alpha}, "update": {"name": "fedavgm", "beta": t.beta_g}}
    methods = [
        Method(name or "FedAvg", base, name=name.lower() or "fedavg"),
        Method(f"{plus}FedAvgM", {**base, "update": {"name": "fedavgm", "beta": t.avgm}}, name=f"{also}fedavgm"),
        Method(f"{plus}SlowMo", {**base, "update": slow, "local_steps": t.T}, name=f"{also}slowmo"),
        Method(f"{plus}FedNAG", {**base, "update": "fednag", "local_steps": t.T}, name=f"{also}fednag"),
        Method(f"{plus}SMoFi + FedAvgM", {**base, **fused}, name=f"{also}smofi-full"),
    ]
    return [replace(m, baseline=name) for m in methods]


def _split(t: Tuned) -> list[Method]:
    """Return the split methods of table 2. The server's optimizer of SFLV2 is reset at each step, as the poster says
    and the paper does not; so SFLV2 is here with a reset at each round too."""
    return [
        Method("SFLV1 (step)", {"scheme": {"name": "sflv1", "every": "step"}}, name="sflv1-step"),
        Method("SFLV1 (epoch)", {"scheme": {"name": "sflv1", "every": "epoch"}}, name="sflv1"),
        Method("SFLV2", {"scheme": "sflv2"}, name="sflv2"),
        Method("SFLV2 (reset each round)", {"scheme": {"name": "sflv2", "reset": "round"}}, name="sflv2-round"),
        Method("MergeSFL", {"scheme": "mergesfl", "local_steps": t.T}, name="mergesfl"),
    ]


def _full(name: str) -> list[Method]:
    t = TUNED[name]
    prox = _momentum(t, "FedProx", {"name": "fedprox", "mu": t.mu}) if t.mu is not None else []
    nar = _momentum(t, "FedNAR", {"name": "fednar", "max_norm": 10.0}) if t.mu is not None else []
    return [*_momentum(t), *prox, *nar, *_split(t)]


def _preset(line: str, task: str, methods: list[Method], **changes: Any) -> Preset:
    return Preset(line, PAPER, Comparison({**TASKS[task], **changes}, methods, [0, 1, 2]), "SMoFi + FedAvgM")


WORDS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny": "Tiny-ImageNet"}
WORDS |= {"shakespeare": "Shakespeare", "speech": "Speech Commands"}
PARTITIONS = {"iid": {"name": "iid"}, "dir0.5": {"name": "dirichlet", "gamma": 0.5}}
PLAIN = {"lr": 1e-3, "weight_decay": 0.0, "decay": 1.0}  # the paper states a decay of the rate for SGD alone
OPTIMIZERS = {
    "nag": {"name": "nag", "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "decay": 0.998},
    "adam": {"name": "adam", **PLAIN},
    "adamw": {"name": "adamw", **PLAIN},
}
MODELS = {  # figure 5: learning rate, weight decay
    "vgg11": (0.01, 5e-4),
    "vgg16": (0.01, 5e-4),
    "mobilenetv2": (0.01, 5e-4),
    "resnet18": (0.05, 5e-4),
    "resnet34": (0.05, 1e-3),
    "densenet121": (0.05, 1e-3),
    "densenet169": (0.05, 1e-3),
}
FIG4 = Tuned(75, 0.5, (1.0, 0.6), 0.5, None)


def _presets() -> dict[str, Preset]:
    found = {}
    for task, words in WORDS.items():
        where = "tables 1 and 2" if task in ("cifar10", "cifar100", "tiny") else "table 5"
        found[f"smofi-{task}"] = _preset(f"{words}, {where}", task, _full(task))
    for task in ("cifar10", "cifar100", "tiny"):
        for name, partition in PARTITIONS.items():
            line = f"{WORDS[task]}, {name}, table 3"
            found[f"smofi-{task}-{name}"] = _preset(line, task, _momentum(TUNED[task]), partition=partition)
    for m in (10, 20, 30):
        line = f"Tiny-ImageNet, {m} of 200 clients a round, table 4"
        found[f"smofi-tiny-{m}"] = _preset(line, "tiny", _momentum(TUNED["tiny"]), participation=m)
    for name, optimizer in OPTIMIZERS.items():
        found[f"smofi-cifar100-{name}"] = _preset(
            f"CIFAR-100 under {name.upper()}, figure 4", "cifar100", _momentum(FIG4), optimizer=optimizer
        )
    for model, (lr, wd) in MODELS.items():
        optimizer = {**TASKS["tiny"]["optimizer"], "lr": lr, "weight_decay": wd}
        found[f"smofi-tiny-{model}"] = _preset(
            f"Tiny-ImageNet with {model}, 150 rounds, figure 5",
            "tiny",
            _momentum(TUNED["tiny"]),
            model={"name": model},
            optimizer=optimizer,
            rounds=150,
        )
    return found


PRESETS = _presets()
