"""The flags of `cutlayer sweep`."""

from __future__ import annotations

from typing import Any

from cutlayer.cli import flags
from cutlayer.cli.output import add_log
from cutlayer.cli.parser import later
from cutlayer.cli.train import DRY, add_jobs, quiet

ABOUT = """\
Train one method at every value of a parameter, with several seeds, as one comparison: a table, learning curves, and
accuracy and rounds to target against the parameter. Every flag of `run` takes several values; flags with several make
the points, all combinations of them.

Tune on validation rows, so that the test rows stay unseen: --validation 0.1.

examples:
  cutlayer sweep --scheme smofi --scheme.alpha -1 -0.5 -0.1 0 --out runs/alpha
  cutlayer sweep --scheme smofi --optimizer.lr 0.02 0.05 0.1 --validation 0.1 --seeds 100 101 --out runs/rates
  cutlayer sweep --preset smofi-cifar10 --cut 0 2 4 6 8 --against fedavg --rounds 50 --data-dir DATA --out runs/cuts
  cutlayer sweep --scheme smofi --cut 0,1 1,2 --out runs/ranges           a cut that is drawn anew in every round
"""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "sweep",
        help="train a method at every value of a parameter",
        description=ABOUT,
        usage="cutlayer sweep [FLAGS]",
    )
    command.add_argument("--seeds", nargs="+", metavar="INT", help="seeds (default: 0 1 2)")
    command.add_argument(
        "--against", nargs="+", metavar="METHOD", help="these methods too, once each: lines in the picture"
    )
    command.add_argument("--config", metavar="FILE", help="begin with the values of a run's TOML file")
    command.add_argument("--preset", metavar="NAME", help="begin with the values of `cutlayer list presets`")
    command.add_argument("--method", metavar="LABEL", help="which of the preset's methods (default: the paper's own)")
    command.add_argument("--out", metavar="FOLDER", help="where to write (default: runs/sweep-TASK)")
    command.add_argument("--overwrite", action="store_true", help="replace what is there already")
    command.add_argument("--dry-run", action="store_true", help=DRY)
    add_jobs(command)
    quiet(command)
    add_log(command)
    flags.add_config(command, hidden=("seed",), several=True)
    command.set_defaults(run=later("sweep"), track=None)
