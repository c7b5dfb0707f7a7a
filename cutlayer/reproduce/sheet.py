"""A reproduced item as a person reads it: tables in the paper's layout, ours beside the printed number, notes, and a
picture; for the terminal, as Markdown, HTML and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import rich.box
import rich.table
from rich.text import Text

from cutlayer.report.page import document, image, note, tabular
from cutlayer.report.table import markdown

PADDING = 2  # characters around a column


@dataclass(frozen=True)
class Entry:
    """A cell of a table: ours, and what the paper prints there."""

    ours: str
    printed: str = ""

    @property
    def line(self) -> str:
        return f"{self.ours} [{self.printed}]" if self.printed else self.ours


@dataclass(frozen=True)
class Section:
    """One table. The first column is text, the others are entries."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Entry]]


@dataclass(frozen=True)
class Sheet:
    """A reproduced table or figure. `about`: how it was made (command, scale, seeds, reductions), for JSON and page."""

    title: str
    sections: Sequence[Section]
    numbers: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()
    picture: bytes | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def compared(self) -> bool:
        return any(entry.printed for section in self.sections for row in section.rows for entry in row)

    @property
    def remarks(self) -> list[str]:
        """The notes, and how the sheet was made, in sentences."""
        legend = ["Ours, and in brackets what the paper prints."] if self.compared else []
        made = [f"{name}: {_words(value)}" for name, value in self.about.items() if value]
        return [*legend, *self.notes, *made]


def _words(value: Any) -> str:
    return "; ".join(str(one) for one in value) if isinstance(value, list | tuple) else str(value)


def for_terminal(sheet: Sheet, width: int) -> list[rich.table.Table]:
    """Return the tables, in parts that fit the width; the printed number stands below ours."""
    tables = []
    for section in sheet.sections:
        for columns in _fitting(section, width):
            out = rich.table.Table(title=section.title, title_justify="left", box=rich.box.SIMPLE_HEAD)
            for index in columns:
                heading = section.headings[index].replace(": ", ":\n")
                out.add_column(heading, justify="left" if index == 0 else "right", no_wrap=True)
            for row in section.rows:
                out.add_row(*(_two_lines(row[index]) for index in columns))
            tables.append(out)
    return tables


def _fitting(section: Section, width: int) -> list[list[int]]:
    """Return groups of columns that fit side by side, each with the first column."""
    lines = [[*heading.split(": "), *_lines(section, index)] for index, heading in enumerate(section.headings)]
    sizes = [max(map(len, words), default=0) + PADDING for words in lines]
    groups: list[list[int]] = [[0]]
    for index in range(1, len(sizes)):
        if len(groups[-1]) > 1 and sum(sizes[i] for i in (*groups[-1], index)) + PADDING > width:
            groups.append([0])
        groups[-1].append(index)
    return groups


def _lines(section: Section, index: int) -> list[str]:
    entries = [row[index] for row in section.rows]
    return [word for entry in entries for word in (entry.ours, f"[{entry.printed}]" if entry.printed else "")]


def _two_lines(entry: Entry) -> Text:
    text = Text(entry.ours)
    return text.append(f"\n[{entry.printed}]", style="dim") if entry.printed else text


def for_markdown(sheet: Sheet) -> str:
    parts = [f"# {sheet.title}"]
    for section in sheet.sections:
        lines = [[entry.line for entry in row] for row in section.rows]
        parts += [*([f"**{section.title}**"] if section.title else []), markdown(section.headings, lines).rstrip()]
    parts.append("\n".join(f"- {words}" for words in sheet.remarks))
    return "\n\n".join(parts) + "\n"


def for_html(sheet: Sheet) -> str:
    body = "".join(
        (f"<h2>{section.title}</h2>" if section.title else "")
        + tabular(section.headings, [[entry.line for entry in row] for row in section.rows])
        for section in sheet.sections
    )
    picture = image(sheet.picture, sheet.title) if sheet.picture is not None else ""
    return document(sheet.title, picture + body + "".join(note(words) for words in sheet.remarks))


def for_json(sheet: Sheet) -> str:
    about = {"title": sheet.title, **sheet.about, "notes": list(sheet.notes)}
    return json.dumps({**about, "cells": list(sheet.numbers)}, indent=1, ensure_ascii=False)
