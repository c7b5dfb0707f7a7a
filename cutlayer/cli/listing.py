"""`cutlayer list`: what there is to choose from, one line each, and the paper it comes from."""

from __future__ import annotations

import argparse
from typing import Any

import rich.box
import rich.table

from cutlayer.cli.progress import console
from cutlayer.data import PARTITIONS
from cutlayer.data.tasks import TASKS
from cutlayer.errors import unknown
from cutlayer.methods import NAMED
from cutlayer.models import MODELS
from cutlayer.parts import OPTIMIZERS, SCHEMES, UPDATES

Lines = list[tuple[str, str, str]]


def add(commands: Any) -> None:
    command = commands.add_parser("list", help="tasks, models, schemes, updates, partitions, ...", description=__doc__)
    command.add_argument("what", nargs="?", metavar="KIND", help=f"one of: {', '.join(kinds())} (default: all)")
    command.set_defaults(run=_list)


def kinds() -> dict[str, Lines]:
    """Every table, as (name, line, paper)."""
    tables = {
        "models": MODELS,
        "schemes": SCHEMES,
        "updates": UPDATES,
        "optimizers": OPTIMIZERS,
        "partitions": PARTITIONS,
    }
    lines: dict[str, Lines] = {"tasks": [(name, t.line, t.source) for name, t in TASKS.items()]}
    lines |= {kind: [(name, p.line, p.paper) for name, p in table.items()] for kind, table in tables.items()}
    return {**lines, "methods": [(name, f"{m.label}: {m.line}", "-") for name, m in NAMED.items()]}


def _list(args: argparse.Namespace) -> int:
    everything = kinds()
    if args.what is not None and args.what not in everything:
        raise unknown("kind", args.what, everything)
    for kind, lines in everything.items():
        if args.what in (None, kind):
            out = rich.table.Table(title=kind, title_justify="left", box=rich.box.SIMPLE_HEAD, show_header=False)
            out.add_column(style="bold", no_wrap=True)
            out.add_column(ratio=1)
            out.add_column(style="dim")
            for line in lines:
                out.add_row(*line)
            console.print(out)
    return 0
