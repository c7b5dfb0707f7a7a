"""A look inside a round: what it was for each client, as columns. Looking changes nothing that is computed.

client        every client that was selected          drift_client   the distance of its front to the mean front
steps         of its optimizer                        drift_server   the same for its server half
samples       that it trained on                      cosine         SMoFi: between its momentum and the fused one
loss          the mean over its batches               fault          why it did not finish the round
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutlayer.clients.cohort import Fault
from cutlayer.engine.aggregate import Aggregator
from cutlayer.engine.records import Detail, Ledger
from cutlayer.schemes.server import Server

COLUMNS = ("client", "steps", "samples", "loss", "drift_client", "drift_server", "cosine", "fault")


class Observed(NamedTuple):
    """What one process saw of its clients: plain values by client, so that those of all processes can be combined."""

    work: list[list[Any]]  # client, steps, samples, loss
    drifts: list[list[Any]]  # client, which column, distance
    notes: list[list[Any]]  # client, which column, value


def observed(ledger: Ledger, aggregator: Aggregator, server: Server) -> Observed:
    """Return what this process saw of the round."""
    losses: dict[int, list[float]] = {}
    for (j, *_), loss in zip(ledger.losses, numbers([loss for *_, loss in ledger.losses]), strict=True):
        losses.setdefault(j, []).append(loss)
    work = [[j, steps, samples, mean(losses.get(j, ()))] for j, (steps, samples) in ledger.work.items()]
    drifts = [[j, name, value] for name, found in aggregator.distances.items() for j, value in found.items()]
    noted = iter(numbers([value for values in server.notes.values() for value in values]))
    notes = [[j, what, mean([*islice(noted, len(values))])] for (what, j), values in server.notes.items()]
    return Observed(work, drifts, notes)


def numbers(values: Sequence[float | Tensor]) -> list[float]:
    """Return values as numbers; they come from a GPU together."""
    there = [value for value in values if isinstance(value, Tensor)]
    here = iter(torch.stack(there).tolist() if there else ())
    return [next(here) if isinstance(value, Tensor) else value for value in values]


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def columns(observations: Sequence[Sequence[Any]], selected: Sequence[int], lost: Mapping[int, str]) -> Detail:
    """Combine what all processes saw. `lost`: why clients did not finish."""
    rows: dict[int, dict[str, Any]] = {j: {"steps": 0, "samples": 0} for j in sorted(selected)}
    for work, drifts, notes in observations:
        for j, steps, samples, loss in work:
            rows[j] |= {"steps": steps, "samples": samples, "loss": loss}
        for j, name, value in (*drifts, *notes):
            rows[j][name] = value
    for j, why in lost.items():
        rows[j]["fault"] = why
    names = dict.fromkeys([*COLUMNS, *sorted({name for row in rows.values() for name in row})])
    return {name: list(rows) if name == "client" else [row.get(name) for row in rows.values()] for name in names}


def lost(
    selected: Sequence[int], started: Sequence[int], finished: Sequence[int], said: Sequence[Fault]
) -> dict[int, str]:
    """Return why clients did not finish the round."""
    known = {fault.client: fault.why for fault in said if fault.client is not None}
    without = {j: "no full batch" for j in selected if j not in started}
    return without | {j: known.get(j, "lost") for j in started if j not in finished}
