"""A disk that is full, broken or gone in the middle of a run, and good again afterwards: the undisturbed bits."""

from __future__ import annotations

import errno
import functools
import gc
import os
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cutlayer.core import files
from cutlayer.errors import StoreError
from cutlayer.experiment.config import Config
from cutlayer.experiment.experiment import Experiment
from tests.nightly.hands import Counting, Failing, watched
from tests.nightly.runs import POINTS, Ended, config, finish, resumed, same, scratch

ERRORS = (errno.ENOSPC, errno.EIO, errno.EMFILE)
LASTS = (1, 1, 2, 5, 10**9)  # writes that fail in a row
PATIENCE = 0.02  # seconds for a passing error, instead of whatever a real disk is given
TROUBLE = (OSError, StoreError, KeyboardInterrupt)


def play(seed: int, folder: Path) -> None:
    dice = random.Random(seed)
    point, every, kept_memory = dice.choice(POINTS), dice.choice((1, 2)), dice.choice((None, 0))
    expected, writes = undisturbed(*point, every, kept_memory, os.getpid())
    given, out = configured(*point, every, kept_memory), folder / "run"
    was = files.PATIENCE
    files.PATIENCE = PATIENCE
    said = []
    try:
        for life in range(dice.choice((1, 1, 2, 3))):
            fault = drawn(dice, writes)
            with watched(folder, fault), suppress(*TROUBLE):
                finish(begun(given, out) if life == 0 else again(given, out))
            gc.collect()
            said.append(f"{fault.failed or 'nothing'}: {fault.error!r} for {fault.lasts}, torn at {fault.torn}")
        same(finish(again(given, out)), expected)
    except Exception as error:
        raise AssertionError(f"{point}, every {every}: {said}: {type(error).__name__}: {error}") from error
    finally:
        files.PATIENCE = was
    left = [path for path in out.rglob(".*") if path.name.endswith(".tmp")]
    assert not left, f"{point}: {said}: left behind: {left}"


def configured(scheme: str, protocol: str, every: int, kept_memory: float | None) -> Config:
    return config(scheme, protocol, checkpoint_every=every, rounds=3, kept_memory=kept_memory)


Known = tuple[Ended, list[str]]


@functools.cache
def undisturbed(scheme: str, protocol: str, every: int, kept_memory: float | None, owner: int) -> Known:
    """What the run ends with on a good disk, and all that it writes."""
    out, seen = scratch() / f"disk-{scheme}-{protocol}-{every}-{kept_memory}", Counting()
    with watched(out, seen):
        found = finish(Experiment.start(configured(scheme, protocol, every, kept_memory), out))
    return found, seen.seen


def drawn(dice: random.Random, writes: Sequence[str]) -> Failing:
    """Every kind of write as often, however many there are."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for number, what in enumerate(writes):
        kinds[re.sub("tmp.{8}|[0-9]+", "", what)].append(number)
    fatal, torn = dice.choice(kinds[dice.choice(sorted(kinds))]), dice.choice((None, dice.randrange(10**6)))
    if dice.random() < 0.5:
        return Failing(KeyboardInterrupt(), fatal, 10**9, torn)  # nothing is written after a kill
    number = dice.choice(ERRORS)
    return Failing(OSError(number, os.strerror(number)), fatal, dice.choice(LASTS), torn)


def begun(given: Config, out: Path) -> Experiment:
    return Experiment.start(given, out)


def again(given: Config, out: Path) -> Experiment:
    """As somebody would who sees what the folder holds."""
    try:
        return resumed(out)
    except StoreError as error:
        if "holds no run" not in str(error):
            raise
    return Experiment.start(given, out)
