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
from cutlayer.clients.messages import CutGrad, Finish, Plan
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

    seen: list[int] = []

    def asked(kind: type, message: Any) -> bool:
        return isinstance(message, kind) and message.address.round == n

    def second(cohort: NetCohort, messages: Any) -> bool:
        seen.extend([n] * asked(CutGrad, messages[0]))
        return len(seen) == 2

    match point:
        case "plan":
            after(NetCohort, "ask", lambda cohort, messages: asked(Plan, messages[0]))
        case "step":
            after(NetCohort, "ask", second)
        case "report":
            after(NetCohort, "ask", lambda cohort, messages: asked(Finish, messages[0]))
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
