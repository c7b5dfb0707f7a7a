"""The flags of `cutlayer costs`."""

from __future__ import annotations

from typing import Any

from cutlayer.cli.output import add_json
from cutlayer.cli.parser import later
from cutlayer.registry import SCHEMES

ABOUT = """\
Open a round of every scheme with m clients, feed it activations, and measure what it costs the server: memory in
server halves, compute in client batches a step, latency in passes that must follow one another, and seconds.
The measured counterpart of Table 1 in the CycleSL paper; takes a few seconds.

examples:
  cutlayer costs
  cutlayer costs --schemes fedavg smofi cyclesfl --clients 10 100 --optimizer adam --json > costs.json
  cutlayer costs --schemes smofi 'aligned(cycle=true)' 'aligned(lam=0.5, rho=0.1)'
"""


def add(commands: Any) -> None:
    command = commands.add_parser("costs", help="what each scheme costs the server, measured", description=ABOUT)
    command.add_argument(
        "--schemes",
        nargs="+",
        metavar="NAME",
        default=list(SCHEMES),
        help="which, with parameters or without (default: all)",
    )
    command.add_argument(
        "--clients",
        nargs="+",
        type=int,
        metavar="M",
        default=[2, 4, 8, 16],
        help="clients of a round (default: 2 4 8 16)",
    )
    command.add_argument("--optimizer", metavar="NAME", default="sgd", help="whose memory is counted (default: sgd)")
    command.add_argument("--batch-size", type=int, metavar="N", default=32, help="samples a step (default: 32)")
    add_json(command, "the figures")
    command.set_defaults(run=later("costs"))
