"""What a run is about to do: the table at its start, and `--dry-run`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.box
import rich.table

from cutlayer.cli import flags
from cutlayer.cli.output import console
from cutlayer.core.files import as_path
from cutlayer.engine.memory_limit import mib
from cutlayer.engine.run import Run
from cutlayer.errors import ContractError
from cutlayer.experiment import config as text
from cutlayer.experiment import description
from cutlayer.experiment.comparison import Comparison
from cutlayer.experiment.config import TABLES, Config
from cutlayer.experiment.experiment import Experiment, assemble
from cutlayer.experiment.methods import Method
from cutlayer.experiment.presets import preset
from cutlayer.registry import TASKS, own
from cutlayer.report.table import duration

MAIN = (  # what the table at a run's start shows even if it was not chosen
    *("model", "peft", "cut", "scheme", "local", "update", "optimizer", "server_optimizer", "protocol"),
    *("partition", "clients", "participation", "rounds", "batch_size", "local_epochs", "local_steps", "seed"),
)
STEPS = 3  # steps of each client that are timed for the estimate


@dataclass(frozen=True)
class Origins:
    """Where a config's values come from: fields chosen by flags, fields of a base, and the base's name."""

    chosen: tuple[str, ...] = ()
    base: tuple[str, ...] = ()
    name: str | None = None

    def of(self, field: str, config: Config) -> str:
        """The origin of one field: "chosen", the base's name, "task NAME" or "default"."""
        about = TASKS.get(config.task)
        own = {"model", "cut", *(about.defaults if about else ())}
        if field in self.chosen or (field == "task" and "data" in self.chosen):
            return "chosen"
        if field in self.base:
            return str(self.name)
        return f"task {config.task}" if field in own else "default"


