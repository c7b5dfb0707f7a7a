"""The flags of the commands that train, and of `report`, which reads what they wrote."""

from __future__ import annotations

import argparse
import os
from typing import Any

from cutlayer.cli import flags
from cutlayer.cli.output import add_json, add_log
from cutlayer.cli.parser import later, section
from cutlayer.track.names import TRACKERS

RUN = """\
Train one method and write a run directory: config.toml, journal.jsonl (one line a round), checkpoints/,
model.safetensors, front.safetensors, back.safetensors, summary.json, report.html.

examples:
  cutlayer run --task digits --scheme smofi --scheme.alpha -0.1 --update fedavgm --update.beta 0.3 \\
               --rounds 20 --seed 0 --cut 1 --participation 0.2 --out runs/x
  cutlayer run --config runs/x/config.toml --seed 1 --out runs/x1      the same with another seed
  cutlayer run --preset smofi-cifar10 --method FedAvgM --rounds 50 --data-dir DATA --out runs/c10
  cutlayer run --data ./photos --image-size 32 --clients 10 --out runs/own      your own: a folder of images by class
  cutlayer run --model my_nets:build --model.width 64 --out runs/net   a model of your own, by import path
  cutlayer run --task cifar10 --data-dir DATA --dry-run                what it would do, need and take
"""
COMPARE = """\
Train several methods with several seeds, in parallel processes, and print one table: best accuracy, rounds to
90 % of FedAvg's best (R), speed-up over FedAvg, traffic and time. Interrupted? `cutlayer resume OUT` goes on.

A method is a scheme (smofi), a scheme with parts (smofi+fedavgm, fedavg+fedprox, smofi+fednar+slowmo), or a name of
`cutlayer list methods`. With --preset, --schemes picks among the preset's own methods, tuned as the paper has them, by
label or name; --add brings in others, with their defaults.

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

A file that was damaged is named and mended from its copy, or the run goes on from the checkpoint before. A config.toml
that was edited is not used before you say so: --accept-changes or --undo-changes.

A run with code of your own (--model my_nets:build) needs its module named again: --import my_nets. A folder alone never
makes cutlayer import anything.
"""
REPORT = """\
Print the table of a run or comparison, and write curves.png, table.json and report.html beside it. It reads what the
run has written, and needs none of the run's parts. With two seeds or more it adds each method's difference from its
baseline, seed by seed, with a 95 % interval.

examples:
  cutlayer report runs/y
  cutlayer report runs/y --target 0.7 --score last-ten              rounds to 70 %, the mean of the last ten rounds
  cutlayer report runs/y --share 1.0 --baseline FedAvgM             rounds to all of FedAvgM's best
  cutlayer report runs/y --curves accuracy loss f1 mcc
"""
NOT_COMPARED = ("scheme", "local", "update", "seed")  # given as --schemes and --seeds
DRY = "say what would be trained, how large it is and about how long it takes; write nothing"


def add(commands: Any) -> None:
    """Register run, compare, resume and report."""
    run = commands.add_parser("run", help="train one method", description=RUN, usage="cutlayer run [FLAGS]")
    run.add_argument("--method", metavar="LABEL", help="which of the preset's methods (default: the paper's own)")
    both = commands.add_parser(
        "compare", help="train several methods and compare them", description=COMPARE, usage="cutlayer compare [FLAGS]"
    )
    both.add_argument("--schemes", nargs="+", metavar="METHOD", help="what to compare (see `cutlayer list methods`)")
    both.add_argument("--add", nargs="+", metavar="METHOD", help="with --preset: these too, with their defaults")
    both.add_argument("--seeds", nargs="+", metavar="INT", help="seeds (default: 0 1 2)")
    add_jobs(both)
    for command in (run, both):
        command.add_argument("--config", metavar="FILE", help="begin with the values of a TOML file")
        command.add_argument(
            "--preset",
            metavar="NAME",
            help="begin with the values of `cutlayer list presets`: demo, smofi-cifar10, ...",
        )
        command.add_argument("--out", metavar="FOLDER", help="where to write (default: runs/TASK-...)")
        command.add_argument("--overwrite", action="store_true", help="replace a run that is there already")
        command.add_argument("--dry-run", action="store_true", help=DRY)
        quiet(command)
        add_log(command)
        flags.add_config(command, hidden=NOT_COMPARED if command is both else ())
        add_track(section(command, "track", "experiment trackers", shown=False))
        command.set_defaults(run=later(f"train:{'compare' if command is both else 'run'}"))
    resume = commands.add_parser(
        "resume",
        help="continue an interrupted run or comparison",
        description=RESUME,
        usage="cutlayer resume RUN [FLAGS]",
    )
    report = commands.add_parser(
        "report",
        help="table, picture and page of a run or comparison",
        description=REPORT,
        usage="cutlayer report RUN [FLAGS]",
    )
    for command, name in ((resume, "train:resume"), (report, "report")):
        command.add_argument("folder", metavar="RUN", help="the folder given as --out")
        quiet(command)
        command.set_defaults(run=later(name))
    flags.add_import(resume)
    add_measure(report)
    add_json(report, "the table")
    add_track(resume)
    add_track(report, "--to", "feed these experiment trackers too, from the journal alone")
    add_log(resume)
    add_jobs(resume)
    resume.add_argument(
        "--accept-changes", action="store_true", help="go on with a config that was edited since, as it is now"
    )
    resume.add_argument("--undo-changes", action="store_true", help="go on with the config as it was, and restore it")
    add_pages(resume, "of a run that serves: ")


def add_measure(command: argparse.ArgumentParser) -> None:
    """Add the flags that say what a report measures."""
    command.add_argument(
        "--score",
        default="best",
        metavar="{best,final,last-ten}",
        help="the accuracy of the best round, of the last one, or the mean of the last ten (default: best)",
    )
    command.add_argument(
        "--target", type=float, metavar="ACCURACY", help="count rounds to this accuracy, in (0, 1] (default: --share)"
    )
    command.add_argument(
        "--share", type=float, default=0.9, metavar="FLOAT", help="of the baseline's best: the target (default: 0.9)"
    )
    command.add_argument(
        "--baseline",
        metavar="LABEL",
        help="the method to compare with (default: FedAvg, else the first; or its block's)",
    )
    command.add_argument(
        "--curves",
        nargs="+",
        metavar="NAME",
        help="what the curves show: accuracy, loss, f1, mcc, auc, train_loss, drift_server, drift_client "
        "(default: accuracy drift_server)",
    )


def add_pages(command: argparse.ArgumentParser, whose: str = "") -> None:
    """Add the flags for watching a run that serves."""
    command.add_argument(
        "--ui",
        nargs="?",
        const=7480,
        type=int,
        metavar="PORT",
        help=f"{whose}a page to watch, on this machine (default port: 7480)",
    )
    command.add_argument(
        "--metrics",
        nargs="?",
        const="127.0.0.1:7490",
        metavar="HOST:PORT",
        help=f"{whose}/healthz and /metrics (Prometheus) there (default: 127.0.0.1:7490)",
    )


def add_track(
    command: argparse._ActionsContainer, flag: str = "--track", words: str = "feed these experiment trackers too"
) -> None:
    about = f"{words}, in the run's folder: {', '.join(TRACKERS)}"
    command.add_argument(flag, nargs="+", metavar="NAME", help=about)


def quiet(command: argparse.ArgumentParser) -> None:
    command.add_argument("--quiet", action="store_true", help="no progress")


def add_jobs(command: argparse.ArgumentParser) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    command.add_argument(
        "--jobs", type=int, default=cores, metavar="INT", help="runs at a time (default: one per core)"
    )
