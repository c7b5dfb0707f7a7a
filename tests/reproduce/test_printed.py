"""The numbers that are printed beside ours are those of the papers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cutlayer.reproduce import printed
from cutlayer.reproduce.catalogue import PAPERS

TEXTS = {"smofi": "smofi-extended.txt", "cyclesl": "cyclesl.txt"}
CELLS = [
    (paper, name, cell) for paper, items in PAPERS.items() for name in items for cell in printed.cells(paper, name)
]


def numbers(cell: dict[str, Any]) -> list[Any]:
    known = [value for key, value in cell.items() if key not in ("panel", "block", "row")]
    return [number for value in known for number in (value if isinstance(value, list) else [value])]


def test_a_speed_up_is_the_blocks_rounds_over_its_own() -> None:
    """As the papers print them: for FedProx + FedAvgM on CIFAR-10, 167 over 207."""
    seen = 0
    for paper, name, cell in CELLS:
        if "speedup" in cell:
            baseline = printed.by_place(paper, name)[cell["panel"], cell["block"], cell["block"]]
            assert cell["speedup"] == pytest.approx(baseline["rounds"] / cell["rounds"], abs=0.011), cell
            seen += 1
    assert seen == 45 + 30 + 15 + 10


def test_every_printed_number_has_a_place_in_ours() -> None:
    for paper, items in PAPERS.items():
        for name, item in items.items():
            told = set(printed.by_place(paper, name))
            if told and item.cells:
                ours = {cell.place[:3] for cell in item.cells if not cell.hidden}
                assert told <= ours, (name, sorted(told - ours))
                extra = {row for _, _, row in ours - told}
                assert extra <= {"SFLV2 (time as in the paper)", "SFLV2 (reset each round)"}, (name, extra)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_number_stands_in_the_paper(paper: str) -> None:
    path = Path(__file__).parents[3] / "shared" / "papers" / TEXTS[paper]
    if not path.exists():
        pytest.skip(f"the text of the paper is not there: {path.name}")
    text = re.sub(r"[\s$\\{}]", "", path.read_text()).replace("times", "")
    missing = []
    for _, name, cell in (one for one in CELLS if one[0] == paper):
        for number in numbers(cell):
            if name == "table-8" or not isinstance(number, int | float):  # its rates are printed as 3e-4, 1e-2
                continue
            spelled = {str(number), f"{number:g}", *(f"{number:.{digits}f}" for digits in (2, 3))}
            if not any(word in text for word in spelled):
                missing.append((name, cell, number))
    assert missing == []
