"""Methods by name: a scheme and an update under one label, and the papers' ablations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cutlayer.errors import unknown
from cutlayer.parts import SCHEMES, UPDATES


@dataclass(frozen=True)
class Method:
    """A name in a comparison: how its config differs from the common one."""

    label: str
    changes: Mapping[str, Any]
    line: str = ""


FUSED = {"scheme": "smofi", "update": "fedavg"}
FULL = {"scheme": "smofi", "update": "fedavgm"}
FEDAVGM = {"scheme": "fedavg", "update": "fedavgm"}

NAMED: dict[str, Method] = {
    "fedavgm": Method("FedAvgM", FEDAVGM, "FedAvg with global momentum"),
    "sflv1-step": Method("SFLV1 (step)", {"scheme": {"name": "sflv1", "every": "step"}}, "averaged every step"),
    "sflv2-step": Method("SFLV2 (step)", {"scheme": {"name": "sflv2", "order": "step"}}, "clients interleaved"),
    "smofi-full": Method("SMoFi (full)", FULL, "the paper's SMoFi: fusion and global momentum"),
    "smofi-no-global-momentum": Method("SMoFi w/o global momentum", FUSED, "ablation (SMoFi, Fig. 11): fusion alone"),
    "smofi-no-alignment": Method("SMoFi w/o alignment", FEDAVGM, "ablation (Fig. 11): global momentum alone"),
    "fedavg-momentum-0": Method(
        "FedAvg, local momentum 0", {"scheme": "fedavg", "optimizer": {"momentum": 0.0}}, "ablation (Fig. 1)"
    ),
    "fedavg-momentum-0.9": Method(
        "FedAvg, local momentum 0.9", {"scheme": "fedavg", "optimizer": {"momentum": 0.9}}, "ablation (Fig. 1)"
    ),
}
LABELS = {"fedavg": "FedAvg", "sflv1": "SFLV1", "sflv2": "SFLV2", "smofi": "SMoFi"}


def method(name: str) -> Method:
    """A method by name: one of NAMED, a scheme, or SCHEME+UPDATE."""
    if name in NAMED:
        return NAMED[name]
    scheme, plus, update = name.partition("+")
    if scheme not in SCHEMES or (plus and update not in UPDATES):
        pairs = [f"{s}+{u}" for s in SCHEMES for u in UPDATES if u != "fedavg"]
        raise unknown("method", name, [*NAMED, *SCHEMES, *pairs])
    label = LABELS.get(scheme, scheme) + (f" + {update}" if plus else "")
    return Method(label, {"scheme": scheme, **({"update": update} if plus else {})})
