"""`cutlayer costs`: what each scheme costs the server, measured for several numbers of clients."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

import rich.box
import rich.table

from cutlayer.cli.flags import value
from cutlayer.cli.output import console, print_json
from cutlayer.core.threads import torch_threads
from cutlayer.errors import ContractError, expect, unknown
from cutlayer.experiment.config import complete
from cutlayer.registry import OPTIMIZERS
from cutlayer.schemes import costs

MOST = 1000
COLUMNS = {"memory": ".1f", "compute": ".1f", "latency": "d"}


def run(args: argparse.Namespace) -> int:
    schemes = [_scheme(text) for text in args.schemes]
    if args.optimizer not in OPTIMIZERS:
        raise unknown("optimizer", args.optimizer, OPTIMIZERS)
    expect(all(1 <= m <= MOST for m in args.clients), "clients", args.clients, f"whole numbers from 1 to {MOST}")
    expect(args.batch_size >= 2, "batch_size", args.batch_size, "a whole number, at least 2")
    optimizer = OPTIMIZERS[args.optimizer].make()
    with torch_threads(), console.status("measuring") as status:
        found = []
        for name, given in schemes:
            status.update(f"measuring {name}")
            found.append([costs.measure(name, m, optimizer, args.batch_size, given=given) for m in args.clients])
    if args.json:
        print_json([asdict(cost) for row in found for cost in row])
    else:
        console.print(_table(found, args.clients))
    return 0


def _scheme(text: str) -> tuple[str, dict[str, Any]]:
    """A scheme's name and its parameters, from NAME or NAME(parameter=value, ...)."""
    name, _, inside = text.removesuffix(")").partition("(")
    given = value(f"{{{inside}}}")
    if text.endswith(")") != ("(" in text) or not isinstance(given, dict):
        raise ContractError(f"scheme = {text!r}: expected a name, or a name with parameters such as 'smofi(alpha=-1)'")
    complete("scheme", {"name": name, **given})
    return name, given


def _table(found: list[list[costs.Cost]], clients: list[int]) -> rich.table.Table:
    out = rich.table.Table(
        title=f"against {', '.join(map(str, clients))} clients",
        box=rich.box.SIMPLE_HEAD,
        caption="memory: server halves held; compute: client batches trained a step; latency: passes that must follow "
        "one another; ms: that step here, one core; KiB: sent a client and step, both ways",
        caption_justify="left",
    )
    out.add_column("scheme", style="bold")
    for heading in (*COLUMNS, "ms", "KiB"):
        out.add_column(heading, justify="right")
    for row in found:
        cells = [" ".join(format(getattr(cost, name), form) for cost in row) for name, form in COLUMNS.items()]
        ms = " ".join(f"{1000 * cost.seconds:.0f}" for cost in row)
        out.add_row(row[0].scheme, *cells, ms, f"{row[0].bytes / 1024:.0f}")
    return out
