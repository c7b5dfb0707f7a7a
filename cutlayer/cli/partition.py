"""The flags of `cutlayer partition`."""

from __future__ import annotations

from typing import Any

from cutlayer.cli import flags
from cutlayer.cli.output import add_json
from cutlayer.cli.parser import later

ABOUT = """\
Divide a data set over clients as `run` would with the same flags and seed, and show the result: sizes, label mixture,
and the Jensen-Shannon divergence of each client's labels from an even mixture (base 2: 0 even, towards 1 one class).
Writes a picture, and with --parts a file that --partition file --partition.path FILE trains on.

examples:
  cutlayer partition --task cifar10 --clients 100 --dirichlet 0.2 --data-dir DATA
  cutlayer partition --clients 20 --shards 2 --parts parts.json        digits, two shards each, written down
  cutlayer partition --task femnist --natural --data-dir DATA         one client a writer
  cutlayer partition --partition file --partition.path parts.json     a saved one, of Flower or FL-bench too
  cutlayer partition --clients 4 --export parts      parts/client-0.npz, ...: to try `serve` and `join` on one machine
"""
FIELDS = (
    *("task", "data_dir", "data", "data_test", "x_column", "y_column", "owner_column", "layout", "image_size"),
    *("train_rows", "partition", "clients", "protocol", "seed"),
)
SHORT = {
    "dirichlet": ("dirichlet", "gamma", "label skew: Dir(GAMMA) of each class over the clients"),
    "quantity": ("quantity", "gamma", "sizes by Dir(GAMMA), all with the same mixture"),
    "shards": ("shards", "shards", "each client N shards of the rows sorted by label"),
}


def add(commands: Any) -> None:
    command = commands.add_parser(
        "partition",
        help="who holds which rows, as a table, a picture and a file",
        description=ABOUT,
        usage="cutlayer partition [FLAGS]",
    )
    for name, (_, _, words) in SHORT.items():
        command.add_argument(f"--{name}", type=float, metavar="N" if name == "shards" else "GAMMA", help=words)
    command.add_argument("--iid", action="store_true", help="equal parts at random")
    command.add_argument("--natural", action="store_true", help="one client an owner (writer, role, speaker)")
    command.add_argument("--parts", metavar="FILE", help="write the parts: .json or .npz")
    command.add_argument("--png", metavar="FILE", help="where to draw them (default: partition.png)")
    add_json(command, "sizes, labels and divergences")
    command.add_argument(
        "--export", metavar="FOLDER", help="write each client's rows: client-0.npz, ... for `join --data`"
    )
    flags.add_config(command, FIELDS, short=flags.SECTIONS)
    command.set_defaults(run=later("partition"))
