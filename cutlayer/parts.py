"""The parts a method is composed of, by name: what they are and where they come from."""

from __future__ import annotations

from cutlayer.optim import NAG, SGD, Adam, AdamW
from cutlayer.schemes import SFLV1, SFLV2, SMoFi
from cutlayer.table import Part
from cutlayer.update import FedAvg, FedAvgM

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
