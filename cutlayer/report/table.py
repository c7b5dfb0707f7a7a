"""The table of a comparison: for the terminal, for Markdown, for HTML and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import rich.box
import rich.table

from cutlayer.report.summary import SHARE, Row, Table

HEADINGS = ("method", "best accuracy", "R", "speed-up", "T", "KiB per client", "seconds")
OWN = {"accuracy": "final", "f1": "F1", "mcc": "MCC", "auc": "AUC", "worst_tenth": "worst tenth"}


def headings(table: Table) -> tuple[str, ...]:
    """Return the column headings; a few more where clients were tested on rows of their own."""
    return (*HEADINGS, *(OWN[name] for name in _own(table)))


def _own(table: Table) -> list[str]:
    return [name for name in OWN if any(name in row.own for row in table.rows)]


def cells(row: Row, table: Table) -> tuple[str, ...]:
    """Return one row as text."""
    best = "-" if math.isnan(row.best) else f"{100 * row.best:.2f} ± {100 * row.best_std:.2f}"
    if row.diverged:
        best += f" ({row.diverged} diverged)"
    needed = f">{row.budget}" if row.rounds_to_target is None else f"{row.rounds_to_target:.1f}"
    speedup = "-" if row.speedup is None else f"{row.speedup:.2f}x"
    time = "-" if row.time_to_target is None else duration(row.time_to_target)
    kib = "-" if math.isnan(row.bytes_per_client) else f"{row.bytes_per_client / 1024:,.0f}"
    percent = ("accuracy", "worst_tenth")
    own = (
        ("-" if name not in row.own else f"{100 * row.own[name]:.2f}" if name in percent else f"{row.own[name]:.3f}")
        for name in _own(table)
    )
    return row.label, best, needed, speedup, time, kib, f"{row.seconds:.1f}", *own


def duration(seconds: float) -> str:
    """Return simulated time in the unit that reads best."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def caption(table: Table) -> str:
    """Return what the columns mean."""
    seeds = max((len(row.outcomes) for row in table.rows), default=0)
    at = "" if math.isnan(table.target) else f", {100 * table.target:.2f} %"
    rows = "the clients' own rows" if _own(table) else "the test set"
    return (
        f"best accuracy: top-1 on {rows} in %, best round, mean ± std over {seeds} seed{'s' * (seeds != 1)}; "
        f"R: rounds to {SHARE:.0%} of {table.baseline}'s best{at}; "
        "T: simulated time to it on the clients' devices; "
        "KiB per client: both ways, a round; seconds: a run's wall time"
        + ("; final and on: the last round's, pooled over all clients, each on its own rows" if _own(table) else "")
    )


def for_terminal(table: Table) -> rich.table.Table:
    out = rich.table.Table(box=rich.box.SIMPLE_HEAD, caption=caption(table), caption_justify="left")
    for index, heading in enumerate(headings(table)):
        out.add_column(heading, justify="left" if index == 0 else "right", no_wrap=index > 1)
    for row in table.rows:
        out.add_row(*cells(row, table))
    return out


def for_markdown(table: Table) -> str:
    names = headings(table)
    lines = [" | ".join(names), " | ".join(["---"] + ["---:"] * (len(names) - 1))]
    lines += [" | ".join(cells(row, table)) for row in table.rows]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def for_json(table: Table) -> str:
    """Return the numbers as JSON, without the rounds; not-a-number becomes null."""
    rows = []
    for row in table.rows:
        plain = {key: value for key, value in asdict(row).items() if key != "outcomes"}
        plain = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in plain.items()}
        rows.append({**plain, "bests": [None if math.isnan(o.best) else o.best for o in row.outcomes]})
    target = None if math.isnan(table.target) else table.target
    return json.dumps({"baseline": table.baseline, "target": target, "rows": rows}, indent=1)
