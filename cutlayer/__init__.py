"""Split federated learning: cut a model in two, train the front on clients and the back on a server."""

from __future__ import annotations

from cutlayer._version import __version__
from cutlayer.cut import halves, joined
from cutlayer.errors import ContractError, CutlayerError, Diverged, RoundAbandoned, StoreError
from cutlayer.experiment import load
from cutlayer.fusion import MomentumFusion
from cutlayer.optim import NAG, SGD, Adam, AdamW
from cutlayer.round import Round
from cutlayer.schemes import SFLV1, SFLV2, SMoFi
from cutlayer.train import Result, Run, rounds, train
from cutlayer.update import FedAvg, FedAvgM

__all__ = [
    "NAG",
    "SFLV1",
    "SFLV2",
    "SGD",
    "Adam",
    "AdamW",
    "ContractError",
    "CutlayerError",
    "Diverged",
    "FedAvg",
    "FedAvgM",
    "MomentumFusion",
    "Result",
    "Round",
    "RoundAbandoned",
    "Run",
    "SMoFi",
    "StoreError",
    "__version__",
    "halves",
    "joined",
    "load",
    "rounds",
    "train",
]
