"""Outcomes that nobody trained."""

from __future__ import annotations

from collections.abc import Sequence

from cutlayer.engine.records import Round
from cutlayer.report.summary import Outcome


def outcome(
    accuracies: Sequence[float | None], seed: int = 0, seconds: float = 10.0, status: str = "complete"
) -> Outcome:
    """A run with these accuracies; each round takes so many simulated seconds."""
    rounds = [
        Round(
            n, accuracy=value, loss=None if value is None else 1 - value, sim_seconds=seconds, participants=2, seconds=1
        )
        for n, value in enumerate(accuracies, start=1)
    ]
    return Outcome(seed, rounds, status)
