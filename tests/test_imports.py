"""Imports point one way, and a client never knows the scheme."""

from __future__ import annotations

import ast
from pathlib import Path

import cutlayer

ROOT = Path(cutlayer.__file__).parent
LAYERS = [  # a module may import from its own layer's packages and from those above it in this list
    {
        "errors",
        "_version",
        "files",
        "nested",
        "lazy",
        "workers",
        "team",
        "pack",
        "sealed",
        "lock",
        "logs",
        "twins",
        "line",
        "ranks",
        "heap",
        "registry",
    },
    {"extras", "net", "terms", "own"},
    {"rng", "cut", "feed", "waves", "kept"},
    {"flat", "macs", "data", "models", "devices", "clock", "correlation", "cut_costs"},
    {"optim", "local", "update", "fusion", "metrics", "descend", "stack", "backend", "averaging"},
    {"messages", "client", "evaluate"},
    {"records", "progress"},
    {"schemes", "cohorts"},
    {"compose", "exchange", "inputs", "memory"},
    {"setup", "sharing", "remote"},
    {"closing"},
    {"round", "costs"},
    {"run"},
    {"training", "service"},
    {"config", "methods", "journal", "store", "checkpoint", "description", "blocks", "effects"},
    {"comparison", "joining", "population"},
    {"presets", "network"},
    {"bench"},
    {"experiment"},
    {"guest", "hosting"},
    {"ui"},
    {"compare"},
    {"report"},
    {"cli", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path: Path) -> set[str]:
    """The top-level cutlayer modules a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "cutlayer":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("cutlayer.")}
    return found


def files() -> list[tuple[str, Path]]:
    paths = [p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py"]
    return [(p.relative_to(ROOT).with_suffix("").parts[0], p) for p in paths]


def test_every_module_has_a_layer() -> None:
    assert {name for name, _ in files()} == set(LEVEL)


def test_imports_point_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {other}"
        for name, path in files()
        for other in imports(path)
        if LEVEL[other] > LEVEL[name]
    ]
    assert wrong == []


def test_no_module_of_a_layer_imports_itself_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for name, path in files():
        graph.setdefault(name, set()).update(imports(path) - {name})
    done: set[str] = set()
    while len(done) < len(graph):
        free = {name for name, needs in graph.items() if name not in done and needs <= done}
        assert free, f"a circle among {sorted(set(graph) - done)}"
        done |= free


def reached(*names: str) -> set[str]:
    """Everything these modules import, and what that imports."""
    found, todo = set(), list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [other for n, path in files() if n == name for other in imports(path)]
    return found


def test_a_client_knows_neither_schemes_nor_the_round() -> None:
    assert not reached("client") & {"schemes", "round", "fusion", "update", "cohorts"}


def test_nor_does_a_client_on_another_machine() -> None:
    assert not reached("remote", "joining") & {"schemes", "round", "run", "training", "fusion", "setup"}


def test_bytes_know_no_algorithm() -> None:
    assert reached("net") <= {"net", "errors", "files", "pack"}


def test_public_names_are_sorted_and_there() -> None:
    assert sorted(cutlayer.__all__) == sorted(set(cutlayer.__all__))
    assert all(hasattr(cutlayer, name) for name in cutlayer.__all__)
    for name in (
        "MomentumFusion",
        "SGD",
        "NAG",
        "Adam",
        "AdamW",
        "SMoFi",
        "SFLV1",
        "SFLV2",
        "FedAvgM",
        "rounds",
        "train",
    ):
        assert name in cutlayer.__all__
