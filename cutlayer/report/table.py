"""The table of a comparison: for the terminal, for Markdown, for HTML and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict

import rich.box
import rich.table

from cutlayer.report.paired import Difference, Interval, differences
from cutlayer.report.summary import Row, Table

SCORES = {"best": "best accuracy", "final": "final accuracy", "last_ten": "last ten"}
WHICH = {"best": "best round", "final": "last round", "last_ten": "mean of the last ten rounds"}
HEADINGS = ("R", "speed-up", "T", "KiB per client", "seconds")
PAIRED = ("difference", "points", "rounds")
OWN = {"accuracy": "final", "f1": "F1", "mcc": "MCC", "auc": "AUC", "worst_tenth": "worst tenth"}


def headings(table: Table) -> tuple[str, ...]:
    """Return the column headings; a few more where clients were tested on rows of their own."""
    return ("method", SCORES[table.measure.score], *HEADINGS, *(OWN[name] for name in _own(table)))


def _own(table: Table) -> list[str]:
    return [name for name in OWN if any(name in row.own for row in table.rows)]


def cells(row: Row, table: Table) -> tuple[str, ...]:
    """Return one row as text."""
    best = "-" if math.isnan(row.score) else f"{100 * row.score:.2f} ± {100 * row.score_std:.2f}"
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
    rows = "the clients' own rows" if _own(table) else "validation rows" if table.validation else "the test set"
    others = {row.baseline for row in table.rows} - {table.baseline}
    against = f"; speed-up: over {table.baseline}, or {', '.join(sorted(others))} in its block" if others else ""
    return (
        f"{SCORES[table.measure.score]}: top-1 on {rows} in %, {WHICH[table.measure.score]}, "
        f"mean ± std over {seeds} seed{'s' * (seeds != 1)}; "
        f"R: rounds to {table.goal}{against}; "
        "T: simulated time to it on the clients' devices; "
        "KiB per client: both ways, a round; seconds: a run's wall time"
        + ("; final and on: the last round's, pooled over all clients, each on its own rows" if _own(table) else "")
    )


def paired_cells(one: Difference) -> tuple[str, str, str]:
    """Return a paired difference as text."""
    return f"{one.label} - {one.baseline}", plus_minus(one.score, 100), plus_minus(one.rounds)


def plus_minus(found: Interval | None, factor: float = 1.0) -> str:
    """Return an interval as text; one that excludes zero is marked with a star."""
    if found is None:
        return "-"
    return f"{factor * found.mean:+.2f} ± {factor * found.half:.2f}{'*' * found.excludes_zero}"


def paired_caption(table: Table) -> str:
    seeds = max((len(row.outcomes) for row in table.rows), default=0)
    return (
        f"differences seed by seed, mean and 95 % t interval over {seeds} seeds; * excludes zero. points: of "
        f"{SCORES[table.measure.score]}, in %; rounds: to the target, where all seeds of both reached it"
    )


def for_terminal(table: Table) -> list[rich.table.Table]:
    """Return the table and, with two seeds or more, the paired differences."""
    names = headings(table)
    tables = [_rich(names, [cells(row, table) for row in table.rows], caption(table))]
    if paired := differences(table):
        tables.append(_rich(PAIRED, [paired_cells(one) for one in paired], paired_caption(table)))
    return tables


def _rich(names: Sequence[str], rows: Sequence[Sequence[str]], words: str) -> rich.table.Table:
    out = rich.table.Table(box=rich.box.SIMPLE_HEAD, caption=words, caption_justify="left")
    for index, heading in enumerate(names):
        out.add_column(heading, justify="left" if index == 0 else "right", no_wrap=index > 1)
    for row in rows:
        out.add_row(*row)
    return out


def for_markdown(table: Table) -> str:
    """Return the table and, with two seeds or more, the paired differences."""
    text = markdown(headings(table), [cells(row, table) for row in table.rows])
    paired = differences(table)
    return f"{text}\n{markdown(PAIRED, [paired_cells(one) for one in paired])}" if paired else text


def markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [" | ".join(names), " | ".join(["---"] + ["---:"] * (len(names) - 1))]
    lines += [" | ".join(row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def for_json(table: Table) -> str:
    """Return the numbers as JSON, without the rounds; not-a-number becomes null."""
    rows = []
    for row in table.rows:
        plain = {key: value for key, value in asdict(row).items() if key != "outcomes"}
        plain = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in plain.items()}
        rows.append({**plain, "bests": [None if math.isnan(o.best) else o.best for o in row.outcomes]})
    target = None if math.isnan(table.target) else table.target
    found = {"baseline": table.baseline, "target": target, "score": table.measure.score, "rows": rows}
    return json.dumps({**found, "differences": [asdict(one) for one in differences(table)]}, indent=1)
