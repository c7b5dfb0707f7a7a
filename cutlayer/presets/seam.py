"""What a preset is."""

from __future__ import annotations

from dataclasses import dataclass

from cutlayer.compare import Comparison
from cutlayer.errors import unknown
from cutlayer.methods import Method


@dataclass(frozen=True)
class Preset:
    """A comparison with the values of a paper; `own`: the label of the paper's own method."""

    line: str
    paper: str
    comparison: Comparison
    own: str

    def method(self, label: str | None) -> Method:
        """The method of that label, or the paper's own."""
        known = {m.label: m for m in self.comparison.methods}
        if label is not None and label not in known:
            raise unknown("method of this preset", label, known)
        return known[label or self.own]
