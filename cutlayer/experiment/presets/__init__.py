"""Comparisons by name: the demo, and the settings of the papers' tables."""

from __future__ import annotations

from importlib import resources

from cutlayer.core import toml
from cutlayer.errors import unknown
from cutlayer.experiment.comparison import Comparison
from cutlayer.experiment.presets import cyclesl, smofi
from cutlayer.experiment.presets.base import Preset


def _demo() -> Preset:
    text = resources.files("cutlayer.experiment.presets").joinpath("demo.toml").read_text("utf-8")
    given = Comparison.parse(toml.loads(text))
    return Preset("five methods on the digits that ship, two minutes", "-", given, "SMoFi + FedAvgM")


PRESETS: dict[str, Preset] = {"demo": _demo(), **smofi.PRESETS, **cyclesl.PRESETS}


def preset(name: str) -> Preset:
    """Return a preset by name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


__all__ = ["PRESETS", "Preset", "preset"]
