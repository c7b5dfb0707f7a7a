"""Python as on a system without Unix's modules: run this file with the name of an output folder.

What Windows lacks is taken away before anything of cutlayer is imported; then a model is trained and a command run.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

MISSING = {"fcntl", "resource", "pwd", "grp", "termios"}
ABSENT = ("sched_getaffinity", "sysconf", "fork", "forkpty", "getuid", "O_DIRECTORY", "O_NOFOLLOW")
OURS = r"cutlayer"  # modules that must say how text is encoded


class Nowhere:
    """Finds none of the modules that are missing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def take_away() -> None:
    """What Windows does not have, or does not do."""
    real = os.open

    def no_folder(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if not isinstance(path, int) and os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, mode, dir_fd=dir_fd)

    for name in MISSING:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Nowhere())
    os.open = no_folder
    for name in ABSENT:
        if hasattr(os, name):
            delattr(os, name)


def main(out: Path) -> None:
    take_away()
    for name in MISSING:
        try:
            __import__(name)
        except ModuleNotFoundError:
            continue
        raise AssertionError(f"{name} is still there")
    import torch

    import cutlayer as cl
    from cutlayer.cli.main import main as command

    torch.manual_seed(0)
    clients = [(torch.rand(16, 4), torch.randint(0, 2, (16,))) for _ in range(3)]
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    result = cl.train(model, clients, test=clients[0], cut=0, rounds=2, batch_size=8)
    assert len(result.history) == 2 and result.history[-1].accuracy is not None
    assert command(["run", "--rounds", "1", "--participation", "5", "--out", str(out)]) == 0
    assert command(["report", str(out)]) == 0
    assert command(["resume", str(out)]) == 0


if __name__ == "__main__":
    warnings.filterwarnings("error", category=EncodingWarning, module=OURS)
    main(Path(sys.argv[1]))