def names(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the fields that were given, and of parameters with a dot (scheme.alpha)."""
    dotted = [f"{field}.{key}" for field, given in values.items() if field in TABLES for key in given if key != "name"]
    return (*values, *dotted)


def configured(args: argparse.Namespace, without: Sequence[str] = ()) -> tuple[Config, Path, Origins]:
    """Return the config of a run, its folder, and where its values come from. The values are those of a preset
    (`without` some fields) or a file, overridden by flags."""
    base = base_of(args, without)
    values = flags.config_values(args)
    config = text.parse(text.merge(base, values))
    origins = Origins(names(values), tuple(base), args.preset or args.config)
    name = f"{config.task}-{config.scheme['name']}-seed-{config.seed}".replace(own.COLON, "-")
    out = as_path("out", args.out or f"runs/{name}")
    return config, out, origins


def base_of(args: argparse.Namespace, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the config values of a preset's method (`without` some fields), or of a file."""
    chosen = getattr(args, "method", None)
    if args.preset and args.config:
        raise ContractError("--preset and --config: give one of them")
    if chosen and not args.preset:
        raise ContractError(f"--method {chosen}: it names one of a --preset's methods")
    base = flags.resolved(flags.written(as_path("config", args.config))) if args.config else {}
    base.pop(description.TABLE, None)  # the settings of a server are no part of the config
    if not args.preset:
        return base
    given = preset(args.preset)
    whole = text.merge(given.comparison.base, given.method(chosen).changes)
    return {key: value for key, value in whole.items() if key not in without}


def show(experiment: Experiment, origins: Origins | None) -> None:
    """Print the table at a run's start."""
    here = not experiment.run.setup.cohort.remote
    console.print(_table(experiment.config, experiment.run, origins, here))


def _table(config: Config, run: Run, origins: Origins | None, here: bool = True) -> rich.table.Table:
    """A table of what is trained and where each value comes from (`origins`: None where that is not shown)."""
    setup = run.setup
    who = f"{len(setup.sizes):,} clients" if here else "clients on other machines"
    out = rich.table.Table(
        title=f"{config.task}: {who}, {config.rounds} rounds", title_justify="left", box=rich.box.SIMPLE, padding=(0, 1)
    )
    out.show_header = False
    out.add_column(style="bold", no_wrap=True)
    out.add_column()
    out.add_column(style="dim", no_wrap=True)
    shown = [*MAIN, *(f for f in Config.model_fields if origins and f in origins.chosen and f not in MAIN)]
    for field in shown:
        value = getattr(config, field)
        if value is None or field in ("task", "rounds") or (not here and field in ("partition", "clients")):
            continue
        out.add_row(field.replace("_", " "), spelled(value), origins.of(field, config) if origins else "")
    if here:
        out.add_row("backend", setup.backend.words, "default" if config.backend == "auto" else "")
    if setup.processes.size > 1:
        out.add_row("ranks", f"{setup.processes.size}, sums {config.ranks}", "")
    return out


def spelled(value: Any) -> str:
    """A value for people: smofi (alpha -0.1), 0 3, yes."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{k} {spelled(v)}" for k, v in value.items() if k != "name")
        return f"{value['name']} ({inside})" if inside else str(value["name"])
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(spelled(v) for v in value) if isinstance(value, list | tuple) else str(value)


def methods(both: Comparison) -> rich.table.Table:
    """A table of each method's own values: its scheme, local rule, update, and whatever else it changes."""
    out = rich.table.Table(title="methods", title_justify="left", box=rich.box.SIMPLE_HEAD)
    out.add_column("method", style="bold", no_wrap=True)
    out.add_column("values")
    for m in both.methods:
        out.add_row(m.label, _differences(m, both.config(m, both.seeds[0])))
    return out


def _differences(m: Method, config: Config) -> str:
    fields: Collection[str] = dict.fromkeys(("scheme", "local", "update", *m.changes))
    given = {field: getattr(config, field) for field in fields}
    plain = {"update": "fedavg"}
    shown = {
        f: v for f, v in given.items() if v is not None and not (isinstance(v, dict) and v["name"] == plain.get(f))
    }
    return "; ".join(f"{field.replace('_', ' ')} {spelled(value)}" for field, value in shown.items())


def dry(config: Config, out: Path, origins: Origins) -> None:
    """Print what a run would train, how large it is and about how long it takes; write nothing."""
    with console.status(f"preparing {config.task}"):
        run = assemble(config)
        seconds = estimate(config, run)
    console.print(_table(config, run, origins))
    for name, words in _sizes(run).items():
        console.print(f"{name:14} {words}", soft_wrap=True, markup=False)
    console.print(f"{'time':14} about {duration(seconds)}, from {STEPS} timed steps", soft_wrap=True, markup=False)
    console.print(f"\n{text.dump(config)}", soft_wrap=True, markup=False)
    console.print(f"nothing was written; without --dry-run this would train in {out}", soft_wrap=True, markup=False)


def dry_all(both: Comparison, out: Path, jobs: int) -> None:
    """Do as `dry` for every method of a comparison."""
    table = rich.table.Table(title="methods", title_justify="left", box=rich.box.SIMPLE_HEAD)
    for heading in ("method", "values", "MiB in memory", "KiB per client", "a run"):
        table.add_column(
            heading, no_wrap=heading == "method", justify="left" if heading in ("method", "values") else "right"
        )
    total = 0.0
    for m in both.methods:
        config = both.config(m, both.seeds[0])
        with console.status(f"looking at {m.label}"):
            run = assemble(config)
            seconds = estimate(config, run)
        total += seconds * len(both.seeds)
        kib = f"{traffic(run)[0] / 1024:,.0f}"
        table.add_row(m.label, _differences(m, config), mib(run.setup.need().total), kib, duration(seconds))
    console.print(table)
    runs = f"{len(both.runs())} runs, {max(1, jobs)} at a time: about {duration(total / max(1, jobs))}"
    console.print(f"{runs}; nothing was written, without --dry-run it would train in {out}", soft_wrap=True)


def steps_of(run: Run) -> tuple[float, float]:
    """Steps and samples of a client in a round, on average over the clients that have any."""
    schedule = run.setup.schedule
    some = list(run.setup.sizes)[:1000]
    steps = [sum(schedule.epochs_of(size)) for size in some]
    trained = [(n, n * min(schedule.step_size, size)) for n, size in zip(steps, some, strict=True) if n]
    count = max(len(trained), 1)
    return sum(n for n, _ in trained) / count, sum(s for _, s in trained) / count


def traffic(run: Run) -> tuple[float, int]:
    """Bytes that a client sends and receives in a round, and the bytes of its front."""
    setup = run.setup
    cut = setup.cuts[0]
    W_c, _ = run.state.W.split(setup.offsets[cut])
    element = run.state.W.w.element_size()
    samples = steps_of(run)[1]
    smashed = (2 if setup.back(cut).returns else 1) * samples * setup.shape.elements[cut] * element
    fronts = 0 if setup.traits.carry == "keep" else 2 * W_c.nbytes
    return smashed + fronts, W_c.nbytes


def _sizes(run: Run) -> dict[str, str]:
    setup = run.setup
    cut = setup.cuts[0]
    W_c, W_s = run.state.W.split(setup.offsets[cut])
    each, front = traffic(run)
    steps, samples = steps_of(run)
    need = setup.need()
    return {
        "weights": f"{len(W_c.w):,} on a client, {len(W_s.w):,} on the server (cut {cut})",
        "a round": f"{setup.select} clients of {len(setup.sizes):,}, {steps:.0f} steps and {samples:.0f} samples each",
        "traffic": f"{each / 1024:,.0f} KiB per client and round, of which the front {2 * front / 1024:,.0f}",
        "memory": f"{mib(need.total)} MiB for a round: {need.words} MiB",
    }


def estimate(config: Config, run: Run) -> float:
    """Estimate the seconds of the whole run from a few timed steps of a few clients."""
    few = min(run.setup.backend.workers.n * max(1, run.setup.backend.size), run.setup.select)
    changes = {"rounds": 2, "participation": few, "local_steps": STEPS, "target": None, "evaluate_every": 2}
    small = assemble(config.model_copy(update={**changes, "memory_limit": None}))
    next(small)  # the first round warms up, and is not tested
    record = next(small)
    per_step = record.seconds / max(record.steps, 1)  # includes a test: rather too long than too short
    steps = steps_of(run)[0] * run.setup.select
    tests = math.ceil(config.rounds / config.evaluate_every)
    return per_step * steps * config.rounds + record.seconds * 0.1 * tests
