"""`cutlayer bench`: how fast clients are simulated here, against centralised training and against naive code."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import rich.box
import rich.table

from cutlayer.bench import sections
from cutlayer.bench.cases import CASES
from cutlayer.bench.sections import Row
from cutlayer.cli.progress import console
from cutlayer.errors import StoreError, expect, unknown
from cutlayer.extras import needs
from cutlayer.files import write_aside

ABOUT = """\
Measure how fast this machine simulates clients. Everything is timed side by side in one process, turn by turn, and
the figures are medians of ratios with their quartiles: 1.00 is as fast as the other, 2.00 twice as fast.

  throughput   over centralised training of the same samples: plain PyTorch, and tuned (channels_last, fused SGD); and
               over a naive simulation: a deepcopied module and a torch optimizer for every client
  schemes      every scheme over plain centralised training
  fusion       what SMoFi's fusion adds to a step, and the share of a step that updates and fuses
  overhead     the share of a round that is neither training nor testing
  clients      seconds of a round against selected and registered clients
  memory       bytes for each server-half parameter and selected client
  processes    two ranks against one, one thread each

With --net, over the loopback interface and mutual TLS instead:

  frames       bytes beyond those of the tensors, in percent
  trip         a step of 1 MiB each way against a bare gRPC stream, to the same other process
  crowd        50 client processes with a tiny model: milliseconds of a step beyond its computing, for each client

examples:
  cutlayer bench --quick                              under a minute, rough
  cutlayer bench --out bench.json                     everything; half an hour on two cores
  cutlayer bench --only throughput --models mlp lstm
  cutlayer bench --net
"""
SECTIONS = ("throughput", "schemes", "fusion", "overhead", "clients", "memory", "processes")
NETWORK = ("frames", "trip", "crowd")
BAR = 16  # characters of a bar that stands for a ratio of 2


def add(commands: Any) -> None:
    command = commands.add_parser("bench", help="how fast clients are simulated on this machine", description=ABOUT)
    command.add_argument("--quick", action="store_true", help="smaller rounds, fewer turns: under a minute")
    command.add_argument("--only", nargs="+", metavar="SECTION", help=f"some of: {', '.join((*SECTIONS, *NETWORK))}")
    command.add_argument("--net", action="store_true", help="measure the network instead")
    command.add_argument("--models", nargs="+", metavar="NAME", help=f"for throughput, some of: {', '.join(CASES)}")
    command.add_argument("--repeats", type=int, metavar="N", help="turns (default: 7; quick: 1)")
    command.add_argument("--out", metavar="FILE", help="write the figures as JSON")
    command.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> int:
    everything = NETWORK if args.net else SECTIONS
    chosen, models = args.only or list(everything), args.models or list(CASES)
    for given, valid, what in ((chosen, (*SECTIONS, *NETWORK), "section"), (models, CASES, "model")):
        for name in given:
            if name not in valid:
                raise unknown(what, name, valid)
    repeats = args.repeats if args.repeats is not None else 1 if args.quick else 7
    expect(repeats >= 1, "repeats", repeats, "a whole number, at least 1")
    if args.out and (not Path(args.out).resolve().parent.is_dir() or Path(args.out).is_dir()):
        raise StoreError(f"{args.out}: expected a file in a folder that there is")
    began, quick = time.perf_counter(), args.quick
    found: dict[str, Any] = {"machine": sections.machine(), "quick": quick, "repeats": repeats}
    makers: dict[str, Callable[[], Iterable[Row]]] = {
        "throughput": lambda: sections.throughput(models, quick, repeats),
        "schemes": lambda: sections.schemes(quick, repeats),
        "fusion": lambda: sections.fusion(quick, repeats),
        "overhead": lambda: sections.overhead(quick, repeats),
        "clients": lambda: sections.clients(quick, repeats),
        "memory": lambda: sections.memory(quick),
        "processes": lambda: sections.processes(quick, repeats),
    }
    if set(chosen) & set(NETWORK):
        needs("net")
        from cutlayer.bench import wire

        network = {"frames": wire.frames, "trip": lambda: wire.trips(repeats), "crowd": lambda: wire.many(repeats)}
        makers |= network
    console.print("  ".join(f"{key} {value}" for key, value in found["machine"].items()), highlight=False)
    for name in chosen:
        rows: list[Row] = []
        with console.status(f"measuring {name}") as status:
            for row in makers[name]():
                rows.append(row)
                done = f"{name}: {next(iter(row.values()))} done"
                status.update(f"measuring {done}")
                if not console.is_terminal:
                    print(done, file=sys.stderr, flush=True)
        found[name] = rows
        console.print(_table(name, rows))
    found["minutes"] = (time.perf_counter() - began) / 60
    console.print(f"{found['minutes']:.1f} minutes")
    if args.out:
        write_aside(Path(args.out), json.dumps(found, indent=1).encode())
        console.print(f"wrote {args.out}")
    return 0


def _table(name: str, rows: list[Row]) -> rich.table.Table:
    """A line for every ratio, with its quartiles, its aim and a bar; plain figures in columns before it."""
    table = rich.table.Table(title=name, title_justify="left", box=rich.box.SIMPLE, header_style="")
    figures = [key for key, value in rows[0].items() if not isinstance(value, dict) and key != "backend"]
    ratios = [key for key, value in rows[0].items() if isinstance(value, dict)]
    for key in figures:
        table.add_column(key.replace("_", " "), justify="left" if isinstance(rows[0][key], str) else "right")
    for heading in (
        ("of" if name in ("fusion", "overhead", "crowd") else "over", "", "quartiles", "aim", "") if ratios else ()
    ):
        table.add_column(heading, justify="right" if heading in ("", "aim") else "left")
    if ratios:
        table.columns[-1].justify = "left"
    elif name == "clients":
        table.add_column("")
    longest = max((row["seconds"] for row in rows if "seconds" in row), default=1.0)
    for row in rows:
        cells = [_cell(row[key]) for key in figures]
        if name == "clients":
            cells.append("█" * max(1, round(2 * BAR * row["seconds"] / longest)))
        for key in ratios:
            found = row[key]
            aim = "-" if found.get("aim") is None else f"{found['aim']:g}"
            bar = "█" * max(0, min(3 * BAR // 2, round(BAR * found["median"] / 2)))
            quartiles = f"{found['low']:.2f} to {found['high']:.2f}"
            cells += [key.replace("_", " "), f"{found['median']:.2f}", quartiles, aim, bar]
            table.add_row(*cells)
            cells = [""] * len(figures)
        if not ratios:
            table.add_row(*cells)
    return table


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
