"""The flags of `cutlayer reproduce`."""

from __future__ import annotations

from typing import Any

from cutlayer.cli.output import add_json, add_log
from cutlayer.cli.parser import later
from cutlayer.cli.train import add_jobs, quiet
from cutlayer.registry.data import FOLDER_VARIABLE

ABOUT = """\
Make a table or a figure of a paper, in the paper's layout, with our numbers beside the printed ones. Without a table or
figure: list all of them, with the data and the runs they need, and about how long they take here.

Runs that are missing are trained, interrupted ones go on, and items that need the same run share it: give them the same
--out. Files: OUT/PAPER-ITEM/report.html, table.md, table.json, figure.png; the runs are in OUT/runs.

scales:
  laptop        smaller models, fewer rows and rounds: a block and column of a table within an hour, one seed, two cores
  workstation   a quarter of the paper's rounds, all else as printed: for one GPU (--device cuda)
  paper         the setting as printed

examples:
  cutlayer reproduce                                            what there is
  cutlayer reproduce smofi table-1 --only cifar-10 fedavg --data-dir DATA --out runs/smofi
  cutlayer reproduce smofi table-2 --data-dir DATA --out runs/smofi       shares the runs of table 1
  cutlayer reproduce cyclesl table-3 --only femnist --seeds 0 1 2 --data-dir DATA --out runs/cyclesl
  cutlayer reproduce smofi figure-3 --scale paper --dry-run --data-dir DATA
"""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "reproduce",
        help="a table or figure of the papers, ours beside the printed numbers",
        description=ABOUT,
        usage="cutlayer reproduce [PAPER [ITEM]] [FLAGS]",
    )
    command.add_argument("paper", nargs="?", metavar="PAPER", help="smofi or cyclesl (default: both are listed)")
    command.add_argument("item", nargs="?", metavar="ITEM", help="table-1, figure-3, ... (default: all are listed)")
    command.add_argument(
        "--scale", default="laptop", metavar="{laptop,workstation,paper}", help="how large (default: laptop)"
    )
    command.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help="these columns (cifar-10), blocks (fedprox) or rows (smofi, fedavg/fedavg) alone",
    )
    command.add_argument(
        "--seeds", nargs="+", metavar="INT", help="seeds (default: 0; at paper scale, as many as the paper has)"
    )
    command.add_argument("--out", metavar="FOLDER", help="where to write (default: runs/reproduce-SCALE)")
    command.add_argument(
        "--data-dir", metavar="FOLDER", help=f"folder of data sets (default: the variable {FOLDER_VARIABLE})"
    )
    command.add_argument("--device", default="cpu", metavar="DEVICE", help="as of run (default: cpu)")
    command.add_argument(
        "--dry-run", action="store_true", help="say which runs are needed and which are there; train and write nothing"
    )
    command.add_argument("--no-train", action="store_true", help="make it from the runs that are there; train nothing")
    add_jobs(command)
    quiet(command)
    add_json(command, "the list, or the numbers")
    add_log(command)
    command.set_defaults(run=later("reproduce"))
