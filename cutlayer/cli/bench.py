"""The flags of `cutlayer bench`."""

from __future__ import annotations

from typing import Any

from cutlayer.cli.output import add_json
from cutlayer.cli.parser import later

ABOUT = """\
Measure how fast this machine simulates clients. Everything is timed side by side in one process, turn by turn, and
the figures are medians of ratios with their quartiles: 1.00 is as fast as the other, 2.00 twice as fast.

  throughput   over centralised training of the same samples: plain PyTorch, and tuned (channels_last, fused SGD); and
               over a naive simulation: a deepcopied module and a torch optimizer for every client
  schemes      every scheme over plain centralised training
  fusion       what SMoFi's fusion adds to a step, and the share of a step that updates and fuses
  overhead     the share of a round that is neither training nor testing
  clients      seconds of a round against selected and registered clients
  memory       bytes for each server-half parameter and selected client
  processes    two ranks against one, one thread each

With --device, on an accelerator instead: a client's step in both backends beside plain training on the same device,
and the peak of its memory, as a block of Markdown to paste into an issue.

With --net, over the loopback interface and mutual TLS instead:

  frames       bytes beyond those of the tensors, in percent
  trip         a step of 1 MiB each way against a bare gRPC stream, to the same other process
  crowd        50 client processes with a tiny model: milliseconds of a step beyond its computing, for each client

examples:
  cutlayer bench --quick                              under a minute, rough
  cutlayer bench --json > bench.json                  everything; half an hour on two cores
  cutlayer bench --only throughput --models mlp lstm
  cutlayer bench --device cuda
  cutlayer bench --net
"""
SECTIONS = ("throughput", "schemes", "fusion", "overhead", "clients", "memory", "processes")
NETWORK = ("frames", "trip", "crowd")


def add(commands: Any) -> None:
    command = commands.add_parser("bench", help="how fast clients are simulated on this machine", description=ABOUT)
    command.add_argument("--quick", action="store_true", help="smaller rounds, fewer participations: under a minute")
    command.add_argument("--only", nargs="+", metavar="SECTION", help=f"some of: {', '.join((*SECTIONS, *NETWORK))}")
    command.add_argument("--net", action="store_true", help="measure the network instead")
    command.add_argument("--device", metavar="DEVICE", help="measure an accelerator instead: cuda, cuda:1, mps, xpu")
    command.add_argument(
        "--models", nargs="+", metavar="NAME", help="for throughput: some of its models (a wrong name lists them)"
    )
    command.add_argument("--repeats", type=int, metavar="N", help="participations (default: 7; quick: 1)")
    add_json(command, "the figures")
    command.set_defaults(run=later("bench"))
