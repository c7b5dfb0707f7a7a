"""`cutlayer list`: everything there is to choose from, one line each, with the paper it comes from."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import rich.box
import rich.table

from cutlayer.cli import cuts
from cutlayer.cli.output import add_json, console, print_json
from cutlayer.cli.parser import later
from cutlayer.errors import unknown
from cutlayer.experiment.methods import NAMED
from cutlayer.experiment.presets import PRESETS
from cutlayer.registry import (
    LOCALS,
    LR_SCHEDULES,
    MODELS,
    OPTIMIZERS,
    PARTITIONS,
    PEFTS,
    PROFILES,
    SCHEMES,
    TASKS,
    UPDATES,
    Part,
)
from cutlayer.registry.models import hugging_face

ABOUT = """\
What there is to choose from, one line each, and the paper it comes from. `list cuts` shows, for every cut of a model,
the output there, weights and multiply-accumulates on each side, and kilobits a sample.

examples:
  cutlayer list schemes
  cutlayer list cuts --model resnet18 --input 3x32x32
  cutlayer list cuts --task cifar10 --model resnet18 --model.stem cifar --data-dir DATA
  cutlayer list cuts --task digits --leakage                 and what each cut gives away of the input
"""
Lines = list[tuple[str, ...]]
COSTED = ("schemes", "locals", "updates")
LEGEND = (
    "server memory in server halves; sends: per client and step, without the front's way down and up once a round.\n"
    "m: clients of a round; o: moments of the optimizer, SGD 1, Adam 2; A: bytes of a batch's activations (the labels\n"
    "come on top); W, Wc: the whole model, the client half. `cutlayer costs` measures the schemes.\n"
    "SMoFi under Adam also keeps one second moment of each client that has finished its round."
)


def add(commands: Any) -> None:
    command = commands.add_parser(
        "list",
        help="tasks, models, schemes, updates, partitions, presets, the cuts of a model, ...",
        description=ABOUT,
        usage="cutlayer list [KIND] [FLAGS of list cuts]",
    )
    names = ", ".join((*kinds(), "cuts"))
    command.add_argument("what", nargs="?", metavar="KIND", help=f"one of: {names} (default: all but cuts)")
    add_json(command, "the names")
    command.set_defaults(run=_list)
    cuts.add_flags(command)


def kinds() -> dict[str, Lines]:
    """Every table as lines of (name, line, paper); for `COSTED` tables, memory and traffic come before the paper."""
    tables: dict[str, Mapping[str, Part]] = {
        "models": MODELS,
        "pefts": PEFTS,
        "schemes": SCHEMES,
        "locals": LOCALS,
        "updates": UPDATES,
        "optimizers": OPTIMIZERS,
        "lr_schedules": LR_SCHEDULES,
        "partitions": PARTITIONS,
    }
    lines: dict[str, Lines] = {"tasks": [(name, t.line, t.source) for name, t in TASKS.items()]}
    for kind, table in tables.items():  # and models of transformers, which have no list
        costs = kind in COSTED
        lines[kind] = [
            (name, p.line, *((p.memory or "-", p.sends or "-") if costs else ()), p.paper) for name, p in table.items()
        ]
    lines["models"].append(("hf:NAME", f"{hugging_face('').line}", "-"))
    lines["profiles"] = [(name, line, "-") for name, line in PROFILES.items()]
    lines["methods"] = [(name, f"{m.label}: {m.line}", "-") for name, m in NAMED.items()]
    return {**lines, "presets": [(name, p.line, p.paper) for name, p in PRESETS.items()]}


def _list(args: argparse.Namespace) -> int:
    everything = kinds()
    if args.what == "cuts":
        return later("cuts")(args)
    if args.what is not None and args.what not in everything:
        raise unknown("kind", args.what, (*everything, "cuts"))
    if args.json:
        print_json({kind: _plain(kind, lines) for kind, lines in everything.items() if args.what in (None, kind)})
        return 0
    for kind, lines in everything.items():
        if args.what in (None, kind):
            console.print(_table(kind, lines))
    if args.what in (None, *COSTED):
        console.print(LEGEND, style="dim", soft_wrap=True, markup=False)
    return 0


def _plain(kind: str, lines: Lines) -> dict[str, dict[str, str]]:
    columns = ("about", "server_memory", "sends", "paper") if kind in COSTED else ("about", "paper")
    return {name: dict(zip(columns, rest, strict=True)) for name, *rest in lines}


def _table(kind: str, lines: Lines) -> rich.table.Table:
    costed = kind in COSTED
    out = rich.table.Table(title=kind, title_justify="left", box=rich.box.SIMPLE_HEAD, show_header=costed)
    out.add_column("name", style="bold", no_wrap=True)
    out.add_column("", ratio=1)
    if costed:
        out.add_column("server memory", no_wrap=True)
        out.add_column("sends")
    out.add_column("paper", style="dim")
    for line in lines:
        out.add_row(*line)
    return out
