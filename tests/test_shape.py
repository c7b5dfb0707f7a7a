"""Files and functions stay small: what belongs together is one value."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import cutlayer

ROOT = Path(cutlayer.__file__).parent
FILE, PARAMETERS, LINES = 400, 7, 60
PUBLIC = {"api/train.py": {"rounds"}, "api/network.py": {"serve", "join"}, "models/transformer.py": {"transformer"}}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    """All but those whose parameters are options that a user sets one by one."""
    for path in ROOT.rglob("*.py"):
        where = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                yield where, node


def parameters(node: Function) -> int:
    named = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in named if name not in ("self", "cls")])


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    assert [str(path) for path, length in lengths.items() if length > FILE] == []


def test_signatures_are_short() -> None:
    inside = [(where, node) for where, node in functions() if node.name not in PUBLIC.get(where, set())]
    assert [f"{where}: {node.name}" for where, node in inside if parameters(node) > PARAMETERS] == []


def test_functions_are_short() -> None:
    assert [f"{where}: {node.name}" for where, node in functions() if _length(node) > LINES] == []


def _length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1
