"""The tasks of CycleSL: its tables 3 and 4, with the values of its table 8. Its "cut c" is cut c - 1 here.

A client takes part if it has a full batch to train on; since a tenth of its rows is held out, it needs a few rows more
than a batch. Incomplete batches are kept, as in the authors' code.
"""

from __future__ import annotations

from typing import Any

from cutlayer.experiment.comparison import Comparison
from cutlayer.experiment.methods import LABELS, Method
from cutlayer.experiment.presets.base import Preset

PAPER = "CycleSL, 2025"
SCHEMES = ("psl", "sglr", "sflv1", "sflv2", "fedavg", "cyclepsl", "cyclesglr", "cyclesfl")


def _preset(line: str, task: str, model: str, cut: int, batch: int, lr: float, rounds: int, **more: Any) -> Preset:
    base = {
        "task": task,
        "model": {"name": model},
        "cut": cut,
        "protocol": "cyclesl",
        "participation": 0.05,
        "batch_size": batch,
        "last_batch": "keep",
        "rounds": rounds,
        "evaluate_every": 20,  # all clients; those of a round are tested in every round
        "optimizer": {"name": "adam", "lr": lr},
        **more,
    }
    methods = [Method(LABELS[name], {"scheme": name}, name=name) for name in SCHEMES]
    return Preset(line, PAPER, Comparison(base, methods, [0, 1, 2, 3, 4]), "CycleSFL")


def _by(min_size: int) -> dict[str, Any]:
    return {"partition": {"name": "natural", "min_size": min_size}}


CIFAR: dict[str, dict[str, Any]] = {"iid": {"name": "iid"}} | {
    alpha: {"name": "dirichlet", "gamma": float(alpha)} for alpha in ("1.0", "0.5", "0.1")
}
PRESETS: dict[str, Preset] = {
    "cyclesl-femnist": _preset("FEMNIST by writer", "femnist", "leaf_cnn", 1, 32, 3e-4, 600, **_by(35)),
    "cyclesl-celeba": _preset("CelebA by celebrity", "celeba", "celeba_cnn", 1, 16, 1e-2, 600, **_by(17)),
    "cyclesl-shakespeare": _preset("Shakespeare by role", "shakespeare", "leaf_lstm", 1, 32, 3e-2, 600, **_by(791)),
    **{
        f"cyclesl-cifar100-{name}": _preset(
            f"CIFAR-100, 100 clients, {name if name == 'iid' else f'Dirichlet {name}'}",
            "cifar100",
            "resnet9",
            2,
            64,
            1e-4,
            1000,
            partition=partition,
            clients=100,
        )
        for name, partition in CIFAR.items()
    },
}
