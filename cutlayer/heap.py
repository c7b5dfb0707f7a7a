"""The C library's heap, told to keep what it has.

Every step frees activations and gradients of many megabytes that the next one asks for again. By default glibc hands
them back to the system in between and gets them anew, page by page.
"""

from __future__ import annotations

import ctypes
import os
import sys

TRIM, MMAP = -1, -3  # glibc's names: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
FREE, LARGE = 2**30, 2**25  # bytes kept for the next step; blocks above the second come from the system as before
CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep() -> bool:
    """For this whole process: a program's choice, not a library's. False: another heap, or the user has chosen."""
    if not sys.platform.startswith("linux") or any(name in os.environ for name in CHOSEN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(TRIM, FREE) and mallopt(MMAP, LARGE))
