"""Killed before any write of a start: the folder is nothing yet, or a run that resumes as what it was meant to be.

So is one that was to replace an older run: it is that one, or nothing, or the new one, and never some of both.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cutlayer.errors import StoreError
from cutlayer.experiment import checkpoint, description, server_directory
from cutlayer.experiment.config import Config
from cutlayer.experiment.experiment import Experiment
from cutlayer.network.protocol.settings import Net
from tests.nightly.hands import Counting, Failing, watched
from tests.nightly.runs import POINTS, Ended, config, described, finish, resumed, same, scratch

NET = Net("127.0.0.1:0", min_clients=2)
Start = Callable[[Path, bool], Any]


def play(seed: int, folder: Path) -> None:
    dice = random.Random(seed)
    scheme, protocol = dice.choice(POINTS)
    served, over, out = dice.random() < 0.3, dice.random() < 0.4, folder / "run"
    start, given = hosted(scheme, protocol) if served else simulated(scheme, protocol)
    if over:
        older(dice, out)
    clone, seen = folder / "counted", Counting()
    if over:
        shutil.copytree(out, clone)
    with watched(clone, seen):
        start(clone, over)
    torn = dice.choice((None, dice.randrange(10**6)))
    fault = Failing(KeyboardInterrupt(), dice.randrange(len(seen.seen)), 10**9, torn)
    with watched(out, fault), suppress(KeyboardInterrupt):
        start(out, over)
    gc.collect()
    what = f"{scheme} {protocol}{' served' * served}{' over an older run' * over}, killed at {fault.failed}"
    try:
        check(out, given, served, over, start)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


def check(out: Path, given: Config, served: bool, over: bool, start: Start) -> None:
    found = kind(out)
    if found == "nothing":
        start(out, False)
        gc.collect()
    elif over and described(out) == older_config():  # it has not been removed yet, or not whole
        start(out, True)
        gc.collect()
    assert described(out) == given, f"{found}: it is {described(out)}"
    before = checkpoint.config(out)
    assert description.serves(out, before) == served, "a simulation of a server's run, or the other way round"
    if served:
        experiment, _ = server_directory.resume(out)
        assert experiment.run.state.n == 0 and experiment.history == []
    else:
        same(finish(resumed(out)), alone(given.scheme["name"], given.protocol, os.getpid()))


def kind(out: Path) -> str:
    """What a folder is to somebody who comes along."""
    try:
        described(out)
    except StoreError as error:
        if "holds no run" not in str(error) or checkpoint.config(out) is not None:
            raise
        return "nothing"
    return "a run"


def simulated(scheme: str, protocol: str) -> tuple[Start, Config]:
    given = short(scheme, protocol)
    return lambda out, over: Experiment.start(given, out, over), given


def hosted(scheme: str, protocol: str) -> tuple[Start, Config]:
    given = config(scheme, protocol, clients=None, participation=1.0, rounds=2, backend="loop")
    return lambda out, over: server_directory.start(given, replace(NET, listen=f"127.0.0.1:{port()}"), out, over), given


def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@functools.cache
def short(scheme: str, protocol: str) -> Config:
    """With its backend chosen, as a run directory has it."""
    given = config(scheme, protocol, rounds=2)
    folder = scratch() / f"start-{scheme}-{protocol}-{os.getpid()}"
    Experiment.start(given, folder)
    return described(folder)


@functools.cache
def alone(scheme: str, protocol: str, owner: int) -> Ended:
    return finish(Experiment.start(short(scheme, protocol), scratch() / f"alone-{scheme}-{protocol}-{owner}"))


@functools.cache
def older_config() -> Config:
    return config("psl", "cyclesl", seed=77, rounds=3, backend="loop")


def older(dice: random.Random, out: Path) -> None:
    """A run that was there before: interrupted, or complete."""
    last = dice.randint(0, 3)
    experiment = Experiment.start(older_config(), out)
    for record in experiment if last else ():
        if record.n == last < 3:
            break
    del experiment
    gc.collect()
