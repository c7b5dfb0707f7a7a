"""`cutlayer clock`: what a run's time would have been on other devices, or with another cut."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import rich.box
import rich.table

from cutlayer.cli.output import console, print_json
from cutlayer.core.files import as_path
from cutlayer.errors import StoreError, unknown
from cutlayer.experiment import comparison
from cutlayer.registry import PROFILES
from cutlayer.report.measure import Measure
from cutlayer.report.retime import WhatIf, retimed
from cutlayer.report.summary import Outcome, Row, Table, Trained, outcome, tabulate
from cutlayer.report.table import duration


def run(args: argparse.Namespace) -> int:
    out = as_path("folder", args.folder)
    if not out.is_dir():
        raise StoreError(f"{out}: no such folder")
    if args.profile is not None and args.profile not in PROFILES:
        raise unknown("profile", args.profile, PROFILES)
    measure = Measure(target=args.target)
    change = WhatIf(args.profile, args.cut, args.kappa, args.count_sync, args.sequential, args.plain)
    before, after = [], []
    for label, runs in _runs(out):
        known = [(path, outcome(path, seed)) for seed, path in runs if path.exists()]
        again = [Outcome(o.seed, retimed(path, o.rounds, change), o.status) for path, o in known]
        before.append(Trained(label, [o for _, o in known]))
        after.append(Trained(label, again))
    old, new = tabulate(before, measure), tabulate(after, measure)
    if args.json:
        target = None if math.isnan(new.target) else new.target
        plain = [_figures(one, other) for one, other in zip(old.rows, new.rows, strict=True)]
        print_json({"target": target, "rows": plain})
    else:
        console.print(_table(old, new))
    return 0


def _runs(out: Path) -> list[tuple[str, list[tuple[int, Path]]]]:
    """Every method, with the folder of each seed."""
    if (out / "compare.toml").exists():
        both = comparison.read(out)
        return [(m.label, [(seed, comparison.folder(out, m, seed)) for seed in both.seeds]) for m in both.methods]
    if (out / "config.toml").exists():
        return [(out.resolve().name, [(0, out)])]
    raise StoreError(f"{out} holds neither a run nor a comparison")


def _each(row: Row) -> float | None:
    """Mean simulated seconds of a round, over all rounds of all seeds."""
    times = [r.sim_seconds for o in row.outcomes for r in o.rounds if r.sim_seconds is not None]
    return sum(times) / len(times) if times else None


def _figures(old: Row, new: Row) -> dict[str, Any]:
    return {
        "label": new.label,
        "rounds_to_target": new.rounds_to_target,
        "T": new.time_to_target,
        "T_as_run": old.time_to_target,
        "seconds_per_round": _each(new),
        "seconds_per_round_as_run": _each(old),
    }


def _table(old: Table, new: Table) -> rich.table.Table:
    unknown_yet = f"the target ({new.baseline} has none yet)"
    goal = unknown_yet if math.isnan(new.target) else f"{100 * new.target:.2f} % accuracy"
    out = rich.table.Table(
        box=rich.box.SIMPLE_HEAD,
        caption=f"R, T: rounds and simulated time to {goal}, mean over seeds; "
        "as run: with the devices, cut and clock of the run",
        caption_justify="left",
    )
    out.add_column("method", style="bold")
    for heading in ("R", "T", "speed-up", "a round", "T as run", "a round as run"):
        out.add_column(heading, justify="right")
    reference = next(row.time_to_target for row in new.rows if row.label == new.baseline)
    for one, row in zip(old.rows, new.rows, strict=True):
        times = [row.time_to_target, _each(row), one.time_to_target, _each(one)]
        T, each, was, was_each = ("-" if time is None else duration(time) for time in times)
        ratio = "-" if not reference or not row.time_to_target else f"{reference / row.time_to_target:.2f}x"
        late = f">{row.budget}" if row.budget else "-"  # "-": no round yet
        R = late if row.rounds_to_target is None else f"{row.rounds_to_target:.1f}"
        out.add_row(row.label, R, T, ratio, each, was, was_each)
    return out
