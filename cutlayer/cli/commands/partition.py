"""`cutlayer partition`: who would hold which rows, before anything is trained."""

from __future__ import annotations

import argparse
import io
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
import rich.table
from numpy.typing import NDArray

from cutlayer.cli import flags
from cutlayer.cli.output import console, print_json
from cutlayer.cli.partition import SHORT
from cutlayer.core.files import as_path, from_root, write_aside
from cutlayer.data import partition_file
from cutlayer.data.parts import Parts, divergence, histograms
from cutlayer.data.rows import StoredRows
from cutlayer.errors import ContractError, StoreError
from cutlayer.experiment import config as text
from cutlayer.experiment.population import divided, load_data, look
from cutlayer.report import mixture

BARS = " ▁▂▃▄▅▆▇█"
SHOWN = 12


def run(args: argparse.Namespace) -> int:
    config = text.parse(_values(args))
    png, export = as_path("png", args.png or "partition.png"), as_path("export", args.export) if args.export else None
    parts_file = as_path("parts", args.parts) if args.parts else None
    for field, path in (("png", png), ("parts", parts_file)):
        if path is not None:
            _writable(field, path)
    if parts_file is not None:
        partition_file.check_name(parts_file)
    if export is not None and os.path.lexists(export) and not export.is_dir():
        what = "a link that leads nowhere" if export.is_symlink() else "a file"
        raise StoreError(f"{export}: {what}; expected a folder to write the clients' rows to")
    with console.status(f"reading {config.task}"):
        look(config)
        data = load_data(config)
    began = time.perf_counter()
    with console.status(f"dividing {config.task}"):
        rows, parts = divided(config, data)
        counts = histograms(parts, rows.y, data.classes)
    seconds = time.perf_counter() - began
    if args.json:
        print_json(_figures(counts))
    title = f"{config.task}, {len(parts)} clients, {text.words(config.partition)}, seed {config.seed}"
    if not args.json:
        console.print(f"{title}; divided in {seconds:.1f} s", markup=False, soft_wrap=True)
        if parts.origin:
            console.print(f"form of the file: {parts.origin}", markup=False, soft_wrap=True)
        console.print(_summary(counts))
        console.print(_clients(counts, parts))
    wrote = [png]
    write_aside(png, mixture.draw(counts, title))
    if parts_file is not None:
        partition_file.write(parts_file, parts, len(rows))
        wrote.append(parts_file)
    if export is not None:
        wrote.append(_export(export, rows, parts))
    if not args.json:
        console.print("wrote " + ", ".join(str(path) for path in wrote), markup=False, soft_wrap=True)
    return 0


def _writable(field: str, path: Path) -> None:
    """Refuse a path that cannot be written to, before anything is computed."""
    if not from_root(field, path).parent.is_dir():
        raise StoreError(f"{path}: no such folder to write it to")
    if path.is_dir():
        raise StoreError(f"{path}: a folder; expected a file to write")


def _export(folder: Path, rows: StoredRows, parts: Parts) -> Path:
    """Write each client's rows to a separate file."""
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
    """How rows, classes and divergence vary over the clients."""
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
