"""From an item and its runs to its files: report.html, table.md, table.json and, for a figure, figure.png."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cutlayer._version import __version__
from cutlayer.core.files import write_aside
from cutlayer.reproduce import printed, sheet
from cutlayer.reproduce.figures import draw
from cutlayer.reproduce.item import Item
from cutlayer.reproduce.layout import sections
from cutlayer.reproduce.results import Result, results
from cutlayer.reproduce.runs import Runs
from cutlayer.reproduce.scales import reductions
from cutlayer.reproduce.sheet import Sheet


def title(item: Item) -> str:
    """`SMoFi, table 1: momentum methods on three baselines`."""
    names = {"smofi": "SMoFi", "cyclesl": "CycleSL"}
    return f"{names[item.paper]}, {item.name.replace('-', ' ')}: {item.title}"


def measured(item: Item, more: Mapping[str, Any], command: str) -> Sheet:
    """Measure an item that trains nothing."""
    module, _, function = item.make.partition(":")
    found: Sheet = getattr(importlib.import_module(module), function)(item, more)
    notes = (*item.notes, *found.notes)
    return replace(found, title=title(item), notes=notes, about=_about(command))


def trained(runs: Runs, command: str) -> Sheet:
    """Make a table or figure from what its runs have written so far."""
    item = runs.item
    found = results(item, runs.found(), reduced=runs.scale != "paper")
    told = printed.by_place(item.paper, item.name)
    numbers = [{**result.plain(), "printed": _printed(told, result)} for result in found]
    for result, number in zip(found, numbers, strict=True):
        number["runs"] = [str(runs.folder(result.cell, seed).relative_to(runs.out)) for seed in runs.seeds]
    about = {
        **_about(command),
        "scale": runs.scale,
        "seeds": list(runs.seeds),
        "reduced": reductions([cell.values for cell in item.cells], runs.scale),
        "target": _targets(found) if "rounds" in item.measures else [],
        "minutes of training": round(_seconds(found) / 60, 1),
    }
    shown = sections(item, [result for result in found if not result.cell.hidden])
    return Sheet(title(item), shown, numbers, item.notes, draw(item, found), about)


def _about(command: str) -> dict[str, Any]:
    return {"command": command, "version": __version__}


def _printed(told: Mapping[Any, Mapping[str, Any]], result: Result) -> dict[str, Any] | None:
    known = told.get(result.cell.place[:3])
    return None if known is None else {k: v for k, v in known.items() if k not in ("panel", "block", "row")}


def _targets(found: list[Result]) -> list[str]:
    """The accuracy that rounds are counted to, in each panel."""
    return list(dict.fromkeys(f"{r.cell.panel}: {100 * r.target:.2f} %" for r in found if r.target == r.target))


def _seconds(found: list[Result]) -> float:
    """The seconds that all runs took, each counted once."""
    each = {(o.seed, id(o.rounds)): sum(r.seconds for r in o.rounds) for result in found for o in result.outcomes}
    return sum(each.values())


def write(made: Sheet, folder: Path) -> list[Path]:
    """Write an item's files; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "report.html": sheet.for_html(made).encode(),
        "table.md": sheet.for_markdown(made).encode(),
        "table.json": sheet.for_json(made).encode(),
        **({"figure.png": made.picture} if made.picture is not None else {}),
    }
    for name, content in files.items():
        write_aside(folder / name, content)
    return [folder / name for name in files]
