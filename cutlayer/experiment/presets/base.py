"""What a preset is."""

from __future__ import annotations

from dataclasses import dataclass

from cutlayer.errors import unknown
from cutlayer.experiment.comparison import Comparison, slug
from cutlayer.experiment.methods import Method


@dataclass(frozen=True)
class Preset:
    """A comparison with the values of a paper; `own`: the label of the paper's own method."""

    line: str
    paper: str
    comparison: Comparison
    own: str

    def method(self, given: str | None) -> Method:
        """Return the method of that label or name; None: the paper's own."""
        if given is None:
            return next(m for m in self.comparison.methods if m.label == self.own)
        known = {slug(word): m for m in self.comparison.methods for word in (m.name, m.label) if word}
        if slug(given) not in known:
            raise unknown("method of this preset", given, [m.label for m in self.comparison.methods])
        return known[slug(given)]
