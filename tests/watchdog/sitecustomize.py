"""Python imports this first in every child process of the tests: conftest.py has put its folder on PYTHONPATH."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

import cutlayer_watchdog as watchdog

SERVANTS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")  # they live as long as their parents
HOUR = 3600.0


def begin() -> None:
    seconds = float(os.environ.get(watchdog.VARIABLE, HOUR))
    watchdog.follow(seconds)
    watchdog.arm(HOUR if any(name in word for word in sys.orig_argv for name in SERVANTS) else seconds)


def others() -> None:
    """Run the `sitecustomize` that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [place for place in sys.path if os.path.abspath(place) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


begin()
others()
