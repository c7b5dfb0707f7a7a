"""Split federated learning: cut a model in two, train the front on clients and the back on a server."""

from __future__ import annotations

from cutlayer._version import __version__
from cutlayer.clock import Clock
from cutlayer.cut import halves, joined
from cutlayer.cuts import cuts
from cutlayer.data.tasks import load_task as dataset
from cutlayer.devices import Device
from cutlayer.errors import ContractError, CutlayerError, Diverged, RoundAbandoned, StoreError
from cutlayer.experiment import load
from cutlayer.fusion import MomentumFusion
from cutlayer.leakage import leakage
from cutlayer.local import FedNAR, FedProx
from cutlayer.optim import NAG, SGD, Adam, AdamW
from cutlayer.records import Round
from cutlayer.run import Result, Run
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
from cutlayer.train import rounds, train
from cutlayer.update import FedAvg, FedAvgM, FedNAG, SlowMo

__all__ = [
    "NAG",
    "PSL",
    "SFLV1",
    "SFLV2",
    "SGD",
    "SGLR",
    "SSL",
    "Adam",
    "AdamW",
    "Clock",
    "ContractError",
    "CutlayerError",
    "CyclePSL",
    "CycleSFL",
    "CycleSGLR",
    "CycleSSL",
    "Device",
    "Diverged",
    "FedAvg",
    "FedAvgM",
    "FedNAG",
    "FedNAR",
    "FedProx",
    "MergeSFL",
    "MomentumFusion",
    "Result",
    "Round",
    "RoundAbandoned",
    "Run",
    "SMoFi",
    "SlowMo",
    "StoreError",
    "__version__",
    "cuts",
    "dataset",
    "halves",
    "joined",
    "leakage",
    "load",
    "rounds",
    "train",
]
