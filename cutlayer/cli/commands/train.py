"""`cutlayer run`, `cutlayer compare` and `cutlayer resume`."""

from __future__ import annotations

import argparse
import functools
import os
import signal
from pathlib import Path
from typing import Any

from cutlayer.cli import flags, progress
from cutlayer.cli.commands import plan, serve
from cutlayer.cli.commands.plan import Origins, configured
from cutlayer.cli.commands.report import show
from cutlayer.cli.output import console
from cutlayer.core.files import as_path
from cutlayer.core.lock import Lock
from cutlayer.errors import ContractError, RankLost
from cutlayer.experiment import checkpoint, comparison, description, effects, run_directory
from cutlayer.experiment import compare as comparing
from cutlayer.experiment import config as text
from cutlayer.experiment.comparison import Comparison
from cutlayer.experiment.description import Changes
from cutlayer.experiment.experiment import Experiment
from cutlayer.experiment.methods import Method, method
from cutlayer.experiment.presets import preset
from cutlayer.registry import own
from cutlayer.track.names import asked
from cutlayer.track.tracked import with_trackers

USUAL = ("fedavg", "fedavgm", "sflv1", "sflv2", "smofi-full")


def run(args: argparse.Namespace) -> int:
    trackers = asked(args.track)
    config, out, origins = configured(args)
    effects.check(config, origins.chosen)
    if args.dry_run:
        plan.dry(config, out, origins)
        return 0
    with console.status(f"preparing {config.task}"):
        experiment = Experiment.start(config, out, args.overwrite)
    with_trackers(experiment.run, out, trackers)
    return _train(experiment, args.quiet, origins)


def _train(experiment: Experiment, quiet: bool, origins: Origins | None) -> int:
    processes = experiment.run.setup.processes
    quiet = quiet or not processes.root
    if processes.size > 1:
        signal.signal(signal.SIGTERM, _stopped)
    if not quiet:
        plan.show(experiment, origins)
    try:
        for _ in progress.follow(experiment, quiet):
            pass
    except RankLost as error:
        raise RankLost(f"{error}; `cutlayer resume {experiment.out}` goes on from the last round") from error
    return show(experiment.out, quiet) if processes.root else 0


def _stopped(*_: object) -> None:
    raise RankLost("told to stop, as torchrun does when another rank has ended")


def compare(args: argparse.Namespace) -> int:
    asked(args.track)
    both, values = _comparison(args)
    task = both.config(both.methods[0], both.seeds[0]).task
    out = as_path("out", args.out or f"runs/compare-{args.preset or task.replace(own.COLON, '-')}")
    return begin(both, values, out, args)


def begin(both: Comparison, values: dict[str, Any], out: Path, args: argparse.Namespace) -> int:
    """Check a comparison, train it and print its table. `values`: what flags set for all its methods."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ContractError(
            f"{args.command}: it starts processes of its own, one per run; expected torchrun with run or resume"
        )
    for m in both.methods:
        effects.check(both.config(m, both.seeds[0]), plan.names(values), label=m.label, all_methods=len(both.methods))
    if args.dry_run:
        plan.dry_all(both, out, args.jobs)
        return 0
    with console.status("checking every method"):
        lock = comparing.start(both, out, args.overwrite)
    if not args.quiet:
        console.print(plan.methods(both))
    return _train_all(both, out, args, lock)


def _comparison(args: argparse.Namespace) -> tuple[Comparison, dict[str, Any]]:
    """Return the comparison, and the config values that flags set for all its methods."""
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
            else Comparison.parse(flags.written(as_path("config", args.config)))
        )
        base, methods, seeds = dict(given.base), list(given.methods), list(given.seeds)
    for name in (*(args.schemes or ()), *(args.add or ())):
        if own.is_path(name):
            own.allow(name)
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
    """Return one of the preset's own methods; for any other, the error suggests --add."""
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
    watched = functools.partial(with_trackers, names=asked(args.track))
    progress.follow_all(comparing.train_all(both, out, args.jobs, lock, watched), args.quiet)
    show(out, args.quiet)
    summaries = [run_directory.read_summary(comparison.folder(out, m, seed)) for m, seed in both.runs()]
    return 3 if all(summary and summary["status"] == "diverged" for summary in summaries) else 0


def resume(args: argparse.Namespace) -> int:
    out, trackers = as_path("folder", args.folder), asked(args.track)
    if args.accept_changes and args.undo_changes:
        raise ContractError("--accept-changes and --undo-changes: give one of them")
    changes: Changes = "accept" if args.accept_changes else "undo" if args.undo_changes else "refuse"
    if any((out / place / comparing.FILE).exists() for place in ("", "runs")):
        both, lock = comparing.resume(out, changes)
        return _train_all(both, out, args, lock)
    if description.serves(out, checkpoint.config(out)):
        return serve.resume(args, out, changes)
    with console.status(f"reading {out}"):
        experiment = Experiment.resume(out, changes=changes)
    with_trackers(experiment.run, out, trackers)
    return _train(experiment, args.quiet, None)
