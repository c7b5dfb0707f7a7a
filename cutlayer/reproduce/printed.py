"""The numbers that the papers print, in one file: each with its table, column (`panel`), block and row.

A number is printed.json's list [mean, std], a number, or a text such as ">1000".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

Place = tuple[str, str, str]
"""Panel, block and row."""


@cache
def _all() -> dict[str, dict[str, list[dict[str, Any]]]]:
    text = resources.files("cutlayer.reproduce").joinpath("printed.json").read_text("utf-8")
    found: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(text)
    return found


def cells(paper: str, item: str) -> list[dict[str, Any]]:
    """Return the cells of a table as the paper prints them; none for a figure."""
    return _all()[paper].get(item, [])


def by_place(paper: str, item: str) -> Mapping[Place, Mapping[str, Any]]:
    """Return the printed numbers of a table by their place in it."""
    return {(cell["panel"], cell["block"], cell["row"]): cell for cell in cells(paper, item)}
