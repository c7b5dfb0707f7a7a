"""The output of a command: to a terminal, to a log, or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from cutlayer.engine.progress import console

__all__ = ["add_json", "add_log", "console", "print_json"]


def add_json(command: argparse.ArgumentParser, what: str) -> None:
    """Add the flag for commands whose figures other programs may read."""
    command.add_argument("--json", action="store_true", help=f"print {what} as JSON, and nothing else")


def add_log(command: argparse.ArgumentParser) -> None:
    """Add the flags for commands that run for a long time."""
    group = command.add_argument_group("log")
    group.add_argument("--log-format", choices=("text", "json"), default="text", help="of its lines (default: text)")
    group.add_argument("--log-file", metavar="FILE", help="write them here too; five files of 10 MB are kept")


def print_json(values: Any) -> None:
    json.dump(values, sys.stdout, indent=1, allow_nan=False)
    print()
