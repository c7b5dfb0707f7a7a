"""The rooms of the package: what each may import. Arrows point one way, and a client never knows the scheme."""

from __future__ import annotations

import ast
from pathlib import Path

import cutlayer

ROOT = Path(cutlayer.__file__).parent
ROOMS = {  # every room may use `errors` and `_version` too
    "core": "",
    "registry": "",
    "models": "",
    "nn": "core",
    "data": "core registry nn",
    "hf": "core nn",
    "simulation": "core registry nn",
    "optim": "core nn",
    "clients": "core nn data optim",
    "schemes": "core registry models nn simulation optim clients",
    "processes": "core optim clients",
    "engine": "core registry nn data simulation optim clients schemes processes",
    "network.transport": "core",
    "network.protocol": "core registry nn data optim clients network.transport",
    "network.client": "core nn data optim clients network.transport network.protocol",
    "network.server": "core nn data clients schemes engine network.transport network.protocol",
    "network": "",
    "experiment": "core registry nn data hf simulation clients processes engine network.transport network.protocol "
    "network.server",
    "track": "core engine experiment",
    "report": "core nn data simulation engine experiment",
    "reproduce": "core registry models nn data simulation schemes experiment report",
    "api": "core nn data simulation optim clients schemes processes engine network.transport network.protocol "
    "network.client network.server experiment track report",
    "ui": "core experiment network.transport network.server",
    "bench": "core registry nn hf optim clients schemes engine processes api network.transport network.protocol "
    "network.server",
    "cli": "core registry models nn data simulation schemes processes engine network.transport "
    "network.protocol network.client network.server experiment track report reproduce ui bench",
}
OPEN = {"errors", "_version"}
ALONE = {"__init__", "__main__"}  # the package's own door, and `python -m cutlayer`


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a module, from its path inside the package."""
    return ".".join(parts[:2]) if ".".join(parts[:2]) in ROOMS else parts[0]


def modules() -> dict[tuple[str, ...], Path]:
    paths = (path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).with_suffix("").parts[0] not in ALONE)
    return {_parts(path): path for path in paths}


def _parts(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports(path: Path) -> set[tuple[str, ...]]:
    """The modules of this package that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "cutlayer":
            base = tuple(node.module.split(".")[1:])
            found |= {(*base, alias.name) if (*base, alias.name) in MODULES else base for alias in node.names}
        elif isinstance(node, ast.Import):
            names = (tuple(alias.name.split(".")) for alias in node.names)
            found |= {name[1:] for name in names if name[0] == "cutlayer" and len(name) > 1}
    return found - {()}


MODULES = modules()


def test_every_module_has_a_room() -> None:
    assert {room_of(parts) for parts in MODULES} == {*ROOMS, *OPEN}
    assert len(list(ROOT.glob("*.py"))) <= 5


def test_a_room_imports_what_its_line_allows() -> None:
    wrong = []
    for parts, path in MODULES.items():
        allowed = {room_of(parts), *OPEN, *ROOMS.get(room_of(parts), "").split()}
        wrong += [f"{'.'.join(parts)} imports {'.'.join(o)}" for o in imports(path) if room_of(o) not in allowed]
    assert wrong == []


def test_no_line_allows_what_nobody_imports() -> None:
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for parts, path in MODULES.items():
        used.setdefault(room_of(parts), set()).update(room_of(other) for other in imports(path))
    assert [(room, other) for room, line in ROOMS.items() for other in line.split() if other not in used[room]] == []


def test_arrows_point_one_way() -> None:
    """A room is listed after everything it may import."""
    order = [*OPEN, *ROOMS]
    for room, line in ROOMS.items():
        assert all(order.index(other) < order.index(room) for other in line.split()), room


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {parts: imports(path) & MODULES.keys() - {parts} for parts, path in MODULES.items()}
    done: set[tuple[str, ...]] = set()
    while len(done) < len(graph):
        free = {parts for parts, needs in graph.items() if parts not in done and needs <= done}
        assert free, f"a circle among {sorted(graph.keys() - done)}"
        done |= free


def reached(*rooms: str) -> set[str]:
    """Every room that these may import, and what those may."""
    found, todo = set(), list(rooms)
    while todo:
        room = todo.pop()
        if room not in found:
            found.add(room)
            todo += ROOMS[room].split()
    return found


def loaded(*names: str) -> set[str]:
    """Every module that these import, and what those import."""
    found: set[tuple[str, ...]] = set()
    todo = [tuple(name.split(".")) for name in names]
    while todo:
        parts = todo.pop()
        if parts not in found:
            found.add(parts)
            todo += imports(MODULES[parts]) & MODULES.keys()
    return {".".join(parts) for parts in found}


def test_a_client_knows_neither_schemes_nor_the_engine() -> None:
    assert not reached("clients", "network.client") & {"schemes", "engine", "processes", "experiment"}
    programs = [".".join(parts) for parts in MODULES if room_of(parts) == "network.client"]
    others = {"optim.fusion", "optim.update", "clients.cohort", "clients.simulated", "clients.remote"}
    assert not loaded("clients.client", *programs) & others


def test_bytes_know_no_algorithm() -> None:
    assert reached("network.transport") == {"network.transport", "core"}
    parts = [".".join(parts) for parts in MODULES if room_of(parts) == "network.transport"]
    assert {name for name in loaded(*parts) if name.startswith("core")} == {"core.files", "core.pack"}


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


EXTRAS = {
    *("cryptography", "grpc", "msgspec", "prometheus_client", "starlette", "uvicorn", "zstandard"),
    *("tensorboard", "mlflow", "wandb", "trackio"),
}


def test_what_is_not_about_the_network_or_tracking_needs_no_extra() -> None:
    """Those packages come with `cutlayer[net]`, `[ui]`, `[tb]` and others; everything else trains without them."""
    found = []
    for parts, path in modules().items():
        if room_of(parts).split(".")[0] in ("network", "ui", "cli", "bench", "track"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [(".".join(parts), name) for name in names if name.split(".")[0] in EXTRAS]
    assert found == []
