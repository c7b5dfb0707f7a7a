"""Schemes by name: what the server does in a round, and what that costs.

m   the clients of a round       s   the size of the server half       o   moments of the optimizer (SGD 1, Adam 2)
A   activations of a batch       Wc, W   the size of the client half, of the whole model
"""

from __future__ import annotations

from cutlayer.registry.part import Part, Takes

FEDAVG = "McMahan et al., AISTATS 2017"
SPLITFED = "Thapa et al., AAAI 2022"
CYCLESL = "CycleSL, under review 2025"
EACH, ONE, STEP = "m(2 + o)", "2 + o", "2A"
MEMORY = Takes("{slot,client}", "slot", "protocol cyclesl: whose the server's optimizer memory is")
SHARE = Takes("FLOAT", 0.5, "share of the clients that get one averaged gradient at the cut, from 0 to 1")
EPOCHS = Takes("INT", 1, "the server's passes over the round's features, at least 0")
FROZEN = Takes("{train,eval,no_update}", "train", "the server's BatchNorm while clients take their gradients")
CYCLED = {
    "server_epochs": EPOCHS,
    "server_batch": Takes("INT", None, "samples of a server step, at least 1 (default: the clients' batch size)"),
    "loss_weight": Takes("{samples,uniform}", "samples", "whether a client counts by its samples or like any other"),
    "frozen_bn": FROZEN,
}

FUSION = {
    "alpha": Takes("FLOAT", -0.1, "at most 0: the momentum of a finished client fades as (age in steps)^alpha"),
    "stale_offset": Takes("INT", 1, "added to that age, 0 or 1: with 1 the first reuse already weighs 2^alpha"),
    "hist_norm": Takes(
        "{count,weights}",
        "count",
        "divide the fused momentum by the number of clients, or by the sum of weights",
    ),
    "rebias_history": Takes("BOOL", False, "Adam: correct a finished client's moments for the steps since"),
    "adaptive": Takes("BOOL", False, "weigh stale momentum by its cosine with the fresh one, not by its age"),
    "fuse_clients": Takes("BOOL", False, "fuse the clients' momentum too; it then travels every step"),
}

SCHEMES: dict[str, Part] = {
    "fedavg": Part(
        "cutlayer.schemes:SFLV1",
        "plain federated averaging, run as surrogates averaged once a round",
        FEDAVG,
        {"every": "round", "memory": "client"},
        EACH,
        STEP,
        {},
    ),
    "sflv1": Part(
        "cutlayer.schemes:SFLV1",
        "SplitFed V1: parallel surrogates, averaged every step, epoch or round",
        SPLITFED,
        {},
        EACH,
        STEP,
        {"every": Takes("{step,epoch,round}", "epoch", "how often the surrogates are averaged"), "memory": MEMORY},
    ),
    "sflv2": Part(
        "cutlayer.schemes:SFLV2",
        "SplitFed V2: one server model, clients one after another",
        SPLITFED,
        {},
        ONE,
        STEP,
        {
            "order": Takes(
                "{client,step}", "client", "all steps of one client after another, or one step each in turn"
            ),
            "reset": Takes(
                "{auto,step,client,round,never}",
                "auto",
                "when the server's optimizer forgets (auto: every step in protocol smofi, never in cyclesl)",
            ),
        },
    ),
    "smofi": Part(
        "cutlayer.schemes:SMoFi",
        "step-wise momentum fusion across parallel surrogates",
        "Yang et al., AAAI 2026",
        {},
        "2m + 3o",
        STEP,
        FUSION,
    ),
    "aligned": Part(
        "cutlayer.schemes:Aligned",
        "SMoFi carried further: consistent, elastic, corrected or cycled",
        "cutlayer",
        {},
        "2m + 3o",
        STEP,
        {
            **FUSION,
            "kappa": Takes("FLOAT", None, "the fused momentum begins a round at so many times its last value, 0 to 1"),
            "fade": Takes("FLOAT", None, "momentum of a finished client weighs fade^(age), 0 to 1, in place of alpha"),
            "weights": Takes("{uniform,samples}", "uniform", "whether clients count alike or by their samples"),
            "lam": Takes("FLOAT", 0.0, "how much of a surrogate's own direction is taken from its gradient, 0 to 1"),
            "gamma": Takes("FLOAT", 0.9, "how long that direction is remembered, 0 to 1"),
            "rho": Takes("FLOAT", 0.0, "how far surrogates move to their mean after every step, 0 to 1"),
            "ramp": Takes("INT", 0, "rho grows over so many steps of a round; 0: it is there from the first"),
            "cycle": Takes("BOOL", False, "surrogates step on everybody's features first; then clients get gradients"),
        },
    ),
    "mergesfl": Part(
        "cutlayer.schemes:MergeSFL",
        "one server step on all clients' rows; batch sizes by device speed",
        "Liao et al., ICDE 2024",
        {},
        ONE,
        STEP,
        {
            "select": Takes("{random,kl_greedy}", "random", "clients at random, or so that their labels mix evenly"),
            "front_weights": Takes("{batch,uniform}", "batch", "how fronts are averaged: by batch size, or alike"),
            "scale_lr": Takes("BOOL", False, "scale a client's learning rate with its batch size"),
        },
    ),
    "psl": Part(
        "cutlayer.schemes:PSL",
        "parallel split learning: surrogates; every client keeps its front",
        "Jeon and Kim, ICOIN 2020",
        {},
        EACH,
        STEP,
        {"memory": MEMORY},
    ),
    "sglr": Part(
        "cutlayer.schemes:SGLR",
        "PSL with one averaged gradient at the cut for a share of clients",
        "Pal et al. 2021",
        {},
        EACH,
        STEP,
        {"share": SHARE, "memory": MEMORY},
    ),
    "ssl": Part(
        "cutlayer.schemes:SSL",
        "sequential split learning: one front from client to client",
        "Vepakomma et al. 2018",
        {},
        ONE,
        STEP,
        {},
    ),
    "cyclepsl": Part(
        "cutlayer.schemes:CyclePSL",
        "the server trains on resampled features first; fronts are kept",
        CYCLESL,
        {},
        ONE,
        STEP,
        CYCLED,
    ),
    "cyclesfl": Part(
        "cutlayer.schemes:CycleSFL", "the same; fronts are averaged every round", CYCLESL, {}, ONE, STEP, CYCLED
    ),
    "cyclesglr": Part(
        "cutlayer.schemes:CycleSGLR",
        "CyclePSL with SGLR's averaged gradients",
        CYCLESL,
        {},
        ONE,
        STEP,
        {**CYCLED, "share": SHARE},
    ),
    "cyclessl": Part(
        "cutlayer.schemes:CycleSSL",
        "the same, client by client, with one front passed on",
        CYCLESL,
        {},
        ONE,
        STEP,
        {"server_epochs": EPOCHS, "frozen_bn": FROZEN},
    ),
}
