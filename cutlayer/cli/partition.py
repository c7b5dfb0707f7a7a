"""`cutlayer partition`: who would hold which rows, before anything is trained."""

from __future__ import annotations

import argparse
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
import rich.table
from numpy.typing import NDArray

from cutlayer import config as text
from cutlayer.cli import flags
from cutlayer.cli.progress import console
from cutlayer.data import partition_file
from cutlayer.data.parts import Parts, divergence, histograms
from cutlayer.data.rows import Rows
from cutlayer.errors import ContractError, StoreError
from cutlayer.files import write_aside
from cutlayer.population import divided, load_data
from cutlayer.report import mixture

ABOUT = """\
Divide a data set over clients as `run` would with the same flags and seed, and show the result: sizes, label mixture,
and the Jensen-Shannon divergence of each client's labels from an even mixture (base 2: 0 even, towards 1 one class).
Writes a picture, and with --out a file that --partition file --partition.path FILE trains on.

examples:
  cutlayer partition --task cifar10 --clients 100 --dirichlet 0.2 --data-dir DATA
  cutlayer partition --clients 20 --shards 2 --out parts.json         digits, two shards each, written down
  cutlayer partition --task femnist --natural --data-dir DATA         one client a writer
  cutlayer partition --partition file --partition.path parts.json     a published partition, looked at
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
BARS = " ▁▂▃▄▅▆▇█"
SHOWN = 12


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
    command.add_argument("--out", metavar="FILE", help="write the parts: .json or .npz")
    command.add_argument("--png", metavar="FILE", help="where to draw them (default: partition.png)")
    command.add_argument("--json", metavar="FILE", help="write the figures")
    command.add_argument(
        "--export", metavar="FOLDER", help="write each client's rows: client-0.npz, ... for `join --data`"
    )
    flags.add_config(command, FIELDS)
    command.set_defaults(run=_partition)


def _partition(args: argparse.Namespace) -> int:
    config = text.parse(_values(args))
    png = Path(args.png or "partition.png")
    for path in (png, *(Path(p) for p in (args.out, args.json) if p)):
        if not path.resolve().parent.is_dir():
            raise StoreError(f"{path}: no such folder to write it to")
    if args.export and Path(args.export).exists() and not Path(args.export).is_dir():
        raise StoreError(f"{args.export}: a file; expected a folder to write the clients' rows to")
    with console.status(f"reading {config.task}"):
        data = load_data(config)
    began = time.perf_counter()
    with console.status(f"dividing {config.task}"):
        rows, parts = divided(config, data)
        counts = histograms(parts, rows.y, data.classes)
    seconds = time.perf_counter() - began
    title = f"{config.task}, {len(parts)} clients, {text.words(config.partition)}, seed {config.seed}"
    console.print(f"{title}; divided in {seconds:.1f} s", markup=False, soft_wrap=True)
    console.print(_summary(counts))
    console.print(_clients(counts, parts))
    wrote = [png]
    write_aside(png, mixture.draw(counts, title))
    if args.out:
        partition_file.write(Path(args.out), parts, len(rows))
        wrote.append(Path(args.out))
    if args.json:
        write_aside(Path(args.json), json.dumps(_figures(counts), indent=1).encode())
        wrote.append(Path(args.json))
    if args.export:
        wrote.append(_export(Path(args.export), rows, parts))
    console.print("wrote " + ", ".join(str(path) for path in wrote), markup=False, soft_wrap=True)
    return 0


def _export(folder: Path, rows: Rows, parts: Parts) -> Path:
    """Each client's rows in a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    with console.status(f"writing {folder}"):
        for j, part in enumerate(parts):
            held = io.BytesIO()
            np.savez(held, x=rows.x[part], y=rows.y[part])
            write_aside(folder / f"client-{j}.npz", held.getvalue())
    return folder


def _values(args: argparse.Namespace) -> dict[str, Any]:
    """The config's values, with the short flags spelled out."""
    values = flags.config_values(args)
    chosen: list[dict[str, Any]] = []
    for name, (partition, parameter, _) in SHORT.items():
        given = getattr(args, name)
        if given is not None:
            whole = name == "shards" and given.is_integer()
            chosen.append({"name": partition, parameter: int(given) if whole else given})
    chosen += [{"name": name} for name in ("iid", "natural") if getattr(args, name)]
    if len(chosen) + ("name" in values.get("partition", {})) > 1:
        raise ContractError(
            "partition: expected one of --dirichlet, --quantity, --shards, --iid, --natural, --partition"
        )
    if chosen:
        values["partition"] = {**values.get("partition", {}), **chosen[0]}
    return values


def _figures(counts: NDArray[np.int64]) -> dict[str, Any]:
    return {
        "sizes": counts.sum(axis=1).tolist(),
        "js_divergence": divergence(counts).tolist(),
        "labels": counts.tolist(),
    }


def _summary(counts: NDArray[np.int64]) -> rich.table.Table:
    """Smallest, middle and largest of what matters."""
    out = rich.table.Table(box=rich.box.SIMPLE_HEAD)
    out.add_column("", style="bold")
    for heading in ("lowest", "10 %", "median", "90 %", "highest", "mean"):
        out.add_column(heading, justify="right")
    what = {
        "rows a client": (counts.sum(axis=1).astype(float), ".0f"),
        "classes a client": ((counts > 0).sum(axis=1).astype(float), ".0f"),
        "J-S divergence": (divergence(counts), ".3f"),
    }
    for name, (values, form) in what.items():
        cells = [*np.quantile(values, (0, 0.1, 0.5, 0.9, 1)), values.mean()]
        last = ".1f" if form == ".0f" else form
        out.add_row(name, *(format(cell, form) for cell in cells[:-1]), format(cells[-1], last))
    return out


def _clients(counts: NDArray[np.int64], parts: Parts) -> rich.table.Table:
    """The first clients, with their label mixture as a row of bars."""
    out = rich.table.Table(box=rich.box.SIMPLE_HEAD)
    out.add_column("client", justify="right")
    out.add_column("rows", justify="right")
    out.add_column("J-S", justify="right")
    width = min(counts.shape[1], 60)
    out.add_column(f"label mixture, classes 0..{counts.shape[1] - 1}", no_wrap=True)
    for j, far in enumerate(divergence(counts[:SHOWN])):
        binned = np.array([part.sum() for part in np.array_split(counts[j], width)])
        tall = np.ceil(8 * binned / max(binned.max(), 1)).astype(int)
        out.add_row(str(j), str(counts[j].sum()), f"{far:.3f}", "".join(BARS[t] for t in tall))
    if len(parts) > SHOWN:
        out.add_row("...", f"{len(parts) - SHOWN} more", "", "")
    return out
