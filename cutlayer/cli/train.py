"""The commands that train: run, compare, resume; and report, which reads what they left."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutlayer import compare, store
from cutlayer import config as text
from cutlayer.cli import flags, progress
from cutlayer.cli.progress import console
from cutlayer.cohorts.seam import Comes
from cutlayer.config import Config
from cutlayer.errors import ContractError, RankLost, StoreError
from cutlayer.experiment import Experiment
from cutlayer.methods import method
from cutlayer.presets import preset
from cutlayer.report import page, table
from cutlayer.report.table import duration

RUN = """\
Train one method and write a run directory: config.toml, journal.jsonl (one line a round), checkpoints/,
model.safetensors, front.safetensors, back.safetensors, summary.json, report.html.

examples:
  cutlayer run --task digits --scheme smofi --scheme.alpha -0.1 --update fedavgm --update.beta 0.3 \\
               --rounds 20 --seed 0 --cut 1 --participation 0.2 --out runs/x
  cutlayer run --config runs/x/config.toml --seed 1 --out runs/x1      the same with another seed
  cutlayer run --optimizer adam --optimizer.lr 1e-3 --out runs/adam    Adam on both sides
  cutlayer run --preset smofi-cifar10 --method FedAvgM --rounds 50 --data-dir DATA --out runs/c10
  cutlayer run --data ./photos --image-size 32 --clients 10 --out runs/own      your own: a folder of images by class
"""
COMPARE = """\
Train several methods with several seeds, in parallel processes, and print one table: best accuracy, rounds to
90 % of FedAvg's best (R), speed-up over FedAvg, traffic and time. Interrupted? `cutlayer resume OUT` goes on.

A method is a scheme (smofi), a scheme with parts (smofi+fedavgm, fedavg+fedprox, smofi+fednar+slowmo), or a name of
`cutlayer list methods`.

examples:
  cutlayer compare --preset demo --out runs/demo
  cutlayer compare --preset smofi-cifar10 --schemes fedavg smofi-full --rounds 50 --data-dir DATA --out runs/c10
  cutlayer compare --schemes fedavg fedavgm smofi-full --seeds 0 1 2 --rounds 20 --out runs/y
  cutlayer compare --schemes smofi-full smofi-no-global-momentum smofi-no-alignment --out runs/ablation
  cutlayer compare --schemes sflv1 sflv2 cyclesfl --protocol cyclesl --optimizer adam --rounds 300 --out runs/cycle
