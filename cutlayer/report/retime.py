"""Count a run's simulated time again, from its journal: other devices, another cut, another clock. No training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cutlayer.engine.records import Round
from cutlayer.errors import StoreError
from cutlayer.experiment import checkpoint, description, model_profile
from cutlayer.experiment import config as text
from cutlayer.nn.cut import Layout, cut_range
from cutlayer.simulation.clock import Clock, Timing, Work, seconds, server_seconds
from cutlayer.simulation.devices import draw


@dataclass(frozen=True)
class WhatIf:
    """What to change; None: as in the run."""

    profile: str | None = None
    cut: int | None = None
    kappa: float | None = None
    sync: bool | None = None
    sequential: str | None = None
    plain: bool = False  # the uncut model, sent and averaged: plain federated learning


def retimed(run: Path, rounds: Sequence[Round], change: WhatIf) -> list[Round]:
    """Return the rounds of a run with their simulated seconds counted again.

    What the clients did is taken from the journal: another profile does not change batch sizes that were regulated by
    the old one, and another cut is assumed to reach the same accuracy.
    """
    was, model = description.begun_with(run, checkpoint.config(run)), model_profile.read(run)
    if change.cut is not None:
        cut_range(change.cut, Layout(len(model.macs)))
    clock = Clock(
        was["kappa"] if change.kappa is None else change.kappa,
        was["count_sync"] if change.sync is None else change.sync,
        change.sequential or was["sequential"],  # type: ignore[arg-type]  # Clock checks it
    )
    clients = max((j + 1 for record in rounds for j in record.clients), default=0)  # remote ones may join later
    given = model_profile.devices_of(model) if change.profile is None else None
    profile = change.profile or was["profile"]
    devices = given or draw(profile, max(model.clients, clients, 1), was["seed"], sum(model.macs))
    p_s = server_seconds(devices, clock.kappa)
    timing, fronts = model_profile.timing_of(model) or _of_scheme(was)
    whole = sum(model.weights)
    again = []
    for record in rounds:
        cut = record.cut if change.cut is None else change.cut
        if cut is None or not len(record.clients) == len(record.client_steps) == len(record.client_samples):
            raise StoreError(
                f"{run}, round {record.n}: the journal does not say where the model was cut, or what each client did"
            )
        T = dict(zip(record.clients, record.client_steps, strict=True))
        B = {j: n / T[j] for j, n in zip(record.clients, record.client_samples, strict=True)}
        work = Work(T, B, cut)
        if change.plain:
            time = seconds(clock, Timing("plain"), work, devices, model.shape, p_s, whole)
        else:
            front = sum(model.weights[: cut + 1]) if fronts else 0
            time = seconds(clock, timing, work, devices, model.shape, p_s, front)
        again.append(replace(record, sim_seconds=time))
    return again


def _of_scheme(was: Mapping[str, Any]) -> tuple[Timing, bool]:
    """Return how a scheme's seconds add up, and whether fronts travel, for a run of a version that did not note it."""
    traits = text.parse({name: was[name] for name in ("scheme", "protocol")}).part("scheme").traits
    return traits.timing, traits.carry != "keep"
