"""The figures of a comparison: learning curves (mean and range over seeds), and a score against a swept parameter."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cutlayer.errors import unknown
from cutlayer.report.summary import Outcome, Row, Table

COLORS = ["#4477aa", "#66ccee", "#228833", "#ccbb44", "#aa3377", "#ee6677", "#bbbbbb", "#222222"]
STYLES = ["-", "--", ":", "-."]  # the next one each time the colours are used up


@dataclass(frozen=True)
class Quantity:
    """A number of every round that can be drawn: its axis, its title, and where the legend hides least."""

    axis: str
    title: str
    corner: str = "upper right"


QUANTITIES = {
    "accuracy": Quantity("test accuracy", "Learning curves", "lower right"),
    "loss": Quantity("test loss", "Test loss"),
    "f1": Quantity("macro F1", "Macro F1", "lower right"),
    "mcc": Quantity("Matthews' correlation", "Matthews' correlation", "lower right"),
    "auc": Quantity("AUC", "AUC", "lower right"),
    "train_loss": Quantity("training loss", "Training loss"),
    "drift_server": Quantity("mean distance to their mean", "Drift of the server halves"),
    "drift_client": Quantity("mean distance to their mean", "Drift of the client halves"),
}


def usual(table: Table) -> tuple[str, ...]:
    """Return the quantities that are drawn unless others are asked for: accuracy (or loss) and the servers' drift."""
    outcomes = [outcome for row in table.rows for outcome in row.outcomes]
    scored = any(o.values("accuracy") for o in outcomes) or not any(o.values("loss") for o in outcomes)
    return "accuracy" if scored else "loss", "drift_server"


def draw(table: Table, quantities: Sequence[str] = ()) -> bytes:
    """Draw learning curves, a panel for each quantity, as PNG."""
    for name in quantities:
        if name not in QUANTITIES:
            raise unknown("curve", name, QUANTITIES)
    names = quantities or usual(table)
    figure = Figure(figsize=(5.5 * len(names), 4.4), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        for index, row in enumerate(table.rows):
            band(axes, row.label, row.outcomes, name, index)
        if name == "accuracy" and not np.isnan(table.target):
            axes.axhline(table.target, color="#888888", linestyle="--", linewidth=1)
            end = max(row.budget for row in table.rows)
            words = f"target: {table.goal}"
            axes.annotate(words, (end, table.target), (0, -10), textcoords="offset points", fontsize=8, ha="right")
        quantity = QUANTITIES[name]
        axes.set(xlabel="round", ylabel=quantity.axis, title=quantity.title)
        axes.xaxis.get_major_locator().set_params(integer=True)
        tidy(axes)
    if panels[0].get_lines():
        panels[0].legend(fontsize=9, loc=QUANTITIES[names[0]].corner)
    return png(figure)


def look(index: int) -> tuple[str, str]:
    """Return the colour and the line style of the method with this number."""
    return COLORS[index % len(COLORS)], STYLES[index // len(COLORS) % len(STYLES)]


def band(axes: Axes, label: str, outcomes: Sequence[Outcome], name: str, index: int) -> None:
    """Draw a quantity by round: the mean over seeds, with the range from the lowest to the highest seed."""
    by_round: dict[int, list[float]] = {}
    for outcome in outcomes:
        for n, value in outcome.values(name):
            by_round.setdefault(n, []).append(value)
    if not by_round:
        return
    rounds = sorted(by_round)
    color, style = look(index)
    means = [np.mean(by_round[n]) for n in rounds]
    axes.plot(rounds, means, color=color, linestyle=style, label=label, linewidth=1.8)
    low, high = ([f(by_round[n]) for n in rounds] for f in (min, max))
    axes.fill_between(rounds, low, high, color=color, alpha=0.15, linewidth=0)


def tidy(axes: Axes) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def swept(table: Table) -> str | None:
    """Return the one parameter that a sweep varies, or None."""
    names = {name for row in table.rows for name in row.at}
    return names.pop() if len(names) == 1 and sum(bool(row.at) for row in table.rows) > 1 else None


def draw_sweep(table: Table, parameter: str) -> bytes:
    """Draw score and rounds to target against a swept parameter, as PNG. Methods outside the sweep are lines."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = sorted((row for row in table.rows if parameter in row.at), key=lambda row: row.at[parameter])
    x = list(range(len(rows)))
    means, stds = [100 * row.score for row in rows], [100 * row.score_std for row in rows]
    left.errorbar(x, means, yerr=stds if any(stds) else None, color=COLORS[0], marker="o", capsize=3)
    needed = [math.nan if row.rounds_to_target is None else row.rounds_to_target for row in rows]
    right.plot(x, needed, color=COLORS[0], marker="o")
    for index, row in enumerate(row for row in table.rows if parameter not in row.at):
        _level(left, 100 * row.score, row, index)
        _level(right, math.nan if row.rounds_to_target is None else row.rounds_to_target, row, index)
    left.set(ylabel="accuracy, %", title="Score")
    right.set(ylabel=f"rounds to {table.goal}", title="Rounds to target")
    for axes in (left, right):
        axes.set_xticks(x, [f"{row.at[parameter]:g}" for row in rows])
        axes.set_xlabel(parameter)
        tidy(axes)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=9)
    return png(figure)


def _level(axes: Axes, value: float, row: Row, index: int) -> None:
    if not math.isnan(value):
        axes.axhline(value, color=COLORS[(index + 4) % len(COLORS)], linestyle="--", linewidth=1.2, label=row.label)
