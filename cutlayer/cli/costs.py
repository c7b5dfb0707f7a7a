"""`cutlayer costs`: what each scheme costs the server, measured against the number of clients."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rich.box
import rich.table

from cutlayer import costs
from cutlayer.cli.progress import console
from cutlayer.errors import StoreError, expect, unknown
from cutlayer.files import write_aside
from cutlayer.parts import OPTIMIZERS, SCHEMES
from cutlayer.workers import one_thread

ABOUT = """\
Open a round of every scheme with m clients, feed it activations, and measure what it costs the server: memory in
server halves, compute in client batches a step, latency in passes that must follow one another, and seconds.
The measured counterpart of Table 1 in the CycleSL paper; takes a few seconds.

examples:
  cutlayer costs
  cutlayer costs --schemes fedavg smofi cyclesfl --clients 10 100 --optimizer adam --out costs.json
"""
MOST = 1000
COLUMNS = {"memory": ".1f", "compute": ".1f", "latency": "d"}


def add(commands: Any) -> None:
    command = commands.add_parser("costs", help="what each scheme costs the server, measured", description=ABOUT)
    command.add_argument("--schemes", nargs="+", metavar="NAME", default=list(SCHEMES), help="which (default: all)")
    command.add_argument("--clients", nargs="+", type=int, metavar="M", default=[2, 4, 8, 16], help="2 4 8 16")
    command.add_argument("--optimizer", metavar="NAME", default="sgd", help="whose memory is counted (default: sgd)")
    command.add_argument("--batch-size", type=int, metavar="N", default=32, help="samples a step (default: 32)")
    command.add_argument("--out", metavar="FILE", help="write the figures as JSON")
    command.set_defaults(run=_costs)


def _costs(args: argparse.Namespace) -> int:
    for name in args.schemes:
        if name not in SCHEMES:
            raise unknown("scheme", name, SCHEMES)
    if args.optimizer not in OPTIMIZERS:
        raise unknown("optimizer", args.optimizer, OPTIMIZERS)
    expect(all(1 <= m <= MOST for m in args.clients), "clients", args.clients, f"whole numbers from 1 to {MOST}")
    expect(args.batch_size >= 2, "batch_size", args.batch_size, "a whole number, at least 2")
    if args.out and not Path(args.out).resolve().parent.is_dir():
        raise StoreError(f"{args.out}: no such folder to write it to")
    optimizer = OPTIMIZERS[args.optimizer].make()
    with one_thread(), console.status("measuring") as status:
        found = []
        for name in args.schemes:
            status.update(f"measuring {name}")
            found.append([costs.measure(name, m, optimizer, args.batch_size) for m in args.clients])
    console.print(_table(found, args.clients))
    if args.out:
        plain = [asdict(cost) for row in found for cost in row]
        write_aside(Path(args.out), json.dumps(plain, indent=1).encode())
        console.print(f"wrote {args.out}", markup=False)
    return 0


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
