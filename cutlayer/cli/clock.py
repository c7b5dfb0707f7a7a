"""`cutlayer clock`: what a run's time would have been on other devices, or with another cut."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import rich.box
import rich.table

from cutlayer import compare
from cutlayer.cli.progress import console
from cutlayer.devices import PROFILES
from cutlayer.errors import StoreError, expect, unknown
from cutlayer.files import write_aside
from cutlayer.report.retime import WhatIf, retimed
from cutlayer.report.summary import Outcome, Row, Table, outcome, tabulate
from cutlayer.report.table import duration

ABOUT = """\
Count the simulated time of a run or comparison again, from its journal and without training: on other devices, at
another cut, with a faster or slower server. T is the time to the target accuracy, 90 % of FedAvg's best (of the run's
own best, where there is only one method).

examples:
  cutlayer clock runs/demo                          T with the devices of the run
  cutlayer clock runs/demo --profile lte            on measured 4G
  cutlayer clock runs/demo --profile 3g --cut 1 --count-sync
  cutlayer clock runs/demo --plain                  had the whole model been sent and averaged instead
"""


def add(commands: Any) -> None:
    command = commands.add_parser("clock", help="a run's simulated time on other devices", description=ABOUT)
    command.add_argument("folder", metavar="RUN", help="the folder of a run or a comparison")
    profiles = "; ".join(f"{name}: {profile.line}" for name, profile in PROFILES.items())
    command.add_argument("--profile", metavar="NAME", help=f"the clients' devices - {profiles}")
    command.add_argument("--cut", type=int, metavar="L", help="the client's last block, as if it learned the same")
    command.add_argument("--kappa", type=float, metavar="K", help="the server is K times as fast as a client")
    command.add_argument("--count-sync", action="store_true", default=None, help="count the fronts' way down and up")
    command.add_argument("--sequential", metavar="HOW", help="SFLV2: strict, or paper_like")
    command.add_argument("--plain", action="store_true", help="as plain federated learning: nothing is cut")
    command.add_argument("--target", type=float, metavar="ACCURACY", help="time to this accuracy instead")
    command.add_argument("--out", metavar="FILE", help="write the figures as JSON")
    command.set_defaults(run=_clock)


def _clock(args: argparse.Namespace) -> int:
    out = Path(args.folder)
    if not out.is_dir():
        raise StoreError(f"{out}: no such folder")
    if args.profile is not None and args.profile not in PROFILES:
        raise unknown("profile", args.profile, PROFILES)
    expect(args.target is None or 0 < args.target <= 1, "target", args.target, "an accuracy in (0, 1]")
    if args.out and not Path(args.out).resolve().parent.is_dir():
        raise StoreError(f"{args.out}: no such folder to write it to")
    change = WhatIf(args.profile, args.cut, args.kappa, args.count_sync, args.sequential, args.plain)
    before, after = [], []
    for label, runs in _runs(out):
        known = [(path, outcome(path, seed)) for seed, path in runs if path.exists()]
        before.append((label, [o for _, o in known]))
        after.append((label, [Outcome(o.seed, retimed(path, o.rounds, change), o.status) for path, o in known]))
    old, new = tabulate(before, args.target), tabulate(after, args.target)
    console.print(_table(old, new))
    if args.out:
        target = None if math.isnan(new.target) else new.target
        plain = [_figures(one, other) for one, other in zip(old.rows, new.rows, strict=True)]
        write_aside(Path(args.out), json.dumps({"target": target, "rows": plain}, indent=1).encode())
        console.print(f"wrote {args.out}", markup=False)
    return 0


def _runs(out: Path) -> list[tuple[str, list[tuple[int, Path]]]]:
    """Every method, with the folder of each seed."""
    if (out / "compare.toml").exists():
        both = compare.read(out)
        return [(m.label, [(seed, compare.folder(out, m, seed)) for seed in both.seeds]) for m in both.methods]
    if (out / "config.toml").exists():
        return [(out.resolve().name, [(0, out)])]
    raise StoreError(f"{out} holds neither a run nor a comparison")


def _each(row: Row) -> float | None:
    """Simulated seconds a round, over all rounds of all seeds."""
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
        late = f">{row.budget}" if row.budget else "-"  # or nothing is there yet
        R = late if row.rounds_to_target is None else f"{row.rounds_to_target:.1f}"
        out.add_row(row.label, R, T, ratio, each, was, was_each)
    return out
