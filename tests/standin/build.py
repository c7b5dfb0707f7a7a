"""Compile the stand-in device, once, with the C++ compiler of this machine: python -m tests.standin.build FOLDER

It takes a minute or more, so `make test-extras` does it before the tests, which have their limits of time.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_name("device.cpp")
NAME = "cutlayer_standin"


def compiler() -> str | None:
    """The C++ compiler of this machine, if it has one."""
    return shutil.which("g++") or shutil.which("clang++")


def built(folder: Path) -> Path:
    """Return the compiled device; compile it unless the folder has it, for this source, torch and Python."""
    key = hashlib.sha256(SOURCE.read_bytes() + f"{torch.__version__} {sysconfig.get_python_version()}".encode())
    made = folder / key.hexdigest()[:12] / f"{NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        partial = made.with_suffix(".partial")
        headers = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
        libraries = Path(torch.__file__).parent / "lib"
        command = [
            *(compiler() or "g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-w", str(SOURCE), "-o", str(partial)),
            *(f"-DTORCH_EXTENSION_NAME={NAME}", "-DTORCH_API_INCLUDE_EXTENSION_H"),
            *(f"-isystem{header}" for header in headers),
            *(f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the stand-in device cannot be compiled:\n{done.stderr[:20000]}")
        partial.rename(made)
    return made


if __name__ == "__main__":
    if compiler() is None:
        print("there is no C++ compiler for the stand-in device: its tests will be skipped")
    else:
        built(Path(sys.argv[1]))
