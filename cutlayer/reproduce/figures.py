"""The figures of the papers: learning curves, a score against a parameter, bars."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cutlayer.report.curves import COLORS, QUANTITIES, band, png, tidy
from cutlayer.reproduce.item import Item
from cutlayer.reproduce.results import Result

WIDTH, HEIGHT = 4.6, 3.6  # inches of a panel
ACROSS = 4  # panels side by side


def draw(item: Item, results: Sequence[Result]) -> bytes | None:
    """Draw a figure, as PNG; None for a table, and where nothing has been trained."""
    shown = [r for r in results if not r.cell.hidden and r.outcomes]
    if not shown:
        return None
    if item.view == "curves":
        return _curves(item, shown)
    if item.view == "sweep":
        return _sweep(item, shown)
    return _bars(item, shown) if item.view == "bars" else None


def _grid(panels: int, across: int = ACROSS) -> tuple[Figure, list[Axes]]:
    columns = min(across, panels)
    rows = math.ceil(panels / columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for left_over in axes[panels:]:
        left_over.set_visible(False)
    return figure, axes[:panels]


def _curves(item: Item, shown: Sequence[Result]) -> bytes:
    """Draw a panel for every column and block of the paper's figure; or, with several quantities, for each of those."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in shown:
        groups.setdefault((result.cell.block, result.cell.panel), []).append(result)
    blocks = list(dict.fromkeys(block for block, _ in groups))
    columns = list(dict.fromkeys(panel for _, panel in groups))
    keys = [(block, panel) for block in blocks for panel in columns if (block, panel) in groups]  # a row for each block
    panels = [(name, key) for key in keys for name in item.measures]
    across = len(columns) if len(blocks) > 1 else ACROSS
    figure, axes = _grid(len(panels), across)
    for ax, (name, key) in zip(axes, panels, strict=True):
        for index, result in enumerate(groups[key]):
            band(ax, result.cell.row, result.outcomes, name, index)
        block, panel = key
        title = f"{panel}: {block}" if len(blocks) > 1 else panel
        ax.set(xlabel="round", ylabel=QUANTITIES[name].axis, title=title)
        tidy(ax)
    axes[0].legend(fontsize=7)
    return png(figure)


def _sweep(item: Item, shown: Sequence[Result]) -> bytes:
    """Draw accuracy and rounds to target against the parameter; a method outside the sweep is a dashed line. With
    several methods, accuracy is above and rounds are below, as in the paper."""
    panels = list(dict.fromkeys(r.cell.panel for r in shown))
    n = len(panels)
    figure, axes = _grid(2 * n, n if item.axis else 2 * (2 if n % 2 == 0 else 1))
    for i, panel in enumerate(panels):
        left, right = (axes[i], axes[n + i]) if item.axis else (axes[2 * i], axes[2 * i + 1])
        here = [r for r in shown if r.cell.panel == panel]
        places = list(dict.fromkeys(r.cell.x for r in here if r.cell.x is not None))
        names = list(dict.fromkeys(r.cell.row for r in here if r.cell.x is not None))
        lines = names if item.axis else [""]  # several methods along the axis, or one whose rows are its points
        for index, name in enumerate(lines):
            points = [r for r in here if r.cell.x is not None and (not name or r.cell.row == name)]
            _points(left, right, points, places, name or "SMoFi", COLORS[index])
        for result in (r for r in here if r.cell.x is None):
            left.axhline(100 * result.scores["accuracy"][0], color="#888888", linestyle="--", label=result.cell.row)
            if result.rounds is not None:
                right.axhline(result.rounds, color="#888888", linestyle="--", label=result.cell.row)
        ticks = [f"{x:g}" for x in places] if item.axis or len(names) != len(places) else [_tick(n) for n in names]
        left.set(ylabel="accuracy, %", title=panel)
        right.set(ylabel="rounds to target", title=panel)
        for ax in (left, right):
            ax.set_xticks(range(len(places)), ticks, fontsize=8)
            ax.set_xlabel(item.axis)
            tidy(ax)
    axes[0].legend(fontsize=7)
    return png(figure)


def _tick(row: str) -> str:
    """`L = 3` and `alpha = -0.1` as 3 and -0.1; `L in [0, 3]` as [0, 3]."""
    return row.partition("= ")[2] or row.partition("in ")[2] or row


def _points(
    left: Axes, right: Axes, points: Sequence[Result], places: Sequence[float | None], label: str, color: str
) -> None:
    x = [places.index(r.cell.x) for r in points]
    means, stds = ([100 * r.scores["accuracy"][k] for r in points] for k in (0, 1))
    left.errorbar(x, means, yerr=stds if any(stds) else None, color=color, marker="o", capsize=3, label=label)
    right.plot(x, [math.nan if r.rounds is None else r.rounds for r in points], color=color, marker="o", label=label)


def _bars(item: Item, shown: Sequence[Result]) -> bytes:
    """Draw bars of accuracy and of rounds to target, grouped by panel. A method that did not get there has no bar."""
    panels = list(dict.fromkeys(r.cell.panel for r in shown))
    rows = list(dict.fromkeys(r.cell.row for r in shown))
    figure, (left, right) = _grid(2, 2)
    figure.set_size_inches(2.2 * WIDTH + 0.6 * len(panels), HEIGHT)
    width = 0.8 / len(rows)
    for k, row in enumerate(rows):
        here = {r.cell.panel: r for r in shown if r.cell.row == row}
        x = [i + (k - (len(rows) - 1) / 2) * width for i in range(len(panels))]
        scores = [100 * here[p].scores["accuracy"][0] if p in here else math.nan for p in panels]
        needed = [here[p].rounds if p in here else None for p in panels]
        left.bar(x, scores, width, color=COLORS[k % len(COLORS)], label=row)
        right.bar(x, [math.nan if n is None else n for n in needed], width, color=COLORS[k % len(COLORS)])
    left.set(ylabel="best accuracy, %")
    right.set(ylabel=f"rounds to {item.target.share:.0%} of {item.target.row}'s best")
    for ax in (left, right):
        ax.set_xticks(range(len(panels)), panels, fontsize=8, rotation=20)
        tidy(ax)
    left.set_ylim(top=1.3 * left.get_ylim()[1])  # room for the legend
    left.legend(fontsize=7, ncols=3, loc="upper center")
    return png(figure)