"""
RESUME = """\
Continue a run, a comparison or a server that was interrupted, from its newest whole checkpoint. The result is the same,
bit for bit, as if it had never been interrupted.
"""
REPORT = """\
Print the table of a run or comparison, and write curves.png, table.json and report.html beside it.
"""


def add(commands: Any) -> None:
    """Register run, compare, resume and report."""
    run = commands.add_parser("run", help="train one method", description=RUN, usage="cutlayer run [FLAGS]")
    run.set_defaults(run=_run)
    run.add_argument("--method", metavar="LABEL", help="which of the preset's methods (default: the paper's own)")
    both = commands.add_parser(
        "compare", help="train several methods and compare them", description=COMPARE, usage="cutlayer compare [FLAGS]"
    )
    both.add_argument("--schemes", nargs="+", metavar="METHOD", help="what to compare (see `cutlayer list methods`)")
    both.add_argument("--seeds", nargs="+", metavar="N", help="seeds (default: 0 1 2)")
    both.set_defaults(run=_compare)
    _jobs(both)
    for command in (run, both):
        command.add_argument("--config", metavar="FILE", help="begin with the values of a TOML file")
        command.add_argument(
            "--preset",
            metavar="NAME",
            help="begin with the values of `cutlayer list presets`: demo, smofi-cifar10, ...",
        )
        command.add_argument("--out", metavar="FOLDER", help="where to write (default: runs/TASK-...)")
        command.add_argument("--overwrite", action="store_true", help="replace a run that is there already")
        _quiet(command)
        flags.add_config(command)
    resume = commands.add_parser("resume", help="continue an interrupted run or comparison", description=RESUME)
    report = commands.add_parser("report", help="table, picture and page of a run or comparison", description=REPORT)
    for command in (resume, report):
        command.add_argument("folder", metavar="RUN", help="the folder given as --out")
        _quiet(command)
    _jobs(resume)
    resume.add_argument(
        "--ui",
        nargs="?",
        const=7480,
        type=int,
        metavar="PORT",
        help="of a run that serves: a page to watch (default port: 7480)",
    )
    resume.set_defaults(run=_resume)
    report.set_defaults(run=_report)


def _quiet(command: argparse.ArgumentParser) -> None:
    command.add_argument("--quiet", action="store_true", help="no progress")


def _jobs(command: argparse.ArgumentParser) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    command.add_argument("--jobs", type=int, default=cores, metavar="N", help="runs at a time (default: one per core)")


def configured(args: argparse.Namespace, without: Sequence[str] = ()) -> tuple[Config, Path]:
    """The config of a run, from a preset (`without` some fields) or a file, and from flags; and where it goes."""
    method = getattr(args, "method", None)
    if args.preset and args.config:
        raise ContractError("--preset and --config: give one of them")
    if method and not args.preset:
        raise ContractError(f"--method {method}: it names one of a --preset's methods")
    base = flags.resolved(text.read(Path(args.config))) if args.config else {}
    if args.preset:
        chosen = preset(args.preset)
        whole = text.merge(chosen.comparison.base, chosen.method(method).changes)
        base = {key: value for key, value in whole.items() if key not in without}
    config = text.parse(text.merge(base, flags.config_values(args)))
    return config, Path(args.out or f"runs/{config.task}-{config.scheme['name']}-seed-{config.seed}")


def _run(args: argparse.Namespace) -> int:
    config, out = configured(args)
    with console.status(f"preparing {config.task}"):
        experiment = Experiment.start(config, out, args.overwrite)
    return _train(experiment, args.quiet)


def _train(experiment: Experiment, quiet: bool) -> int:
    team = experiment.run.setup.team
    quiet = quiet or not team.root
    if team.size > 1:
        signal.signal(signal.SIGTERM, _stopped)
    if not quiet:
        console.print(headline(experiment), soft_wrap=True)
    try:
        for _ in progress.follow(experiment, quiet):
            pass
    except RankLost as error:
        raise RankLost(f"{error}; `cutlayer resume {experiment.out}` goes on from the last round") from error
    return show(experiment.out, quiet) if team.root else 0


def _stopped(*_: object) -> None:
    raise RankLost("told to stop, as torchrun does when another rank has ended")


def headline(experiment: Experiment) -> str:
    config, clients = experiment.config, len(experiment.run.setup.sizes)
    here = not isinstance(experiment.run.setup.cohort, Comes)
    shown = [key for key in text.TABLES if getattr(config, key) is not None and (here or key != "partition")]
    parts = [f"{key} {text.words(getattr(config, key))}" for key in shown]
    backend = [f"backend {experiment.run.setup.backend.words}"] if here else []
    size = experiment.run.setup.team.size
    ranks = [f"{size} ranks, sums {config.ranks}"] if size > 1 else []
    who = f"{clients} clients, " if here else ""
    return f"{config.task}: {who}{config.rounds} rounds; " + "; ".join([*parts, *backend, *ranks])


def _compare(args: argparse.Namespace) -> int:
    base: dict[str, Any] = {}
    methods, seeds = [], [0, 1, 2]
    values = flags.config_values(args)
    instead_of = {"scheme": "--schemes", "local": "--schemes SCHEME+LOCAL", "update": "--schemes SCHEME+UPDATE"}
    for field, instead in {**instead_of, "seed": "--seeds"}.items():
        if (field == "seed" and field in values) or "name" in values.get(field, ()):
            raise ContractError(f"--{field}: a comparison takes {instead}")
    if args.preset and args.config:
        raise ContractError("--preset and --config: give one of them")
    if args.preset or args.config:
        given = (
            preset(args.preset).comparison if args.preset else compare.Comparison.parse(text.read(Path(args.config)))
        )
        base, methods, seeds = dict(given.base), list(given.methods), list(given.seeds)
    if args.schemes:
        methods = [method(name) for name in args.schemes]
    elif not methods:
        methods = [method(name) for name in ("fedavg", "fedavgm", "sflv1", "sflv2", "smofi-full")]
    if args.seeds:
        seeds = flags.seeds(args.seeds)
    comparison = compare.Comparison(text.merge(flags.resolved(base), values), methods, seeds)
    _all_used(values, comparison)
    task = comparison.config(comparison.methods[0], seeds[0]).task
    out = Path(args.out or f"runs/compare-{args.preset or task}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ContractError(
            "compare: it starts processes of its own, one per run; expected torchrun with run or resume"
        )
    with console.status(f"checking every method on {task}"):
        compare.start(comparison, out, args.overwrite)
    return _train_all(comparison, out, args)


def _all_used(values: dict[str, Any], comparison: compare.Comparison) -> None:
    """Refuse a parameter such as --scheme.alpha that no method of the comparison has."""
    configs = [comparison.config(m, comparison.seeds[0]) for m in comparison.methods]
    for field in ("scheme", "local", "update"):
        for key, value in values.get(field, {}).items():
            if not any((getattr(config, field) or {}).get(key) == value for config in configs):
                raise ContractError(f"--{field}.{key} {value}: no method of this comparison takes it")


def _train_all(comparison: compare.Comparison, out: Path, args: argparse.Namespace) -> int:
    progress.follow_all(compare.train_all(comparison, out, args.jobs), args.quiet)
    show(out, args.quiet)
    summaries = [store.read_summary(compare.folder(out, m, seed)) for m, seed in comparison.runs()]
    return 3 if all(summary and summary["status"] == "diverged" for summary in summaries) else 0


def _resume(args: argparse.Namespace) -> int:
    out = Path(args.folder)
    if (out / "compare.toml").exists():
        return _train_all(compare.read(out), out, args)
    if (out / "serve.toml").exists():
        from cutlayer.cli import serve  # it builds on this module

        return serve.resume(args, out)
    with console.status(f"reading {out}"):
        experiment = Experiment.resume(out)
    return _train(experiment, args.quiet)


def _report(args: argparse.Namespace) -> int:
    return show(Path(args.folder), args.quiet)


def _result(summary: dict[str, Any]) -> str:
    """One finished run, in a few lines."""
    best, final = (_percent(summary[key]) for key in ("best_accuracy", "final_accuracy"))
    simulated = f"; simulated {duration(summary['sim_seconds'])}" if summary.get("sim_seconds") else ""
    tested = f"in round {summary['best_round']} of {summary['rounds']}"
    if summary["best_round"] is None:
        tested = f"after {summary['rounds']} rounds: never tested"
    mib = (summary["bytes_up"] + summary["bytes_down"]) / 2**20
    return (
        f"best accuracy   {best} {tested}\n"
        f"final accuracy  {final}; {mib:.1f} MiB sent\n"
        f"time            {summary['seconds']:.1f} seconds{simulated}\n"
        f"weights         sha256 {summary.get('sha256', '-')}"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def show(out: Path, quiet: bool) -> int:
    """The table on the terminal, and the files beside the run."""
    if not out.is_dir():
        raise StoreError(f"{out}: no such folder")
    figures, files = page.write(out)
    if not quiet:
        summary = store.read_summary(out)
        if summary is None:
            console.print(table.for_terminal(figures))
        else:
            console.print(_result(summary), soft_wrap=True, markup=False)
        console.print("wrote " + ", ".join(str(path) for path in files), soft_wrap=True, markup=False)
    return 0
