"""The scheme of examples/own_scheme.py, which is no part of the package."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_scheme.py"


@cache
def median() -> Any:
    return runpy.run_path(str(EXAMPLE))["MedianServer"]()
