"""Servers that are killed.

Each is started with its flags, and resumed after every point at which it kills itself with SIGKILL; a last life without
a point finishes the run. All lives are forked from one process, so that torch is loaded once.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

from cutlayer.cli.main import main
from cutlayer.experiment import checkpoint, server_directory
from cutlayer.network.server.cohort import NetCohort


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner: Any, name: str, when: Callable[..., bool], act: Callable[..., None] = die) -> None:
    """Act after a call of owner.name for which `when` holds."""
    plain = getattr(owner, name)

    def wrapped(*arguments: Any) -> Any:
        found = plain(*arguments)
        if when(*arguments):
            act()
        return found

    setattr(owner, name, wrapped)


def arm(point: str, n: int) -> None:
    """Die in round n: with the plans sent, in the middle of its steps, with the reports in, or with it on disk."""

    def at(cohort: NetCohort) -> int:
        return max((place.plan.address.round for place in cohort.places.values()), default=0)

    seen: list[int] = []

    def second(cohort: NetCohort, replies: Any) -> bool:
        seen.extend([n] * (at(cohort) == n))
        return len(seen) == 2

    match point:
        case "plan":
            after(NetCohort, "open", lambda cohort, plans: plans[0].address.round == n)
        case "step":
            after(NetCohort, "scatter", second)
        case "report":
            plain = NetCohort.close

            def close(cohort: NetCohort, clients: Any) -> Any:
                found = plain(cohort, clients)
                if found and found[0].address.round == n:
                    die()
                return found

            NetCohort.close = close  # type: ignore[method-assign]
        case "checkpoint":
            after(checkpoint, "save", lambda run, state, about: state.n == n)


def live(flags: list[str], points: list[Any]) -> None:
    """One run, life after life."""
    out = flags[flags.index("--out") + 1]
    for life, point in enumerate([*points, None]):
        pid = os.fork()
        if pid == 0:
            if point is not None:
                arm(*point)
            os._exit(main(["serve", *flags] if life == 0 else ["resume", out, "--quiet"]))
        _, status = os.waitpid(pid, 0)
        print(json.dumps([point, os.waitstatus_to_exitcode(status)]), flush=True)


def lives(jobs: Sequence[tuple[list[str], list[Any]]]) -> None:
    """Runs one after another, as flags and points."""
    assert server_directory.resume, "loaded before the first life"
    for flags, points in jobs:
        live(flags, points)
