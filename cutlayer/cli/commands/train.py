"""run, compare, resume and report."""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutlayer import checkpoint, comparison, description, effects, store
from cutlayer import compare as comparing
from cutlayer import config as text
from cutlayer.cli import flags, progress
from cutlayer.cli.commands import plan
from cutlayer.cli.commands.plan import Origins
from cutlayer.cli.output import console
from cutlayer.comparison import Comparison
from cutlayer.config import Config
from cutlayer.description import Changes
from cutlayer.errors import ContractError, RankLost, StoreError
from cutlayer.experiment import Experiment
from cutlayer.files import as_path
from cutlayer.lock import Lock
from cutlayer.methods import Method, method
from cutlayer.presets import preset
from cutlayer.report import page, table
from cutlayer.report.table import duration

USUAL = ("fedavg", "fedavgm", "sflv1", "sflv2", "smofi-full")


def configured(args: argparse.Namespace, without: Sequence[str] = ()) -> tuple[Config, Path, Origins]:
    """The config of a run, from a preset (`without` some fields) or a file, and from flags; where it goes; and where
    its values come from."""
    chosen = getattr(args, "method", None)
    if args.preset and args.config:
        raise ContractError("--preset and --config: give one of them")
    if chosen and not args.preset:
        raise ContractError(f"--method {chosen}: it names one of a --preset's methods")
    base = flags.resolved(text.read(as_path("config", args.config))) if args.config else {}
    base.pop(description.TABLE, None)  # how a run was served is no part of what it trains
    if args.preset:
        given = preset(args.preset)
        whole = text.merge(given.comparison.base, given.method(chosen).changes)
        base = {key: value for key, value in whole.items() if key not in without}
    values = flags.config_values(args)
    config = text.parse(text.merge(base, values))
    origins = Origins(plan.names(values), tuple(base), args.preset or args.config)
    out = as_path("out", args.out or f"runs/{config.task}-{config.scheme['name']}-seed-{config.seed}")
    return config, out, origins


def run(args: argparse.Namespace) -> int:
    config, out, origins = configured(args)
    effects.check(config, origins.chosen)
    if args.dry_run:
        plan.dry(config, out, origins)
        return 0
    with console.status(f"preparing {config.task}"):
        experiment = Experiment.start(config, out, args.overwrite)
    return _train(experiment, args.quiet, origins)


def _train(experiment: Experiment, quiet: bool, origins: Origins | None) -> int:
    team = experiment.run.setup.team
    quiet = quiet or not team.root
    if team.size > 1:
        signal.signal(signal.SIGTERM, _stopped)
    if not quiet:
        plan.show(experiment, origins)
    try:
        for _ in progress.follow(experiment, quiet):
            pass
    except RankLost as error:
        raise RankLost(f"{error}; `cutlayer resume {experiment.out}` goes on from the last round") from error
    return show(experiment.out, quiet) if team.root else 0


def _stopped(*_: object) -> None:
    raise RankLost("told to stop, as torchrun does when another rank has ended")


def compare(args: argparse.Namespace) -> int:
    both, values = _comparison(args)
    task = both.config(both.methods[0], both.seeds[0]).task
    out = as_path("out", args.out or f"runs/compare-{args.preset or task}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ContractError(
            "compare: it starts processes of its own, one per run; expected torchrun with run or resume"
        )
    for m in both.methods:
        effects.check(both.config(m, both.seeds[0]), plan.names(values), label=m.label, all_methods=len(both.methods))
    if args.dry_run:
        plan.dry_all(both, out, args.jobs)
        return 0
    with console.status(f"checking every method on {task}"):
        lock = comparing.start(both, out, args.overwrite)
    if not args.quiet:
        console.print(plan.methods(both))
    return _train_all(both, out, args, lock)


