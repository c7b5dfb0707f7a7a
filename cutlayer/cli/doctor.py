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
from cutlayer.cli.progress import console
from cutlayer.data import cache, hub
from cutlayer.data.own import OWN
from cutlayer.data.tasks import FOLDER_VARIABLE, TASKS, Task, data_folder
from cutlayer.errors import CutlayerError, StoreError

MISSING = "missing!"
EXTRAS = {
    "dev": ("pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "ruff", "mypy"),
    "hf": ("datasets",),
    "net": ("grpcio", "msgspec", "cryptography", "zstandard"),
    "ui": ("starlette", "uvicorn"),
}
NEEDED = ("torch", "numpy", "safetensors", "scikit-learn", "pydantic", "rich", "matplotlib", "pyarrow", "pillow")


def add(commands: Any) -> None:
    command = commands.add_parser("doctor", help="what this machine and the data folder offer", description=__doc__)
    command.add_argument("--data-dir", metavar="FOLDER", help=f"data folder (default: the variable {FOLDER_VARIABLE})")
    command.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    console.print(
        f"cutlayer   {__version__} on Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )
    console.print(f"machine    {cores} cores, {_memory()}, GPUs: {', '.join(gpus) or 'none'}")
    console.print("packages   " + ", ".join(f"{name} {_version(name)}" for name in NEEDED), soft_wrap=True)
    for extra, names in EXTRAS.items():
        lacking = [name for name in names if _version(name) == MISSING]
        state = "missing " + ", ".join(lacking) if lacking else "ready"
        console.print(f"extra      {extra}: {state}", soft_wrap=True)
    console.print(f"cache      {cache.folder()} (variable {cache.VARIABLE})", soft_wrap=True)
    folder = data_folder(Path(args.data_dir) if args.data_dir else None)
    if folder is not None and not folder.is_dir():
        raise StoreError(f"data folder {folder}: no such folder")
    console.print(f"data       {folder or f'no folder: give --data-dir, or set {FOLDER_VARIABLE}'}", soft_wrap=True)
    for name, task in TASKS.items():
        console.print(f"  {name:14} {_state(name, task, folder)}", soft_wrap=True)
    return 0


def _state(name: str, task: Task, folder: Path | None) -> str:
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


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return MISSING


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB of memory"
    except (ValueError, OSError, AttributeError):
        return "memory unknown"
