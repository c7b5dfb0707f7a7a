"""The flags of `cutlayer list cuts`."""

from __future__ import annotations

import argparse

from cutlayer.cli import flags
from cutlayer.cli.parser import section

FIELDS = ("task", "model", "data_dir", "data", "x_column", "y_column", "layout", "image_size", "seed", "init")
ROWS = 400


def add_flags(command: argparse.ArgumentParser) -> None:
    group = section(command, "cuts", "list cuts", shown=True)
    group.add_argument("--input", metavar="3x32x32", help="shape of one sample (default: the task's)")
    group.add_argument("--classes", type=int, metavar="N", help="outputs of the model (default: the task's, or 10)")
    group.add_argument("--leakage", action="store_true", help="measure what each cut gives away, on rows of the task")
    group.add_argument("--rows", type=int, metavar="N", help=f"rows for --leakage (default: {ROWS}, or all)")
    flags.add_config(command, FIELDS, short=())
