"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import cutlayer

ROOT = Path(cutlayer.__file__).parent.parent
FILES = [*(ROOT / "cutlayer").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
NAMED = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in FILES
    if f"\n    {'>' * 3} " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", NAMED)
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0 and found.failed == 0


def test_there_are_some() -> None:
    assert {"cutlayer.api.train", "cutlayer.optim.fusion", "cutlayer.errors"} <= set(NAMED)
