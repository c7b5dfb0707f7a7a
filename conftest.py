"""What holds for every test: torch has one thread, because several processes share the cores."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when it is imported
