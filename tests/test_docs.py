"""What documents say of the code is there: files, classes, methods, links."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import cutlayer

ROOT = Path(cutlayer.__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")])
CODE = re.compile(r"```.*?```", re.DOTALL)
PATH = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.py|(?:tests|tools|docs|examples|experiments|cutlayer)/[\w./-]*)`")
MEMBER = re.compile(r"`([A-Z]\w*[a-z]\w*)\.(\w+)`")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)(?:#[^)]*)?\)")
ROOM = re.compile(r"`([a-z]+(?:/[a-z]+)?)/`")
NOT_OURS = {"model.py"}  # a user's own, in an example


@cache
def classes() -> dict[str, set[str]]:
    """Every class of the package, with what it defines and what its instances are given."""
    found: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for path in (ROOT / "cutlayer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names = found.setdefault(node.name, set())
                bases.setdefault(node.name, []).extend(b.id for b in node.bases if isinstance(b, ast.Name))
                for inner in ast.walk(node):
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        names.add(inner.name)
                    elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                        names.add(inner.target.id)
    for name, parents in bases.items():
        for parent in parents:
            found[name] |= found.get(parent, set())
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_are_there(path: Path) -> None:
    text = CODE.sub("", path.read_text())
    named = {name for name in PATH.findall(text) if name not in NOT_OURS}
    missing = [name for name in named if not (ROOT / name).exists() and not (ROOT / "cutlayer" / name).exists()]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_members_that_are_named_are_there(path: Path) -> None:
    found = MEMBER.findall(CODE.sub("", path.read_text()))
    assert [f"{kind}.{name}" for kind, name in found if name not in classes().get(kind, set())] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    links = LINK.findall(CODE.sub("", path.read_text()))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_page_on_architecture_names_every_room() -> None:
    from tests.test_imports import ROOMS

    text = (ROOT / "docs" / "architecture.md").read_text()
    named = {name.replace("/", ".") for name in ROOM.findall(text)}
    assert {room for room in ROOMS if room != "network"} <= named
