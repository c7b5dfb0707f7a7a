"""The command line: `cutlayer run | compare | resume | report | serve | join | certs | list | partition | ...`."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from cutlayer import heap
from cutlayer._version import __version__
from cutlayer.cli import bench, certs, clock, costs, doctor, listing, partition, serve, train
from cutlayer.cli.flags import Parser
from cutlayer.errors import CutlayerError, Diverged
from cutlayer.ranks import leave

ABOUT = """\
Split federated learning: a model is cut in two, clients train the front on data that never leaves them,
a server trains the back.

first steps:
  cutlayer compare --preset demo --out runs/demo       five methods on handwritten digits, two minutes
  cutlayer run --task digits --scheme smofi --rounds 20 --out runs/first
  cutlayer list                                        what there is to choose from
"""


def parser() -> argparse.ArgumentParser:
    """All commands and their flags."""
    top = Parser(prog="cutlayer", description=ABOUT)
    top.add_argument("--version", action="version", version=f"cutlayer {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for module in (train, serve, certs, listing, partition, clock, costs, bench, doctor):
        module.add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; what is wrong with the input is one line on stderr, and exit status 2 (3: diverged)."""
    warnings.showwarning = _warn
    heap.keep()
    command = ""
    try:
        args = parser().parse_args(arguments)
        command = args.command
        return int(args.run(args))
    except Diverged as error:
        print(f"cutlayer: diverged: {error}", file=sys.stderr)
        return 3
    except CutlayerError as error:
        print(f"cutlayer: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            sys.stderr.close()  # the reader of our output has gone: nothing more to say
            return 141
        print(f"cutlayer: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        goes_on = (
            "the same command takes part again"
            if command == "join"
            else "`cutlayer resume` on the output folder goes on from here"
        )
        print(f"cutlayer: interrupted; {goes_on}", file=sys.stderr)
        return 130
    finally:
        leave()


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"cutlayer: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
