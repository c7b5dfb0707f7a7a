"""The figure of a comparison: learning curves (mean and range over seeds), and the drift of the server halves."""

from __future__ import annotations

import io
from collections.abc import Callable

import matplotlib.figure
import numpy as np

from cutlayer.engine.records import Round
from cutlayer.report.summary import Row, Table

COLORS = ["#4477aa", "#66ccee", "#228833", "#ccbb44", "#aa3377", "#ee6677", "#bbbbbb", "#222222"]
STYLES = ["-", "--", ":", "-."]  # the next one each time the colours are used up


def draw(table: Table) -> bytes:
    """Draw the figure, as PNG."""
    figure = matplotlib.figure.Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    records = [record for row in table.rows for outcome in row.outcomes for record in outcome.rounds]
    classes = any(record.accuracy is not None for record in records) or all(record.loss is None for record in records)
    for index, row in enumerate(table.rows):
        look = COLORS[index % len(COLORS)], STYLES[index // len(COLORS) % len(STYLES)]
        _band(left, row, look, lambda r: r.accuracy if classes else r.loss)
        _band(right, row, look, lambda r: r.drift_server)
    if not np.isnan(table.target):
        left.axhline(table.target, color="#888888", linestyle="--", linewidth=1)
        words, end = f"target: 90 % of {table.baseline}'s best", max(row.budget for row in table.rows)
        left.annotate(words, (end, table.target), (0, -10), textcoords="offset points", fontsize=8, ha="right")
    left.set(xlabel="round", ylabel="test accuracy" if classes else "test loss", title="Learning curves")
    right.set(xlabel="round", ylabel="mean distance to their mean", title="Drift of the server halves")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.spines[["top", "right"]].set_visible(False)
    if left.get_lines():
        left.legend(fontsize=9, loc="lower right" if classes else "upper right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def _band(axes: matplotlib.axes.Axes, row: Row, look: tuple[str, str], value: Callable[[Round], float | None]) -> None:
    """Draw the mean over seeds, with the range from the lowest to the highest seed."""
    by_round: dict[int, list[float]] = {}
    for outcome in row.outcomes:
        for record in outcome.rounds:
            number = value(record)
            if number is not None:
                by_round.setdefault(record.n, []).append(number)
    if not by_round:
        return
    rounds = sorted(by_round)
    color, style = look
    means = [np.mean(by_round[n]) for n in rounds]
    axes.plot(rounds, means, color=color, linestyle=style, label=row.label, linewidth=1.8)
    low, high = ([f(by_round[n]) for n in rounds] for f in (min, max))
    axes.fill_between(rounds, low, high, color=color, alpha=0.15, linewidth=0)
