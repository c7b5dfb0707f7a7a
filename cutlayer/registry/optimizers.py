"""Local rules, updates and optimizers by name."""

from __future__ import annotations

from cutlayer.registry.part import Part, Takes
from cutlayer.registry.schemes import FEDAVG

LOCALS: dict[str, Part] = {
    "fedprox": Part(
        "cutlayer.optim.local:FedProx",
        "a proximal term towards the round's start, on both halves",
        "Li et al., MLSys 2020",
        about={"mu": Takes("FLOAT", 0.01, "strength of the pull towards the round's start, at least 0")},
    ),
    "fednar": Part(
        "cutlayer.optim.local:FedNAR",
        "gradient and weight decay clipped together",
        "Li et al., NeurIPS 2023",
        {},
        "",
        "+ 16 bytes (joint)",
        {
            "max_norm": Takes("FLOAT", 10.0, "longest gradient, weight decay included; above 0, inf: never clipped"),
            "norm": Takes("{joint,half}", "joint", "the norm of both halves together, or of each by itself"),
        },
    ),
}
LOCALS["clip"] = Part(
    "cutlayer.optim.local:Clip",
    "the gradient clipped by its norm, before weight decay and momentum",
    "Pascanu et al., ICML 2013",
    {},
    "",
    "+ 16 bytes (joint)",
    {
        "max_norm": Takes("FLOAT", 1.0, "longest gradient; above 0, inf: never clipped"),
        "norm": Takes("{joint,half}", "half", "the norm of both halves together, or of each by itself"),
    },
)
LOCALS["fedprox+fednar"] = Part(
    "cutlayer.optim.local:fedprox_fednar",
    "both: the proximal term, then the clipping",
    "Li et al. 2020, 2023",
    {},
    "",
    "+ 16 bytes (joint)",
    {**(LOCALS["fedprox"].about or {}), **(LOCALS["fednar"].about or {})},
)

UPDATES: dict[str, Part] = {
    "fedavg": Part("cutlayer.optim.update:FedAvg", "the weighted mean itself (the default)", FEDAVG, about={}),
    "fedavgm": Part(
        "cutlayer.optim.update:FedAvgM",
        "momentum on the mean's movement; SMoFi's global step",
        "Hsu et al. 2019",
        {},
        "+ W",
        "",
        {
            "beta": Takes("FLOAT", 0.3, "global momentum, from 0 to below 1 (SMoFi's beta_g)"),
            "half": Takes("{front,back}", None, "the half that has it, while the other is averaged (default: both)"),
        },
    ),
    "slowmo": Part(
        "cutlayer.optim.update:SlowMo",
        "slow momentum in units of the local learning rate",
        "Wang et al., ICLR 2020",
        {},
        "+ W",
        "",
        {
            "lr": Takes("FLOAT", 1.0, "slow learning rate, above 0"),
            "beta": Takes("FLOAT", 0.6, "slow momentum, from 0 to below 1"),
            "buffers": Takes("{reset,average}", "reset", "the clients' momentum after a round: empty, or averaged"),
            "weights": Takes("{samples,uniform}", "samples", "how clients count in the mean: by samples, or alike"),
        },
    ),
    "fednag": Part(
        "cutlayer.optim.update:FedNAG",
        "Nesterov on the clients; weights and momentum averaged and broadcast",
        "Yang et al., IEEE TPDS 33(12), 2022",
        {},
        "+ oW",
        "+ 2oWc a round",
        {},
    ),
}

LR_SCHEDULES: dict[str, Part] = {
    "cosine": Part(
        "cutlayer.optim.lr_schedule:Cosine",
        "a linear rise over the first rounds, then half a cosine down",
        "Loshchilov and Hutter, ICLR 2017",
        about={
            "rounds": Takes("INT", None, "rounds to the lowest rate (default: those of the run)"),
            "warmup": Takes("INT", 0, "rounds in which the rate rises"),
            "floor": Takes("FLOAT", 0.0, "the lowest factor, from 0 to 1"),
        },
    ),
    "warmup": Part(
        "cutlayer.optim.lr_schedule:Warmup",
        "a linear rise over the first rounds, and within each round over its first steps",
        "Goyal et al. 2017",
        about={
            "rounds": Takes("INT", 5, "rounds in which the rate rises"),
            "steps": Takes("INT", 0, "steps of every round in which the rate rises"),
        },
    ),
}

DECAY = Takes("FLOAT", 1.0, "factor on the learning rate after every round, above 0")
MOMENTUM = {
    "lr": Takes("FLOAT", 0.05, "learning rate in round 1, at least 0"),
    "momentum": Takes("FLOAT", 0.9, "local momentum, from 0 to below 1"),
    "weight_decay": Takes("FLOAT", 5e-4, "L2 penalty, at least 0"),
    "decay": DECAY,
}
ADAPTIVE = {
    "lr": Takes("FLOAT", 1e-3, "learning rate in round 1, at least 0"),
    "betas": Takes("FLOAT FLOAT", (0.9, 0.999), "how slowly the two moments forget, each from 0 to below 1"),
    "eps": Takes("FLOAT", 1e-8, "added to the root of the second moment, above 0"),
    "weight_decay": Takes("FLOAT", 0.0, "penalty (AdamW: decay of the weights themselves), at least 0"),
    "decay": DECAY,
}
SIGNED = {
    "lr": Takes("FLOAT", 1e-4, "learning rate in round 1, above 0: the size of every step"),
    "betas": Takes("FLOAT FLOAT", (0.9, 0.99), "the old momentum's share in the step and in the new one"),
    "weight_decay": Takes("FLOAT", 0.0, "decay of the weights themselves, at least 0"),
    "decay": DECAY,
}
OPTIMIZERS: dict[str, Part] = {
    "sgd": Part("cutlayer.optim.sgd:SGD", "stochastic gradient descent with momentum", "Polyak 1964", about=MOMENTUM),
    "nag": Part(
        "cutlayer.optim.sgd:NAG",
        "Nesterov's accelerated gradient",
        "Sutskever et al., ICML 2013",
        about=MOMENTUM,
    ),
    "adam": Part("cutlayer.optim.adam:Adam", "adaptive moments", "Kingma and Ba, ICLR 2015", about=ADAPTIVE),
    "adamw": Part(
        "cutlayer.optim.adam:AdamW",
        "Adam with decoupled weight decay",
        "Loshchilov and Hutter, ICLR 2019",
        about=ADAPTIVE,
    ),
    "lion": Part("cutlayer.optim.lion:Lion", "the sign of the momentum", "Chen et al., NeurIPS 2023", about=SIGNED),
}
