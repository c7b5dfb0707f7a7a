"""Split federated learning: cut a model in two, train the front on clients and the back on a server.

Names are imported when they are first used: `import cutlayer` itself is quick and does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cutlayer._version import __version__

if TYPE_CHECKING:
    from cutlayer.api import partition, text
    from cutlayer.api.network import join, serve
    from cutlayer.api.opened import RunFolder
    from cutlayer.api.opened import open_run as open
    from cutlayer.api.train import rounds, train
    from cutlayer.data.columns import rows
    from cutlayer.data.tasks import load_task as dataset
    from cutlayer.engine.records import Round
    from cutlayer.engine.run import Result, Run
    from cutlayer.errors import (
        AuthError,
        ClientError,
        ContractError,
        CutlayerError,
        Diverged,
        RoundAbandoned,
        StoreError,
        TransportError,
    )
    from cutlayer.experiment.model_files import load
    from cutlayer.experiment.program import named
    from cutlayer.network.protocol.settings import Limits, Net
    from cutlayer.nn.blocks import blocks
    from cutlayer.nn.cut import Blocks, halves, joined
    from cutlayer.nn.language import Perplexity, next_token
    from cutlayer.nn.leakage import leakage
    from cutlayer.optim.adam import Adam, AdamW
    from cutlayer.optim.fusion import MomentumFusion
    from cutlayer.optim.lion import Lion
    from cutlayer.optim.local import Clip, FedNAR, FedProx
    from cutlayer.optim.lr_schedule import Cosine, Warmup
    from cutlayer.optim.sgd import NAG, SGD
    from cutlayer.optim.update import FedAvg, FedAvgM, FedNAG, SlowMo
    from cutlayer.registry import register
    from cutlayer.schemes import (
        PSL,
        SFLV1,
        SFLV2,
        SGLR,
        SSL,
        Aligned,
        CyclePSL,
        CycleSFL,
        CycleSGLR,
        CycleSSL,
        MergeSFL,
        SMoFi,
    )
    from cutlayer.simulation.clock import Clock
    from cutlayer.simulation.cuts import cuts
    from cutlayer.simulation.devices import Device

_HOMES = {
    "data.columns": "rows",
    "data.tasks": "dataset",
    "engine.records": "Round",
    "engine.run": "Result Run",
    "api.train": "rounds train",
    "errors": "AuthError ClientError ContractError CutlayerError Diverged RoundAbandoned StoreError TransportError",
    "experiment.model_files": "load",
    "experiment.program": "named",
    "api.network": "join serve",
    "api.opened": "RunFolder open",
    "api": "partition text",
    "network.protocol.settings": "Limits Net",
    "nn.blocks": "blocks",
    "nn.cut": "Blocks halves joined",
    "nn.language": "Perplexity next_token",
    "nn.leakage": "leakage",
    "optim.fusion": "MomentumFusion",
    "optim.local": "Clip FedNAR FedProx",
    "optim.adam": "Adam AdamW",
    "optim.lion": "Lion",
    "optim.lr_schedule": "Cosine Warmup",
    "optim.sgd": "NAG SGD",
    "optim.update": "FedAvg FedAvgM FedNAG SlowMo",
    "registry": "register",
    "schemes": "Aligned CyclePSL CycleSFL CycleSGLR CycleSSL MergeSFL PSL SFLV1 SFLV2 SGLR SMoFi SSL",
    "simulation.clock": "Clock",
    "simulation.cuts": "cuts",
    "simulation.devices": "Device",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
_CALLED = {"dataset": "load_task", "open": "open_run"}  # public names that differ from those in the module
_MODULES = {"partition", "text"}  # public names that are modules themselves

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
    "Aligned",
    "AuthError",
    "Blocks",
    "ClientError",
    "Clip",
    "Clock",
    "ContractError",
    "Cosine",
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
    "Lion",
    "MergeSFL",
    "MomentumFusion",
    "Net",
    "Perplexity",
    "Result",
    "Round",
    "RoundAbandoned",
    "Run",
    "RunFolder",
    "SMoFi",
    "SlowMo",
    "StoreError",
    "TransportError",
    "Warmup",
    "__version__",
    "blocks",
    "cuts",
    "dataset",
    "halves",
    "join",
    "joined",
    "leakage",
    "load",
    "named",
    "next_token",
    "open",
    "partition",
    "register",
    "rounds",
    "rows",
    "serve",
    "text",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cutlayer' has no attribute {name!r}")
    if name in _MODULES:
        value: Any = importlib.import_module(f"cutlayer.{_HOME[name]}.{name}")
    else:
        value = getattr(importlib.import_module(f"cutlayer.{_HOME[name]}"), _CALLED.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
