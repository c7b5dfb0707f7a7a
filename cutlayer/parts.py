"""The parts a method is composed of, by name: what they are, where they come from, what they cost the server.

m   the clients of a round       s   the size of the server half       o   moments of the optimizer (SGD 1, Adam 2)
A   activations of a batch       Wc, W   the size of the client half, of the whole model
"""

from __future__ import annotations

from cutlayer.local import FedNAR, FedProx
from cutlayer.optim import NAG, SGD, Adam, AdamW
from cutlayer.schemes import (
    PSL,
    SFLV1,
    SFLV2,
    SGLR,
    SSL,
    CyclePSL,
    CycleSFL,
    CycleSGLR,
    CycleSSL,
    MergeSFL,
    SMoFi,
)
from cutlayer.table import Part
from cutlayer.update import FedAvg, FedAvgM, FedNAG, SlowMo

FEDAVG = "McMahan et al., AISTATS 2017"
SPLITFED = "Thapa et al., AAAI 2022"
CYCLESL = "CycleSL, under review 2025"
EACH, ONE, STEP = "m(2 + o)", "2 + o", "2A"

SCHEMES: dict[str, Part] = {
    "fedavg": Part(
        SFLV1,
        "plain federated averaging, run as surrogates averaged once a round",
        FEDAVG,
        {"every": "round", "memory": "client"},
        EACH,
        STEP,
    ),
    "sflv1": Part(
        SFLV1, "SplitFed V1: parallel surrogates, averaged every step, epoch or round", SPLITFED, {}, EACH, STEP
    ),
    "sflv2": Part(SFLV2, "SplitFed V2: one server model, clients one after another", SPLITFED, {}, ONE, STEP),
    "smofi": Part(
        SMoFi, "step-wise momentum fusion across parallel surrogates", "Yang et al., AAAI 2026", {}, "2m + 3o", STEP
    ),
    "mergesfl": Part(
        MergeSFL,
        "one server step on all clients' rows; batch sizes by device speed",
        "Liao et al., ICDE 2024",
        {},
        ONE,
        STEP,
    ),
    "psl": Part(
        PSL,
        "parallel split learning: surrogates; every client keeps its front",
        "Jeon and Kim, ICOIN 2020",
        {},
        EACH,
        STEP,
    ),
    "sglr": Part(
        SGLR, "PSL with one averaged gradient at the cut for a share of clients", "Pal et al. 2021", {}, EACH, STEP
    ),
    "ssl": Part(
        SSL, "sequential split learning: one front from client to client", "Vepakomma et al. 2018", {}, ONE, STEP
    ),
    "cyclepsl": Part(
        CyclePSL, "the server trains on resampled features first; fronts are kept", CYCLESL, {}, ONE, STEP
    ),
    "cyclesfl": Part(CycleSFL, "the same; fronts are averaged every round", CYCLESL, {}, ONE, STEP),
    "cyclesglr": Part(CycleSGLR, "CyclePSL with SGLR's averaged gradients", CYCLESL, {}, ONE, STEP),
    "cyclessl": Part(CycleSSL, "the same, client by client, with one front passed on", CYCLESL, {}, ONE, STEP),
}

LOCALS: dict[str, Part] = {
    "fedprox": Part(FedProx, "a proximal term towards the round's start, on both halves", "Li et al., MLSys 2020"),
    "fednar": Part(
        FedNAR, "gradient and weight decay clipped together", "Li et al., NeurIPS 2023", {}, "", "+ 16 bytes (joint)"
    ),
}

UPDATES: dict[str, Part] = {
    "fedavg": Part(FedAvg, "the weighted mean itself (the default)", FEDAVG),
    "fedavgm": Part(FedAvgM, "momentum on the mean's movement; SMoFi's global step", "Hsu et al. 2019", {}, "+ W"),
    "slowmo": Part(
        SlowMo, "slow momentum in units of the local learning rate", "Wang et al., ICLR 2020", {}, "+ W", ""
    ),
    "fednag": Part(
        FedNAG,
        "Nesterov on the clients; weights and momentum averaged and broadcast",
        "Yang et al., FGCS 2022",
        {},
        "+ oW",
        "+ 2oWc a round",
    ),
}

OPTIMIZERS: dict[str, Part] = {
    "sgd": Part(SGD, "stochastic gradient descent with momentum", "Polyak 1964"),
    "nag": Part(NAG, "Nesterov's accelerated gradient", "Sutskever et al., ICML 2013"),
    "adam": Part(Adam, "adaptive moments", "Kingma and Ba, ICLR 2015"),
    "adamw": Part(AdamW, "Adam with decoupled weight decay", "Loshchilov and Hutter, ICLR 2019"),
}
