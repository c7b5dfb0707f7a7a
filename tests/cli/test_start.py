"""The command line answers at once: what it says without training loads no torch."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import cutlayer

HEAVY = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "pyarrow", "PIL", "safetensors", "grpc", "asyncio"}
MOST = 420  # modules in all; 340 are loaded now
CHILD = """
import json, sys
from cutlayer.cli.main import main
try:
    status = main(sys.argv[1:])
except SystemExit as end:
    status = end.code
print(json.dumps([status, sorted(sys.modules)]), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("--help", 0),
        ("--version", 0),
        ("list", 0),
        ("list schemes --json", 0),
        ("run --help", 0),
        ("run --help-all", 0),
        ("run --schem smofi", 2),
        ("rnu", 2),
        ("compare --preset demo --schem smofi", 2),
        ("completion bash", 0),
    ],
)
def test_nothing_heavy_is_loaded(line: str, status: int) -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, *line.split()], capture_output=True, text=True, check=True)
    found, modules = json.loads(done.stderr.splitlines()[-1])
    assert (found or 0) == status
    assert not HEAVY & set(modules) and len(modules) < MOST


def test_importing_the_package_loads_nothing_either() -> None:
    child = "import sys, cutlayer; cutlayer.__version__; print([m for m in sys.modules if m.startswith('torch')])"
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_public_name_has_one_home() -> None:
    """What type checkers see is what is imported, name by name."""
    tree = ast.parse(Path(cutlayer.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        (alias.asname or alias.name): (node.module or "").removeprefix("cutlayer.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == cutlayer._HOME
    assert {*seen, "__version__"} == set(cutlayer.__all__) <= set(dir(cutlayer))
    with pytest.raises(AttributeError, match="no attribute 'smofi'"):
        cutlayer.smofi  # noqa: B018


def test_modules_do_not_hide_functions() -> None:
    """A submodule of a public function's name would take its place as soon as somebody imports it."""
    root = Path(cutlayer.__file__).parent
    assert not {path.stem for path in root.iterdir()} & set(cutlayer.__all__)