def _comparison(args: argparse.Namespace) -> tuple[Comparison, dict[str, Any]]:
    """What is compared, and what the flags say of all of it."""
    base: dict[str, Any] = {}
    methods: list[Method] = []
    seeds = [0, 1, 2]
    values = flags.config_values(args)
    instead_of = {"scheme": "--schemes", "local": "--schemes SCHEME+LOCAL", "update": "--schemes SCHEME+UPDATE"}
    for field, instead in {**instead_of, "seed": "--seeds"}.items():
        if (field == "seed" and field in values) or "name" in values.get(field, ()):
            raise ContractError(f"--{field}: a comparison takes {instead}")
    if args.preset and args.config:
        raise ContractError("--preset and --config: give one of them")
    if args.add and not args.preset:
        raise ContractError(f"--add {' '.join(args.add)}: it adds to a --preset's methods; expected --schemes")
    if args.preset or args.config:
        given = (
            preset(args.preset).comparison
            if args.preset
            else Comparison.parse(text.read(as_path("config", args.config)))
        )
        base, methods, seeds = dict(given.base), list(given.methods), list(given.seeds)
    if args.schemes and args.preset:
        methods = [_of_preset(args.preset, name) for name in args.schemes]
    elif args.schemes:
        methods = [method(name) for name in args.schemes]
    elif not methods:
        methods = [method(name) for name in USUAL]
    methods += [method(name) for name in args.add or ()]
    if args.seeds:
        seeds = flags.seeds(args.seeds)
    both = Comparison(text.merge(flags.resolved(base), values), methods, seeds)
    _all_used(values, both)
    return both, values


def _of_preset(name: str, given: str) -> Method:
    """One of the preset's own methods; another one only where it is asked for as such."""
    try:
        return preset(name).method(given)
    except ContractError as error:
        try:
            method(given)
        except ContractError:
            raise error from None
        raise ContractError(f"{error}; `--add {given}` adds it with its defaults, untuned") from None


def _all_used(values: dict[str, Any], both: Comparison) -> None:
    """Refuse a parameter such as --scheme.alpha that no method of the comparison has."""
    configs = [both.config(m, both.seeds[0]) for m in both.methods]
    for field in ("scheme", "local", "update"):
        for key, value in values.get(field, {}).items():
            if not any((getattr(config, field) or {}).get(key) == value for config in configs):
                raise ContractError(f"--{field}.{key} {value}: no method of this comparison takes it")


def _train_all(both: Comparison, out: Path, args: argparse.Namespace, lock: Lock) -> int:
    progress.follow_all(comparing.train_all(both, out, args.jobs, lock), args.quiet)
    show(out, args.quiet)
    summaries = [store.read_summary(comparison.folder(out, m, seed)) for m, seed in both.runs()]
    return 3 if all(summary and summary["status"] == "diverged" for summary in summaries) else 0


def resume(args: argparse.Namespace) -> int:
    out = as_path("folder", args.folder)
    if args.accept_changes and args.undo_changes:
        raise ContractError("--accept-changes and --undo-changes: give one of them")
    changes: Changes = "accept" if args.accept_changes else "undo" if args.undo_changes else "refuse"
    if any((out / place / comparing.FILE).exists() for place in ("", "runs")):
        both, lock = comparing.resume(out, changes)
        return _train_all(both, out, args, lock)
    if description.serves(out, checkpoint.config(out)):
        from cutlayer.cli.commands import serve  # it builds on this module

        return serve.resume(args, out, changes)
    with console.status(f"reading {out}"):
        experiment = Experiment.resume(out, changes=changes)
    return _train(experiment, args.quiet, None)


def report(args: argparse.Namespace) -> int:
    return show(as_path("folder", args.folder), args.quiet, args.json)


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


def show(out: Path, quiet: bool, as_json: bool = False) -> int:
    """The table on the terminal, and the files beside the run."""
    if not out.is_dir():
        raise StoreError(f"{out}: no such folder")
    figures, files = page.write(out)
    summary = store.read_summary(out)
    if as_json:
        print(json.dumps({**json.loads(table.for_json(figures)), "summary": summary}, indent=1))
    elif not quiet:
        if summary is None:
            console.print(table.for_terminal(figures))
        else:
            console.print(_result(summary), soft_wrap=True, markup=False)
        console.print("wrote " + ", ".join(str(path) for path in files), soft_wrap=True, markup=False)
    return 0
