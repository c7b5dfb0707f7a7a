"""Split federated learning: cut a model in two, train the front on clients and the back on a server.

A name is imported when it is first used: `import cutlayer` itself is quick, and loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cutlayer._version import __version__

if TYPE_CHECKING:
    from cutlayer.clock import Clock
    from cutlayer.correlation import leakage
    from cutlayer.cut import halves, joined
    from cutlayer.cut_costs import cuts
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
    from cutlayer.local import FedNAR, FedProx
    from cutlayer.network import join, serve
    from cutlayer.optim import NAG, SGD, Adam, AdamW
    from cutlayer.records import Round
    from cutlayer.run import Result, Run
    from cutlayer.schemes import PSL, SFLV1, SFLV2, SGLR, SSL, CyclePSL, CycleSFL, CycleSGLR, CycleSSL, MergeSFL, SMoFi
    from cutlayer.terms import Limits, Net
    from cutlayer.training import rounds, train
    from cutlayer.update import FedAvg, FedAvgM, FedNAG, SlowMo

_HOMES = {
    "clock": ("Clock",),
    "correlation": ("leakage",),
    "cut": (
        "halves",
        "joined",
    ),
    "cut_costs": ("cuts",),
    "data.tasks": ("dataset",),
    "devices": ("Device",),
    "errors": (
        "AuthError",
        "ContractError",
        "CutlayerError",
        "Diverged",
        "RoundAbandoned",
        "StoreError",
        "TransportError",
    ),
    "experiment": ("load",),
    "fusion": ("MomentumFusion",),
    "local": (
        "FedNAR",
        "FedProx",
    ),
    "network": (
        "join",
        "serve",
    ),
    "optim": (
        "Adam",
        "AdamW",
        "NAG",
        "SGD",
    ),
    "records": ("Round",),
    "run": (
        "Result",
        "Run",
    ),
    "schemes": (
        "CyclePSL",
        "CycleSFL",
        "CycleSGLR",
        "CycleSSL",
        "MergeSFL",
        "PSL",
        "SFLV1",
        "SFLV2",
        "SGLR",
        "SMoFi",
        "SSL",
    ),
    "terms": (
        "Limits",
        "Net",
    ),
    "training": (
        "rounds",
        "train",
    ),
    "update": (
        "FedAvg",
        "FedAvgM",
        "FedNAG",
        "SlowMo",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_CALLED = {"dataset": "load_task"}  # there

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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cutlayer' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"cutlayer.{_HOME[name]}"), _CALLED.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
