"""Methods by name: a scheme, a local rule and an update under one label, and the papers' ablations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cutlayer.errors import ContractError, unknown
from cutlayer.registry import LOCALS, SCHEMES, UPDATES


@dataclass(frozen=True)
class Method:
    """How a method's config differs from the common one. `line`: a description; `name`: a short name for it;
    `baseline`: the label of the method whose rounds are its 1.00x, if it is not the comparison's; `at`: the values of
    the parameters that a sweep varies."""

    label: str
    changes: Mapping[str, Any]
    line: str = ""
    name: str = ""
    baseline: str = ""
    at: Mapping[str, float] = field(default_factory=dict)


FUSED = {"scheme": "smofi", "update": "fedavg"}
FULL = {"scheme": "smofi", "update": "fedavgm"}
FEDAVGM = {"scheme": "fedavg", "update": "fedavgm"}
ADAPTIVE = {"name": "smofi", "adaptive": True}
CLIENTS = {"name": "smofi", "fuse_clients": True}

NAMED: dict[str, Method] = {
    "fedavgm": Method("FedAvgM", FEDAVGM, "FedAvg with global momentum"),
    "slowmo": Method("SlowMo", {"scheme": "fedavg", "update": "slowmo"}, "FedAvg with slow momentum"),
    "fednag": Method("FedNAG", {"scheme": "fedavg", "update": "fednag"}, "FedAvg with averaged Nesterov momentum"),
    "fedprox": Method("FedProx", {"scheme": "fedavg", "local": "fedprox"}, "FedAvg with a proximal term"),
    "fednar": Method("FedNAR", {"scheme": "fedavg", "local": "fednar"}, "FedAvg, gradient and decay clipped together"),
    "sflv1-step": Method("SFLV1 (step)", {"scheme": {"name": "sflv1", "every": "step"}}, "averaged every step"),
    "sflv2-step": Method("SFLV2 (step)", {"scheme": {"name": "sflv2", "order": "step"}}, "clients interleaved"),
    "smofi-full": Method("SMoFi + FedAvgM", FULL, "the paper's SMoFi: fusion and global momentum"),
    "smofi-adaptive": Method("SMoFi, adaptive", {"scheme": ADAPTIVE}, "ours: stale momentum weighed by its cosine"),
    "smofi-adaptive-full": Method(
        "SMoFi, adaptive + FedAvgM", {**FULL, "scheme": ADAPTIVE}, "the same with global momentum"
    ),
    "smofi-clients": Method("SMoFi, clients too", {"scheme": CLIENTS}, "ours: the clients' momentum is fused as well"),
    "smofi-clients-full": Method(
        "SMoFi, clients too + FedAvgM", {**FULL, "scheme": CLIENTS}, "the same with global momentum"
    ),
    "smofi-no-global-momentum": Method("SMoFi w/o global momentum", FUSED, "ablation (SMoFi, Fig. 11): fusion alone"),
    "smofi-no-alignment": Method("SMoFi w/o alignment", FEDAVGM, "ablation (Fig. 11): global momentum alone"),
    "fedavg-momentum-0": Method(
        "FedAvg, local momentum 0", {"scheme": "fedavg", "optimizer": {"momentum": 0.0}}, "ablation (Fig. 1)"
    ),
    "fedavg-momentum-0.9": Method(
        "FedAvg, local momentum 0.9", {"scheme": "fedavg", "optimizer": {"momentum": 0.9}}, "ablation (Fig. 1)"
    ),
}
LABELS = {
    "fedavg": "FedAvg",
    "sflv1": "SFLV1",
    "sflv2": "SFLV2",
    "smofi": "SMoFi",
    "aligned": "Aligned",
    "mergesfl": "MergeSFL",
    "psl": "PSL",
    "sglr": "SGLR",
    "ssl": "SSL",
    "cyclepsl": "CyclePSL",
    "cyclesfl": "CycleSFL",
    "cyclesglr": "CycleSGLR",
    "cyclessl": "CycleSSL",
}


def method(name: str) -> Method:
    """Return a method by name: one of NAMED, a scheme, or a scheme with parts: SCHEME+UPDATE, SCHEME+LOCAL, or both."""
    if name in NAMED:
        return NAMED[name]
    scheme, *rest = name.split("+")
    changes: dict[str, Any] = {"scheme": scheme}
    for part in rest:
        field = "local" if part in LOCALS else "update" if part in UPDATES else ""
        if field == "local" and f"{changes.get(field)}+{part}" in LOCALS:
            part = f"{changes.pop(field)}+{part}"
        if field in changes:
            raise ContractError(f"method = {name!r}: expected one {field} at most")
        if not field:
            raise unknown("part of a method", part, [*LOCALS, *(u for u in UPDATES if u != "fedavg")])
        changes[field] = part
    if scheme not in SCHEMES:
        more = [f"{s}+{part}" for s in SCHEMES for part in (*LOCALS, *UPDATES) if part != "fedavg"]
        raise unknown("method", name, [*NAMED, *SCHEMES, *more])
    return Method(" + ".join([LABELS.get(scheme, scheme.rpartition(":")[2]), *rest]), changes)
