"""`cutlayer doctor`: what this machine, the installation and the data folder offer."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch

from cutlayer._version import __version__
from cutlayer.cli.output import console, print_json
from cutlayer.core.files import as_path
from cutlayer.data import cache, hub
from cutlayer.data.tasks import SOURCES, Source, data_folder
from cutlayer.errors import CutlayerError, StoreError
from cutlayer.registry.data import FOLDER_VARIABLE, OWN

EXTRAS = {
    "dev": ("pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "ruff", "mypy"),
    "hf": ("datasets",),
    "net": ("grpcio", "msgspec", "cryptography", "zstandard"),
    "ui": ("starlette", "uvicorn"),
}
NEEDED = (
    *("torch", "numpy", "safetensors", "scikit-learn", "scipy", "pydantic", "tomli-w", "filelock", "shtab"),
    *("rich", "matplotlib", "pyarrow", "pillow"),
)


def run(args: argparse.Namespace) -> int:
    found = _found(data_folder(as_path("data_dir", args.data_dir) if args.data_dir else None))
    if args.json:
        print_json(found)
        return 0
    machine, data = found["machine"], found["data"]
    gpus = ", ".join(machine["gpus"]) or "none"
    rows = {
        "cutlayer": f"{found['cutlayer']} on Python {found['python']}, {found['system']}",
        "machine": f"{machine['cores']} cores, {_gib(machine['memory_gib'])}, GPUs: {gpus}",
        "packages": ", ".join(f"{name} {version or 'missing!'}" for name, version in found["packages"].items()),
    }
    for name, words in rows.items():
        console.print(f"{name:10} {words}", soft_wrap=True, markup=False)
    for extra, lacking in found["extras"].items():
        state = "missing " + ", ".join(lacking) if lacking else "ready"
        console.print(f"extra      {extra}: {state}", soft_wrap=True)
    console.print(f"cache      {found['cache']} (variable {cache.VARIABLE})", soft_wrap=True)
    nowhere = f"no folder: give --data-dir, or set {FOLDER_VARIABLE}"
    console.print(f"data       {data['folder'] or nowhere}", soft_wrap=True)
    for name, state in data["tasks"].items():
        console.print(f"  {name:14} {state}", soft_wrap=True)
    return 0


def _found(folder: Path | None) -> dict[str, Any]:
    if folder is not None and not folder.is_dir():
        raise StoreError(f"data folder {folder}: no such folder")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cutlayer": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "machine": {"cores": cores, "memory_gib": _memory(), "gpus": gpus},
        "packages": {name: _version(name) for name in NEEDED},
        "extras": {extra: [n for n in names if _version(n) is None] for extra, names in EXTRAS.items()},
        "cache": str(cache.folder()),
        "data": {
            "folder": None if folder is None else str(folder),
            "tasks": {name: _state(name, task, folder) for name, task in SOURCES.items()},
        },
    }


def _state(name: str, task: Source, folder: Path | None) -> str:
    if name == OWN:
        return "ready (--data FOLDER or FILE)"
    if task.shipped:
        return "ready (comes with scikit-learn)"
    try:
        found = [form.needs for form in task.forms if folder is not None and form.files(folder / name)]
    except (CutlayerError, OSError) as error:
        return f"not readable: {error}"
    if found:
        return f"ready: {found[0]}"
    fetched = f"fetched from the hub ({task.hub.path}) when used" if task.hub and hub.installed() else ""
    if folder is None:
        return fetched or "needs a data folder"
    return fetched or f"missing: put {task.forms[0].needs} into {folder / name}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (ValueError, OSError, AttributeError):
        return None


def _gib(memory: float | None) -> str:
    return "memory unknown" if memory is None else f"{memory:.0f} GiB of memory"
