"""The parts a method is composed of, by name: what they are and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cutlayer.errors import unknown
from cutlayer.optim import NAG, SGD, Adam, AdamW
from cutlayer.schemes import SFLV1, SFLV2, SMoFi
from cutlayer.update import FedAvg, FedAvgM


@dataclass(frozen=True)
class Part:
    """A name in a table: `make(**fixed, **given)` builds it."""

    make: Callable[..., Any]
    line: str
    paper: str
    fixed: Mapping[str, Any] = field(default_factory=dict)


FEDAVG = "McMahan et al., AISTATS 2017"
SPLITFED = "Thapa et al., AAAI 2022"

SCHEMES: dict[str, Part] = {
    "fedavg": Part(
        SFLV1, "plain federated averaging, run as surrogates averaged once a round", FEDAVG, {"every": "round"}
    ),
    "sflv1": Part(SFLV1, "SplitFed V1: parallel surrogates, averaged every step, epoch or round", SPLITFED),
    "sflv2": Part(SFLV2, "SplitFed V2: one server model, clients one after another", SPLITFED),
    "smofi": Part(SMoFi, "step-wise momentum fusion across parallel surrogates", "Yang et al., AAAI 2026"),
}

UPDATES: dict[str, Part] = {
    "fedavg": Part(FedAvg, "the weighted mean itself (the default)", FEDAVG),
    "fedavgm": Part(FedAvgM, "momentum on the mean's movement; SMoFi's global step", "Hsu et al., 2019"),
}

OPTIMIZERS: dict[str, Part] = {
    "sgd": Part(SGD, "stochastic gradient descent with momentum", "Polyak, 1964"),
    "nag": Part(NAG, "Nesterov's accelerated gradient", "Sutskever et al., ICML 2013"),
    "adam": Part(Adam, "adaptive moments", "Kingma and Ba, ICLR 2015"),
    "adamw": Part(AdamW, "Adam with decoupled weight decay", "Loshchilov and Hutter, ICLR 2019"),
}


def build(what: str, table: Mapping[str, Part], given: Any) -> Any:
    """`given` if it is an object already; the part of that name, with its defaults, if it is a string."""
    if not isinstance(given, str):
        return given
    if given not in table:
        raise unknown(what, given, table)
    part = table[given]
    return part.make(**part.fixed)
