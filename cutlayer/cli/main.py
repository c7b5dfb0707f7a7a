"""The command line: `cutlayer run | compare | resume | report | serve | join | certs | list | partition | ...`.

Nothing here or in the modules that add commands imports torch, so that help, lists and errors appear at once.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from cutlayer._version import __version__
from cutlayer.cli import (
    bench,
    certs,
    clock,
    completion,
    costs,
    doctor,
    listing,
    partition,
    reproduce,
    serve,
    sweep,
    train,
)
from cutlayer.cli.parser import Parser
from cutlayer.cli.signals import Terminated, terminating
from cutlayer.core import heap, logs
from cutlayer.errors import CutlayerError, Diverged, RoundAbandoned, one_line
from cutlayer.registry import own

ABOUT = """\
Split federated learning: a model is cut in two, clients train the front on data that never leaves them,
a server trains the back.

first steps:
  cutlayer compare --preset demo --out runs/demo       five methods on handwritten digits, two minutes
  cutlayer run --task digits --scheme smofi --rounds 20 --out runs/first
  cutlayer list                                        what there is to choose from
  cutlayer COMMAND --help                              what a command takes, with examples
"""
WRONG, DIVERGED, ABANDONED, INTERRUPTED, PIPE, TERMINATED = 2, 3, 4, 130, 141, 143
"""Exit statuses (docs/exit-codes.md)."""


def parser() -> argparse.ArgumentParser:
    """All commands and their flags."""
    top = Parser(prog="cutlayer", description=ABOUT)
    top.add_argument("--version", action="version", version=f"cutlayer {__version__}", help="show the version")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for module in (train, sweep, reproduce, serve, certs, listing, partition, clock, costs, bench, doctor):
        module.add(commands)
    completion.add(commands, top)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; an error is one line on stderr."""
    warnings.showwarning = _warn
    heap.keep()
    command, out = "", None
    try:
        with terminating():
            args = parser().parse_args(arguments)
            command, out = args.command, vars(args).get("out")
            _set_up_log(args)
            for module in vars(args).get("imports", ()):
                own.load(module)
            status = int(args.run(args))
            sys.stdout.flush()
            return status
    except (KeyboardInterrupt, Terminated) as error:
        told = "interrupted" if isinstance(error, KeyboardInterrupt) else "told to stop"
        logs.tell(logging.WARNING, f"{told}; {_goes_on(command, out)}")
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else TERMINATED
    except Diverged as error:
        logs.tell(logging.ERROR, f"diverged: {one_line(error)}")
        return DIVERGED
    except CutlayerError as error:
        logs.tell(logging.ERROR, f"error: {one_line(error)}")
        return ABANDONED if isinstance(error, RoundAbandoned) else WRONG
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            _say_no_more()
            return PIPE
        logs.tell(logging.ERROR, f"error: {one_line(error)}")
        return WRONG
    finally:
        if "cutlayer.processes.ranks" in sys.modules:
            from cutlayer.processes.ranks import leave

            leave()


def _set_up_log(args: argparse.Namespace) -> None:
    given = vars(args)
    logs.set_up(given.get("log_format", "text"), given.get("log_file"), given.get("quiet", False))


def _say_no_more() -> None:
    """Discard the rest of our output, because its reader has gone."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _goes_on(command: str, out: str | None) -> str:
    if command in ("run", "compare", "sweep", "serve", "reproduce") and out and not os.path.isdir(out):
        return "nothing had begun"
    if command == "join":
        return "the same command takes part again"
    if command == "reproduce":
        return "the same command goes on from here"
    if command in ("run", "compare", "sweep", "resume", "serve"):
        return "`cutlayer resume` on the output folder goes on from here"
    return "nothing was changed"


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    logs.tell(logging.WARNING, f"warning: {one_line(message)}")


if __name__ == "__main__":
    sys.exit(main())
