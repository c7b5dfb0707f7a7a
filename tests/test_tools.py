"""The tools that a change is judged by."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "tools"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_same_bits(capsys: pytest.CaptureFixture[str]) -> None:
    """A case played twice is equal; one that differs in a digest, or is missing, is named."""
    same_bits = tool("same_bits")
    before, after = (same_bits.played("loop", "smofi smofi sgd") for _ in range(2))
    (name,) = before
    assert name == "loop: smofi smofi sgd" and before[name].keys() == {"weights", "journal"}
    assert same_bits.compare(before, after) == 0
    assert "| loop | 1 | 0 | 1 | 0 |" in capsys.readouterr().out
    for other in ({name: {**before[name], "journal": "0" * 64}}, {}):
        assert same_bits.compare(before, other) == 1
        assert f"differs: {name}" in capsys.readouterr().out
