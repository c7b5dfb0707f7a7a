"""What can be reproduced: a table or a figure of a paper, made of cells. A cell is one method in one place of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cutlayer.errors import unknown
from cutlayer.experiment.comparison import slug
from cutlayer.report.measure import SHARE, Score

View = Literal["table", "metrics", "curves", "sweep", "bars", "measured"]
"""How an item is laid out; `metrics`: a table with a row for every metric of a method."""


@dataclass(frozen=True)
class Cell:
    """A method in one place of a table or figure.

    panel     the column of a table, or the panel of a figure
    block     rows that share a baseline: the row of the block's own name
    values    its config as the paper has it
    x         where it stands on a figure's axis
    hidden    trained because a target is measured by it, and not shown
    """

    panel: str
    row: str
    values: Mapping[str, Any]
    block: str = ""
    x: float | None = None
    hidden: bool = False

    @property
    def place(self) -> tuple[str, str, str, float | None]:
        return self.panel, self.block, self.row, self.x


@dataclass(frozen=True)
class Target:
    """The accuracy that rounds are counted to: a share of the best of a row, or a number for each panel. `shares`: by
    panel, instead of fixed numbers that a reduced run cannot reach."""

    share: float = SHARE
    row: str = "FedAvg"
    fixed: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)

    def of(self, panel: str, reduced: bool) -> tuple[float | None, float]:
        """Return the number, or None, and the share that counts without one."""
        fixed = None if reduced and panel in self.shares else self.fixed.get(panel)
        return fixed, self.shares.get(panel, self.share)


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper.

    measures  what a table shows of each cell, in the order of its columns; of a figure: what its panels show
    axis      the parameter of a sweep, as the axis says it
    across    columns of a table side by side; the others follow below (0: all of them)
    notes     what a reader of the page should know
    make      of an item that trains nothing: the function that measures it, "module:name"
    """

    paper: str
    name: str
    title: str
    view: View
    measures: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    target: Target = field(default_factory=Target)
    score: Score = "best"
    axis: str = ""
    across: int = 0
    notes: tuple[str, ...] = ()
    make: str = ""
    data: tuple[str, ...] = ()  # the tasks that an item needs which trains nothing

    @property
    def panels(self) -> list[str]:
        return list(dict.fromkeys(cell.panel for cell in self.cells))

    @property
    def rows(self) -> list[tuple[str, str]]:
        """(block, row), in the order of the paper."""
        return list(dict.fromkeys((cell.block, cell.row) for cell in self.cells if not cell.hidden))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys((*(str(cell.values["task"]) for cell in self.cells), *self.data)))

    def only(self, names: Sequence[str]) -> Item:
        """Return the item with the panels, blocks and rows of these names alone: "cifar-10 fedavg" is the block FedAvg
        of the column CIFAR-10; "fedavg/fedavg" is the row FedAvg of that block. What a target needs is kept."""
        panels: set[str] = set()
        rows: set[tuple[str, str]] = set()
        for name in names:
            found = self._named(name)
            panels |= {one for one in found if isinstance(one, str)}
            rows |= {one for one in found if not isinstance(one, str)}
        blocks = {block for block, _ in rows}
        kept = []
        for cell in self.cells:
            if panels and cell.panel not in panels:
                continue
            wanted = not rows or (cell.block, cell.row) in rows
            if wanted:
                kept.append(cell)
            elif cell.hidden or self._needed(cell, blocks):
                kept.append(_hide(cell))
        return Item(**{**vars(self), "cells": tuple(kept)})

    def _needed(self, cell: Cell, blocks: Collection[str]) -> bool:
        """Whether a cell is a baseline: of one of the blocks, or of the target."""
        baseline = cell.row == cell.block and cell.block in blocks
        return (baseline or cell.row == self.target.row) and "rounds" in self.measures

    def _named(self, name: str) -> list[str | tuple[str, str]]:
        """Return the panels, or the rows, that a name means: a panel's name or its beginning, a block, a row, or
        BLOCK/ROW."""
        given = slug(name)
        panels: list[str | tuple[str, str]] = [p for p in self.panels if slug(p) == given]
        if not panels:
            panels = [p for p in self.panels if slug(p).startswith(f"{given}-")]
        if panels:
            return panels
        for spelled in (
            {pair: slug(pair[0]) for pair in self.rows},
            {pair: slug(pair[1]) for pair in self.rows},
            {pair: slug("-".join(pair)) for pair in self.rows},
        ):
            found: list[str | tuple[str, str]] = [pair for pair, name in spelled.items() if name == given]
            if found:
                return found
        names = [*self.panels, *dict.fromkeys(name for pair in self.rows for name in pair if name)]
        raise unknown("row or column", name, list(dict.fromkeys(names)))


def _hide(cell: Cell) -> Cell:
    return Cell(**{**vars(cell), "hidden": True})
