"""Options that have no effect in a run: an error where they can only be a mistake, otherwise a warning."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterator

from cutlayer.errors import ContractError, NoEffect
from cutlayer.experiment.config import Config
from cutlayer.registry import OWN, TASKS

OF_OWN_DATA = ("data_test", "x_column", "y_column", "owner_column", "layout", "image_size")
WITHOUT_TEST = ("femnist", "shakespeare")
Effect = tuple[str, Callable[[Config], bool], str]


def _keeps(config: Config) -> bool:
    return config.protocol == "cyclesl" or config.part("scheme").traits.carry == "keep"


def _adaptive(config: Config) -> bool:
    return bool(config.scheme.get("adaptive"))


def _may_lack_tests(config: Config) -> bool:
    return TASKS[config.task].load is not None or (config.task == OWN and config.data_test is None)


SAID: tuple[Effect, ...] = (  # a field, whether it has an effect, and why it has none
    ("local_epochs", lambda c: c.local_steps is None and c.protocol == "smofi", "the steps of a round are counted"),
    (
        "holdout",
        lambda c: c.protocol == "cyclesl" or c.task in WITHOUT_TEST or _may_lack_tests(c),
        "the task has test rows of its own",
    ),
    ("data_dir", lambda c: c.task not in ("digits", OWN), "this task's rows are not in a data folder"),
    ("kept_memory", _keeps, "clients keep nothing between rounds"),
    ("sequential", lambda c: c.scheme["name"] == "sflv2", "it concerns SFLV2 alone"),
    ("data_on_device", lambda c: c.device != "cpu", "the CPU computes where the rows are"),
    ("ranks", lambda c: "WORLD_SIZE" in os.environ, "there is one process; several come with torchrun"),
)
PARTS: tuple[tuple[str, str, Callable[[Config], bool], str], ...] = (
    ("scheme", "alpha", lambda c: not _adaptive(c), "with adaptive, the cosine takes its place"),
    ("scheme", "stale_offset", lambda c: not _adaptive(c), "with adaptive, the cosine takes its place"),
    (
        "scheme",
        "rebias_history",
        lambda c: (c.server_optimizer or c.optimizer)["name"].startswith("adam"),
        "it is Adam's",
    ),
    ("scheme", "memory", lambda c: c.protocol == "cyclesl", "in protocol smofi the server's memory lasts one round"),
)


def check(config: Config, given: Collection[str], label: str = "", all_methods: int = 1) -> None:
    """Refuse, or warn of, options that were `given` and have no effect. In a comparison of several methods there is no
    warning, because an option may have an effect for some of them."""
    for field in OF_OWN_DATA:
        if field in given and config.data is None:
            raise ContractError(f"{field} = {getattr(config, field)!r}: it concerns your own data; expected --data too")
    if all_methods > 1:
        return
    for words in idle(config, given):
        warnings.warn(f"{label + ': ' if label else ''}{words}", NoEffect, stacklevel=2)


def idle(config: Config, given: Collection[str]) -> Iterator[str]:
    """Yield one sentence for each option that has no effect."""
    for field, acts, why in SAID:
        if field in given and not acts(config):
            yield f"{field} = {getattr(config, field)!r} has no effect here: {why}"
    for field, parameter, acts, why in PARTS:
        spec = getattr(config, field)
        if f"{field}.{parameter}" in given and spec and parameter in spec and not acts(config):
            yield f"{field}.{parameter} = {spec[parameter]!r} has no effect here: {why}"
