"""The flags of `cutlayer doctor`."""

from __future__ import annotations

from typing import Any

from cutlayer.cli.output import add_json
from cutlayer.cli.parser import later
from cutlayer.registry.data import FOLDER_VARIABLE

ABOUT = """\
What this machine, the installation and the data folder offer.

examples:
  cutlayer doctor --data-dir DATA
  cutlayer doctor --json
"""


def add(commands: Any) -> None:
    command = commands.add_parser("doctor", help="what this machine and the data folder offer", description=ABOUT)
    command.add_argument("--data-dir", metavar="FOLDER", help=f"data folder (default: the variable {FOLDER_VARIABLE})")
    add_json(command, "all of it")
    command.set_defaults(run=later("doctor"))
