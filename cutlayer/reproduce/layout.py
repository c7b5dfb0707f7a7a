"""Results in the layout of the paper: its rows, columns, blocks and units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cutlayer.reproduce import printed
from cutlayer.reproduce.item import Item
from cutlayer.reproduce.results import Result
from cutlayer.reproduce.sheet import Entry, Section

HEADINGS = {
    "smofi": {"accuracy": "Acc. (%)", "rounds": "R", "speedup": "R↑", "hours": "T (h)"},
    "cyclesl": {"accuracy": "Accu", "loss": "Loss", "f1": "F1", "mcc": "MCC", "rounds": "epochs"},
}
PERCENT = ("smofi",)  # papers that give accuracies in per cent
FIRST = {"smofi": "Setup", "cyclesl": "Method"}


def sections(item: Item, results: Sequence[Result]) -> list[Section]:
    """Return the tables of an item."""
    if item.view == "metrics":
        return [_by_metric(item, results)]
    if item.view == "table":
        width = item.across or len(item.panels)
        groups = [item.panels[i : i + width] for i in range(0, len(item.panels), width)]
        return [_side_by_side(item, results, group) for group in groups]
    return [_listed(item, results, panel) for panel in item.panels]


def _side_by_side(item: Item, results: Sequence[Result], panels: Sequence[str]) -> Section:
    """A row for every method; for each panel, a column for every measure."""
    words = HEADINGS[item.paper]
    measures = [name for name in item.measures if name in words]
    one = len(measures) == 1
    headings = [FIRST[item.paper], *(p if one else f"{p}: {words[name]}" for p in panels for name in measures)]
    known, found = printed.by_place(item.paper, item.name), {r.cell.place[:3]: r for r in results}
    rows = []
    for block, row in item.rows:
        entries = [Entry(row)]
        for panel in panels:
            result = found.get((panel, block, row))
            told = known.get((panel, block, row), {})
            entries += [entry(item.paper, name, result, told) for name in measures]
        rows.append(entries)
    return Section("", headings, rows)


def _by_metric(item: Item, results: Sequence[Result]) -> Section:
    """A row for every metric of every method; a column for each panel."""
    words, known = HEADINGS[item.paper], printed.by_place(item.paper, item.name)
    found = {r.cell.place[:3]: r for r in results}
    rows = []
    for block, row in item.rows:
        for name in item.measures:
            places = [(panel, block, row) for panel in item.panels]
            entries = [entry(item.paper, name, found.get(place), known.get(place, {})) for place in places]
            rows.append([Entry(f"{row}, {words[name]}"), *entries])
    return Section("", ["Method", *item.panels], rows)


def _listed(item: Item, results: Sequence[Result], panel: str) -> Section:
    """The numbers of one panel of a figure, a row for each of its lines, bars or points."""
    words, rows = HEADINGS[item.paper], []
    names = [name for name in ("accuracy", *item.measures) if name in words]
    names = list(dict.fromkeys(names))
    shown = [r for r in results if r.cell.panel == panel and not r.cell.hidden]
    blocks = {r.cell.block for r in shown}
    for result in shown:
        cell = result.cell
        label = f"{cell.block}: {cell.row}" if len(blocks) > 1 and cell.block else cell.row
        label += f", {item.axis} {cell.x:g}" if cell.x is not None and item.axis else ""
        rows.append([Entry(label), *(entry(item.paper, name, result, {}) for name in names)])
    return Section(panel, [FIRST[item.paper], *(words[name] for name in names)], rows)


def differences(item: Item, results: Sequence[Result]) -> list[Section]:
    """Return a table of the differences between methods, where there are two seeds or more."""
    rows = []
    for result in results:
        if result.against is None or result.cell.hidden:
            continue
        cell, unit = result.cell, _unit(item.paper, "accuracy")
        where = f" ({cell.x:g})" if cell.x is not None and item.axis else ""
        digits = 2 if unit > 1 else 3
        said = f"{unit * result.against.mean:+.{digits}f} ± {unit * result.against.half:.{digits}f}"
        star = " *" if result.against.excludes_zero else ""
        rows.append([Entry(f"{cell.panel}: {cell.row}{where}"), Entry(result.baseline), Entry(said + star)])
    headings = [FIRST[item.paper], "less", HEADINGS[item.paper]["accuracy"]]
    title = "Differences, seed by seed, with 95 % t intervals; a star marks those that exclude zero"
    return [Section(title, headings, rows)] if rows else []


def entry(paper: str, name: str, result: Result | None, told: Mapping[str, Any]) -> Entry:
    """One number, ours and the paper's."""
    printed = _told(paper, name, told.get(name))
    if result is None:
        return Entry("-", printed)
    if result.missing:
        return Entry(result.missing, printed)
    return Entry(_ours(paper, name, result), printed)


def _ours(paper: str, name: str, result: Result) -> str:
    if not result.outcomes:
        return "-"
    if name in result.scores:
        mean, std = result.scores[name]
        if math.isnan(mean):
            return "diverged" if result.diverged else "-"
        lost = f" ({result.diverged} diverged)" if result.diverged and name == "accuracy" else ""
        return _mean_std(paper, name, mean * _unit(paper, name), std * _unit(paper, name), len(result.outcomes)) + lost
    late = result.rounds is None
    if name == "rounds":
        if math.isnan(result.target):
            return "-"
        return f">{result.budget}" if result.rounds is None else f"{result.rounds:.4g}"
    if name == "speedup":
        return "-" if result.speedup is None else f"{result.speedup:.2f}x"
    return "-" if result.hours is None else f"{'>' * late}{result.hours:.2f}"


def _unit(paper: str, name: str) -> float:
    return 100.0 if name == "accuracy" and paper in PERCENT else 1.0


def _mean_std(paper: str, name: str, mean: float, std: float, seeds: int) -> str:
    digits = 2 if _unit(paper, name) > 1 else 3
    return f"{mean:.{digits}f} ± {std:.{digits}f}" if seeds > 1 else f"{mean:.{digits}f}"


def _told(paper: str, name: str, value: Any) -> str:
    """A printed number as the paper prints it."""
    if value is None:
        return ""
    if isinstance(value, list):
        return _mean_std(paper, name, value[0], value[1], 2)
    if name == "speedup":
        return f"{value:.2f}x"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
