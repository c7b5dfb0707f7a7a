"""`cutlayer report`: the result of a run or of a comparison."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutlayer.cli.output import console
from cutlayer.core.files import as_path
from cutlayer.errors import StoreError
from cutlayer.experiment import run_directory
from cutlayer.report import page, table
from cutlayer.report.measure import Measure
from cutlayer.report.table import duration
from cutlayer.track.names import asked


def run(args: argparse.Namespace) -> int:
    out, trackers = as_path("folder", args.folder), asked(args.to, "to")
    measure = Measure(args.score.replace("-", "_"), args.target, args.share, args.baseline)
    code = show(out, args.quiet, args.json, Wanted(measure, tuple(args.curves or ())))
    if trackers:
        from cutlayer.track.tracked import export  # here: it loads torch

        places = export(out, trackers)
        if not (args.quiet or args.json):
            console.print("tracked in " + ", ".join(str(place) for place in places), soft_wrap=True, markup=False)
    return code


def _result(summary: dict[str, Any]) -> str:
    """One finished run, in a few lines."""
    best, final = (_percent(summary[key]) for key in ("best_accuracy", "final_accuracy"))
    simulated = f"; simulated {duration(summary['sim_seconds'])}" if summary.get("sim_seconds") else ""
    tested = f"in round {summary['best_round']} of {summary['rounds']}"
    if summary["best_round"] is None:
        tested = f"after {summary['rounds']} rounds: never tested"
    mib = (summary["bytes_up"] + summary["bytes_down"]) / 2**20
    scores = f"best accuracy   {best} {tested}\nfinal accuracy  {final}"
    if "final_loss" in summary:  # the labels are not classes
        metric = f", metric {summary['final_metric']:.4g}" if "final_metric" in summary else ""
        scores = f"final loss      {summary['final_loss']:.4g}{metric} after {summary['rounds']} rounds"
    return (
        f"{scores}; {mib:.1f} MiB sent\n"
        f"time            {summary['seconds']:.1f} seconds{simulated}\n"
        f"weights         sha256 {summary.get('sha256', '-')}"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


@dataclass(frozen=True)
class Wanted:
    """What a report shows: what is measured, and the quantities of its learning curves."""

    measure: Measure = field(default_factory=Measure)
    curves: tuple[str, ...] = ()


def show(out: Path, quiet: bool, as_json: bool = False, wanted: Wanted | None = None) -> int:
    """Print the result, and write the report's files into the run's folder."""
    if not out.is_dir():
        raise StoreError(f"{out}: no such folder")
    wanted = wanted or Wanted()
    figures, files = page.write(out, wanted.measure, wanted.curves)
    summary = run_directory.read_summary(out)
    if as_json:
        print(json.dumps({**json.loads(table.for_json(figures)), "summary": summary}, indent=1))
    elif not quiet:
        if summary is None:
            console.print(*table.for_terminal(figures))
        else:
            console.print(_result(summary), soft_wrap=True, markup=False)
        console.print("wrote " + ", ".join(str(path) for path in files), soft_wrap=True, markup=False)
    return 0
