"""The flags of `cutlayer clock`."""

from __future__ import annotations

from argparse import BooleanOptionalAction
from typing import Any

from cutlayer.cli.output import add_json
from cutlayer.cli.parser import later
from cutlayer.registry import PROFILES

ABOUT = """\
Count the simulated time of a run or comparison again, from its journal and without training: on other devices, at
another cut, with a faster or slower server. T is the time to the target accuracy, 90 % of FedAvg's best (of the run's
own best, where there is only one method).

examples:
  cutlayer clock runs/demo                          T with the devices of the run
  cutlayer clock runs/demo --profile lte            on measured 4G
  cutlayer clock runs/demo --profile 3g --cut 1 --count-sync
  cutlayer clock runs/demo --plain                  had the whole model been sent and averaged instead
"""


def add(commands: Any) -> None:
    command = commands.add_parser("clock", help="a run's simulated time on other devices", description=ABOUT)
    command.add_argument("folder", metavar="RUN", help="the folder of a run or a comparison")
    profiles = "; ".join(f"{name}: {line}" for name, line in PROFILES.items())
    command.add_argument("--profile", metavar="NAME", help=f"the clients' devices - {profiles}")
    command.add_argument("--cut", type=int, metavar="L", help="the client's last block, as if it learned the same")
    command.add_argument("--kappa", type=float, metavar="K", help="the server is K times as fast as a client")
    command.add_argument("--count-sync", action=BooleanOptionalAction, help="count the fronts' way down and up")
    command.add_argument("--sequential", metavar="{strict,paper_like}", help="SFLV2: clients strictly in turn, or not")
    command.add_argument("--plain", action="store_true", help="as plain federated learning: nothing is cut")
    command.add_argument("--target", type=float, metavar="ACCURACY", help="time to this accuracy instead")
    add_json(command, "the figures")
    command.set_defaults(run=later("clock"))
