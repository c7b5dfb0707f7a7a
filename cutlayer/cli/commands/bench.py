"""`cutlayer bench`: how fast clients are simulated here, against centralised training and against naive code."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import rich.box
import rich.table

from cutlayer._version import __version__
from cutlayer.bench import accelerator, sections
from cutlayer.bench.cases import CASES, measurable
from cutlayer.bench.sections import Row
from cutlayer.cli.bench import NETWORK, SECTIONS
from cutlayer.cli.output import console, print_json
from cutlayer.core.extras import needs
from cutlayer.errors import expect, unknown

BAR = 16  # characters of a bar that stands for a ratio of 2


def run(args: argparse.Namespace) -> int:
    everything = NETWORK if args.net else SECTIONS
    chosen, models = args.only or list(everything), args.models or measurable()
    for given, valid, what in ((chosen, (*SECTIONS, *NETWORK), "section"), (models, CASES, "model")):
        for name in given:
            if name not in valid:
                raise unknown(what, name, valid)
    repeats = args.repeats if args.repeats is not None else 1 if args.quick else 7
    expect(repeats >= 1, "repeats", repeats, "a whole number, at least 1")
    if args.device is not None:
        return _on_device(args, models, repeats)
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
    if not args.json:
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
        if not args.json:
            console.print(_table(name, rows))
    found["minutes"] = (time.perf_counter() - began) / 60
    if args.json:
        print_json(found)
    else:
        console.print(f"{found['minutes']:.1f} minutes")
    return 0


def _on_device(args: argparse.Namespace, models: list[str], repeats: int) -> int:
    expect(not args.only and not args.net, "--device", args.device, "no --only and no --net beside it")
    device, rows = accelerator.accelerator(args.device), list[Row]()
    about = accelerator.about(device)
    with console.status(f"measuring on {device}"):
        for row in accelerator.rows(models, device, args.quick, repeats):
            rows.append(row)
            print(f"{row['model']} done", file=sys.stderr, flush=True)
    if args.json:
        print_json({"machine": about, "quick": args.quick, "repeats": repeats, "models": rows})
    else:
        console.print(accelerator.block(about, rows, __version__), soft_wrap=True, markup=False, highlight=False)
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
