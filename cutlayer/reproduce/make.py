"""From an item and its runs to its files: report.html, table.md, table.json and, for a figure, figure.png."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cutlayer._version import __version__
from cutlayer.core.files import write_aside
from cutlayer.reproduce import printed, sheet
from cutlayer.reproduce.figures import draw
from cutlayer.reproduce.item import Item
from cutlayer.reproduce.layout import differences, sections
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
    begin = time.monotonic()
    found: Sheet = getattr(importlib.import_module(module), function)(item, more)
    minutes = (time.monotonic() - begin) / 60
    about = {**_about(command), "seeds": "none: nothing is trained", "minutes": round(minutes, 2)}
    return replace(found, title=title(item), notes=(*item.notes, *found.notes), about=about)


def trained(runs: Runs, command: str) -> Sheet:
    """Make a table or figure from what its runs have written so far."""
    item = runs.item
    found = results(item, runs.found(), reduced=runs.scale != "paper")
    told = printed.by_place(item.paper, item.name)
    drawn = item.measures if item.view == "curves" else ()
    numbers = [{**result.plain(drawn), "printed": _printed(told, result)} for result in found]
    for result, number in zip(found, numbers, strict=True):
        number["runs"] = [str(runs.folder(result.cell, seed).relative_to(runs.out)) for seed in runs.seeds]
    about = {
        **_about(command),
        "scale": runs.scale,
        "seeds": list(runs.seeds),
        "reduced": reductions([cell.values for cell in item.cells], runs.scale),
        "target": _targets(found) if "rounds" in item.measures else [],
        "data here": runs.fewer_rows(),
        "minutes of training": round(_seconds(runs, found) / 60, 1),
    }
    shown = [*sections(item, [result for result in found if not result.cell.hidden]), *differences(item, found)]
    return Sheet(title(item), shown, numbers, item.notes, draw(item, found), about)


def _about(command: str) -> dict[str, Any]:
    return {"command": command, "version": __version__}


def _printed(told: Mapping[Any, Mapping[str, Any]], result: Result) -> dict[str, Any] | None:
    known = told.get(result.cell.place[:3])
    return None if known is None else {k: v for k, v in known.items() if k not in ("panel", "block", "row")}


def _targets(found: list[Result]) -> list[str]:
    """The accuracy that rounds are counted to, in each panel."""
    return list(dict.fromkeys(f"{r.cell.panel}: {100 * r.target:.2f} %" for r in found if r.target == r.target))


def _seconds(runs: Runs, found: list[Result]) -> float:
    """The seconds that all runs took. Cells may share a run, which is counted once."""
    each = {runs.folder(r.cell, o.seed): sum(one.seconds for one in o.rounds) for r in found for o in r.outcomes}
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
