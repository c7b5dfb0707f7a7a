"""`cutlayer list cuts`: what every cut of a model costs, and what it gives away of the input."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import rich.box
import rich.table
import torch

from cutlayer.cli import flags
from cutlayer.cli.cuts import ROWS
from cutlayer.cli.output import console, print_json
from cutlayer.core.randomness import EVERYBODY, rng
from cutlayer.data.views import View
from cutlayer.errors import ContractError, expect
from cutlayer.experiment import config as text
from cutlayer.experiment.model_files import build_model, warm_start
from cutlayer.experiment.population import load_data, look
from cutlayer.models import example
from cutlayer.nn.leakage import leakage
from cutlayer.simulation.cuts import CutCost, cuts

CAPTION = (
    "client: blocks 0..cut, server: the rest. MACs: multiply-accumulates of one forward pass, one sample; kbit: the "
    "activations of one sample at 32 bits (their gradient is as large)."
)
LEAKS = (
    " dCor: distance correlation between input and activations over {rows} rows of {task}, {weights}: 1 gives the "
    "input away, 0 nothing."
)


def run(args: argparse.Namespace) -> int:
    values = flags.config_values(args)
    expect(args.classes is None or args.classes >= 1, "classes", args.classes, "a whole number, at least 1")
    shape, classes, data = None, args.classes or 10, None
    if args.input is not None:
        shape = _shape(args.input)
    config = text.parse(values)
    if args.leakage or shape is None or "task" in values or "data" in values:
        look(config)
        data = load_data(config)
        if shape is not None and shape != data.shape:
            raise ContractError(f"input = {args.input!r}: the rows of {config.task} are {_times(data.shape)}")
        shape, classes = data.shape, args.classes or data.classes
    assert shape is not None
    model = build_model(config.model, shape, classes, config.seed)
    if config.init is not None:
        warm_start(model, Path(config.init))
    found = cuts(model, example(model, shape))
    leaks: list[float] | None = None
    words = CAPTION
    if args.leakage and data is not None:
        rows = min(ROWS, len(data.train)) if args.rows is None else args.rows
        expect(2 <= rows <= len(data.train), "rows", rows, f"a whole number from 2 to {len(data.train)}")
        some = rng(config.seed, 0, EVERYBODY, "leakage").permutation(len(data.train))[:rows]
        x, _ = View(data.train, some, data.plain).take(np.arange(rows), torch.device("cpu"))
        with console.status("measuring what each cut gives away"):
            leaks = leakage(model, x)
        weights = "the weights given" if config.init else "random weights"
        words += LEAKS.format(rows=rows, task=config.task, weights=weights)
    if args.json:
        plain = [{**asdict(cut), **({} if leaks is None else {"dcor": leaks[cut.cut]})} for cut in found]
        print_json({"model": config.model, "input": list(shape), "classes": classes, "cuts": plain})
        return 0
    title = f"{config.model['name']}, input {_times(shape)}, {classes} classes, {len(found) + 1} blocks"
    console.print(_table(title, words, found, leaks))
    return 0


def _shape(given: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*([x,][1-9]\d*)*", given):
        raise ContractError(f"input = {given!r}: expected sizes such as 3x32x32")
    return tuple(int(size) for size in re.split("[x,]", given))


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _table(title: str, words: str, found: list[CutCost], leaks: list[float] | None) -> rich.table.Table:
    out = rich.table.Table(
        title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, caption=words, caption_justify="left"
    )
    out.add_column("cut", justify="right", style="bold")
    named = any(cut.name != str(cut.cut) for cut in found)
    if named:
        out.add_column("after", no_wrap=True)
    out.add_column("output", justify="right")
    for heading in ("client weights", "server weights", "client MACs", "server MACs"):
        out.add_column(heading, justify="right")
    out.add_column("client's share", no_wrap=True)
    out.add_column("kbit", no_wrap=True)
    if leaks is not None:
        out.add_column("dCor", no_wrap=True)
    most = max(cut.kbit for cut in found)
    for cut in found:
        cells = [
            str(cut.cut),
            *([cut.name] if named else []),
            _times(cut.output),
            *(f"{n:,}" for n in cut.weights),
            *map(_short, cut.macs),
        ]
        cells += [f"{_bar(cut.share)} {cut.share:6.1%}", f"{_bar(cut.kbit / most)} {cut.kbit:,.1f}"]
        if leaks is not None:
            cells.append(f"{_bar(leaks[cut.cut])} {leaks[cut.cut]:.2f}")
        out.add_row(*cells)
    return out


def _short(macs: int) -> str:
    """A count with its unit: 10.20 k, 37.01 M, 1.81 G."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if macs >= size:
            return f"{macs / size:.2f} {unit}"
    return str(macs)


def _bar(share: float, width: int = 8) -> str:
    """A share as a bar, to an eighth of a character."""
    eighths = round(8 * width * min(max(share, 0), 1))
    full, rest = divmod(eighths, 8)
    return ("█" * full + " ▏▎▍▌▋▊▉"[rest].strip()).ljust(width)
