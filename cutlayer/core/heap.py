"""The memory of this process: the C library's heap, told to keep what it has; the most there has been; what is left.

Every step frees activations and gradients of many megabytes that the next one asks for again. By default glibc hands
them back to the system in between and gets them anew, page by page.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

TRIM, MMAP = -1, -3  # glibc's names: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
FREE, LARGE = 2**30, 2**25  # bytes kept for the next step; blocks above the second come from the system as before
CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
STATUS, SYSTEM = Path("/proc/self/status"), Path("/proc/meminfo")


def keep() -> bool:
    """For this whole process: a program's choice, not a library's. False: another heap, or the user has chosen."""
    if not sys.platform.startswith("linux") or any(name in os.environ for name in CHOSEN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(TRIM, FREE) and mallopt(MMAP, LARGE))


def free() -> int | None:
    """The memory that programs can still have here, in bytes, swap included. None: nobody says on this system."""
    try:
        return _said(SYSTEM, "MemAvailable:") + _said(SYSTEM, "SwapFree:")
    except (OSError, ValueError, IndexError):
        return None


def _said(file: Path, name: str) -> int:
    """A line of the system's, in bytes."""
    words = file.read_text(encoding="utf-8", errors="replace").split()
    return 1024 * int(words[words.index(name) + 1])


def peak() -> int | None:
    """The most memory this process has had, in bytes; a memory-mapped file counts as far as it was read. None: nobody
    counts it on this system."""
    try:
        return _said(STATUS, "VmHWM:")
    except (OSError, ValueError, IndexError):  # not Linux, or a container that does not say
        pass
    if resource is None:
        return None  # type: ignore[unreachable]
    most = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # counts that of the process that started it, too
    return most if sys.platform == "darwin" else 1024 * most
