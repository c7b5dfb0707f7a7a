"""Split federated learning: cut a model in two, train the front on clients and the back on a server."""

from __future__ import annotations

from cutlayer._version import __version__
from cutlayer.clock import Clock
from cutlayer.cut import halves, joined
from cutlayer.cuts import cuts
from cutlayer.data.tasks import load_task as dataset
from cutlayer.devices import Device
from cutlayer.errors import (
    AuthError,
    ContractError,
    CutlayerError,
    Diverged,
    RoundAbandoned,
    StoreError,
    TransportError,
)
from cutlayer.experiment import load
from cutlayer.fusion import MomentumFusion
from cutlayer.leakage import leakage
from cutlayer.local import FedNAR, FedProx
from cutlayer.network import join, serve
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
from cutlayer.terms import Limits, Net
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
    "AuthError",
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
    "Limits",
    "MergeSFL",
    "MomentumFusion",
    "Net",
    "Result",
    "Round",
    "RoundAbandoned",
    "Run",
    "SMoFi",
    "SlowMo",
    "StoreError",
    "TransportError",
    "__version__",
    "cuts",
    "dataset",
    "halves",
    "join",
    "joined",
    "leakage",
    "load",
    "rounds",
    "serve",
    "train",
]
