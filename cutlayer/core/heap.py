"""The memory of this process: keep freed memory in the C library's heap, and measure the peak and what is left.

Every step frees activations and gradients of many megabytes, and the next step asks for them again. By default glibc
returns them to the system in between and gets them back page by page.
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
FREE, LARGE = 2**30, 2**25  # bytes kept for the next step; blocks larger than LARGE still come from the system
CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
STATUS, SYSTEM = Path("/proc/self/status"), Path("/proc/meminfo")


def keep() -> bool:
    """Make glibc keep freed memory; False: it is another heap, or the user has configured it.

    This concerns the whole process, so programs call it, not libraries.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in CHOSEN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(TRIM, FREE) and mallopt(MMAP, LARGE))


def free() -> int | None:
    """Return the memory that programs can still get, in bytes, swap included; None if the system does not tell."""
    try:
        return _said(SYSTEM, "MemAvailable:") + _said(SYSTEM, "SwapFree:")
    except (OSError, ValueError, IndexError):
        return None


def _said(file: Path, name: str) -> int:
    """Return the value of one line of a file in /proc, in bytes."""
    words = file.read_text(encoding="utf-8", errors="replace").split()
    return 1024 * int(words[words.index(name) + 1])


def peak() -> int | None:
    """Return the peak memory of this process in bytes; None if the system does not tell.

    Of a memory-mapped file, the part that was read counts.
    """
    try:
        return _said(STATUS, "VmHWM:")
    except (OSError, ValueError, IndexError):  # not Linux, or a container that hides it
        pass
    if resource is None:
        return None  # type: ignore[unreachable]
    most = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # includes that of the parent process
    return most if sys.platform == "darwin" else 1024 * most
