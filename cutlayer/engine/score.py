"""The score of a round: every rank evaluates its share, and all end with the same record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cutlayer.core.group import ProcessGroup
from cutlayer.engine.metrics import Scores
from cutlayer.engine.records import TUPLES, Global, Round
from cutlayer.engine.setup import Setup
from cutlayer.errors import Diverged


def scored(s: Setup, after: Global, clients: Sequence[int]) -> tuple[Scores, dict[str, Any]]:
    """Evaluate the state after a round, if that is due; `clients`: those that finished the round."""
    n = after.n
    due = n % s.evaluate_every == 0 or n == s.rounds
    keeps = s.traits.carry == "keep"
    scores, series = Scores(), {}
    if s.evaluator and s.evaluator.per_client and (due or s.persists):
        front = after.front if keeps else lambda client: None
        clients, _ = s.processes.from_root(list(clients), {})
        series = dict(s.evaluator.by_client(after.W, front, clients, after.participations, due))
        scores = Scores(**{name: series["all"][name] for name in asdict(scores)}) if due else scores
    elif s.evaluator and not s.evaluator.per_client and due:
        scores = s.evaluator.pooled(after.merged(s.sizes) if keeps else after.W)
    if scores.loss is not None and not math.isfinite(scores.loss):
        raise Diverged(f"round {n}: the test loss became {scores.loss}, {s.rates(n)}")
    return scores, series


def shared(processes: ProcessGroup, record: Round | None) -> Round:
    """Return the root's record at every rank: only the root has seen everything."""
    said, _ = processes.from_root(None if record is None else asdict(record), {})
    return Round(**{**said, **{name: tuple(said[name]) for name in TUPLES}})
