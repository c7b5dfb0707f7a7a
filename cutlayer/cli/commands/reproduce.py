"""`cutlayer reproduce`: a table or figure of the papers."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

import rich.box
import rich.table

from cutlayer.cli import flags, progress
from cutlayer.cli.output import console, print_json
from cutlayer.core.files import as_path, from_root
from cutlayer.core.lock import Lock
from cutlayer.errors import ContractError, unknown
from cutlayer.report.table import duration
from cutlayer.reproduce import scales
from cutlayer.reproduce.catalogue import TITLES, find, papers
from cutlayer.reproduce.item import Item


def run(args: argparse.Namespace) -> int:
    if args.scale not in scales.SCALES:
        raise unknown("scale", args.scale, scales.SCALES)
    if args.item is None:
        for flag in ("only", "seeds", "out"):
            if getattr(args, flag):
                raise ContractError(f"--{flag}: expected a paper and a table or figure before it")
        return _list(args)
    item = find(args.paper, args.item)
    if args.only:
        if not item.cells:
            raise ContractError(f"--only {' '.join(args.only)}: {item.name} is one piece; expected no --only")
        item = item.only(args.only)
    return _make(item, args)


def _list(args: argparse.Namespace) -> int:
    """Print what there is."""
    from cutlayer.reproduce import estimate, runs

    chosen = papers(args.paper)
    with console.status("measuring this machine"):
        machine = estimate.this_machine()
        found = {
            paper: {name: _about(item, machine, estimate, runs, args) for name, item in items.items()}
            for paper, items in chosen.items()
        }
    if args.json:
        print_json(found)
        return 0
    for paper, items in found.items():
        console.print(_listing(paper, chosen[paper], items))
    console.print(
        "times: about, here on the CPU, one seed at laptop and workstation scale and the paper's seeds at its own; "
        "data in brackets are not there",
        style="dim",
        soft_wrap=True,
        markup=False,
    )
    return 0


def _about(item: Item, machine: Any, estimate: Any, runs: Any, args: argparse.Namespace) -> dict[str, Any]:
    lacking = [task for task in item.tasks if runs.missing(task, args.data_dir)]
    times = {}
    for scale in scales.SCALES:
        count, seconds = estimate.of_item(item, scale, len(scales.seeds(item.paper, scale)), machine)
        times[scale] = {"runs": count, "seconds": seconds / max(1, args.jobs)}
    return {"title": item.title, "data": item.tasks, "missing": lacking, "scales": times}


def _listing(paper: str, items: dict[str, Item], about: dict[str, Any]) -> rich.table.Table:
    out = rich.table.Table(title=f"{paper}: {TITLES[paper]}", title_justify="left", box=rich.box.SIMPLE_HEAD)
    for heading in ("item", "what", "data", "runs", *scales.SCALES):
        out.add_column(heading, no_wrap=heading not in ("what", "data"), style="bold" if heading == "item" else "")
    for name in items:
        one = about[name]
        data = ", ".join(f"[{task}]" if task in one["missing"] else task for task in one["data"]) or "-"
        times = [duration(one["scales"][scale]["seconds"]) for scale in scales.SCALES]
        many = one["scales"]["laptop"]["runs"]
        shown = [str(many), *times] if many else ["-", "-", "-", "-"]
        out.add_row(name, one["title"], rich.text.Text(data), *shown)
    return out


def _make(item: Item, args: argparse.Namespace) -> int:
    from cutlayer.experiment import pool
    from cutlayer.reproduce import make
    from cutlayer.reproduce.runs import Runs, missing

    out = as_path("out", args.out or f"runs/reproduce-{args.scale}")
    more: dict[str, Any] = {"data_dir": str(from_root("data_dir", args.data_dir))} if args.data_dir else {}
    command = _command(args, out)
    if item.view == "measured" and args.dry_run:
        lacking = [task for task in item.tasks if missing(task, args.data_dir)]
        lines = ["nothing is trained", *(f"no data: {task}" for task in lacking)]
        console.print("\n".join(lines), soft_wrap=True, markup=False)
        return 0
    if item.view == "measured":
        with console.status(f"measuring {item.name}"):
            made = make.measured(item, more, command)
        return _show(made, out / f"{item.paper}-{item.name}", args)
    if args.device != "cpu":
        more["device"] = args.device
    seeds = flags.seeds(args.seeds) if args.seeds else list(scales.seeds(item.paper, args.scale))
    runs = Runs(item, args.scale, seeds, out, more)
    jobs = runs.jobs()
    if args.dry_run:
        return _plan(runs, jobs, args)
    if not args.no_train and jobs:
        out.mkdir(parents=True, exist_ok=True)
        with Lock(out):
            progress.follow_all(pool.train(jobs, args.jobs, command), args.quiet)
    with console.status("reading the runs"):
        made = make.trained(runs, command)
    return _show(made, out / f"{item.paper}-{item.name}", args)


def _command(args: argparse.Namespace, out: Path) -> str:
    """The command that makes it again."""
    words = ["cutlayer", "reproduce", args.paper, args.item, "--scale", args.scale]
    for flag in ("only", "seeds"):
        words += [f"--{flag}", *getattr(args, flag)] if getattr(args, flag) else []
    return shlex.join([*words, *(["--data-dir", "DATA"] if args.data_dir else []), "--out", str(out)])


def _plan(runs: Any, jobs: Any, args: argparse.Namespace) -> int:
    from cutlayer.experiment import pool
    from cutlayer.reproduce import estimate

    item = runs.item
    left = [job.folder for job in jobs if not pool.done(job.folder)]
    machine = estimate.this_machine()
    values = {runs.folder(c, s): runs.values(c) for c in item.cells for s in runs.seeds}
    seconds = sum(estimate.seconds(values[one], machine) for one in left) / max(1, min(args.jobs, len(left)))
    lines = [
        f"{len(jobs)} runs in {runs.out / 'runs'}, {len(jobs) - len(left)} of them there; "
        f"about {duration(seconds)} for the others",
        *(f"no data: {task}" for task in runs.without_data),
        *(f"reduced: {line}" for line in scales.reductions([c.values for c in item.cells], runs.scale)),
        *(f"{'there' if pool.done(job.folder) else 'to do'}  {job.label}, seed {job.config.seed}" for job in jobs),
    ]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    return 0


def _show(made: Any, folder: Path, args: argparse.Namespace) -> int:
    from cutlayer.reproduce import make, sheet

    files = make.write(made, folder)
    if args.json:
        print_json(json.loads(sheet.for_json(made)))
    elif not args.quiet:
        console.print(made.title, style="bold", markup=False)
        for table in sheet.for_terminal(made, console.width):
            console.print(table)
        for words in made.remarks:
            console.print(words, style="dim", soft_wrap=True, markup=False)
        console.print("wrote " + ", ".join(str(path) for path in files), soft_wrap=True, markup=False)
    return 0
