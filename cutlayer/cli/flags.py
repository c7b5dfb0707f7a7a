"""Flags from the config: one for every field, and one with a dot for every parameter of a part (--scheme.alpha)."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cutlayer.cli.parser import PLACE, Parser, section
from cutlayer.core import toml
from cutlayer.core.files import from_root
from cutlayer.errors import ContractError
from cutlayer.experiment import config as text
from cutlayer.experiment.config import TABLES, Config
from cutlayer.experiment.description import HEADER
from cutlayer.registry import PROFILES, TASKS, Takes, own
from cutlayer.registry.part import kind_of

PATHS = ("data_dir", "init", "data", "data_test")
TEXT = ("task", "device", "profile", "x_column", "y_column", "owner_column")  # strings, even if they look like numbers
SECTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "method": ("method", ("scheme", "local", "update", "optimizer", "server_optimizer", "protocol")),
    "task": ("task and model", ("task", "model", "cut", "partition", "clients", "data_dir", "data")),
    "rounds": (
        "rounds",
        ("rounds", "participation", "batch_size", "local_epochs", "local_steps", "evaluate_every", "target", "seed"),
    ),
    "data": (
        "more about the data",
        (
            *("data_test", "x_column", "y_column", "owner_column", "layout", "image_size", "train_rows", "holdout"),
            "validation",
            *("augment", "last_batch", "small_client"),
        ),
    ),
    "text": ("models of transformers", ("peft", "tokens")),
    "gradients": ("gradients and rates", ("clip", "accumulate", "lr_schedule", "calibrate")),
    "cut": ("what crosses the cut", ("labels", "noise")),
    "time": ("simulated time", ("profile", "kappa", "count_sync", "sequential")),
    "machine": (
        "this machine",
        (
            *("device", "data_on_device", "backend", "stack", "threads", "torch_threads", "ranks", "memory_limit"),
            *("kept_memory", "autocast", "compile", "checkpoint_every", "init", "detail"),
        ),
    ),
}
SHORT = ("method", "task", "rounds")  # sections that --help shows
METAVARS = {
    **dict.fromkeys((*TABLES, "task", "profile"), "NAME"),
    **dict.fromkeys(("data", "data_test"), "PATH"),
    **{"cut": "L", "participation": "N|RATE", "data_dir": "FOLDER", "init": "FILE", "device": "DEVICE"},
}


def add_config(
    parser: argparse.ArgumentParser,
    only: Collection[str] = tuple(Config.model_fields),
    hidden: Collection[str] = (),
    short: Collection[str] = SHORT,
    several: bool = False,
) -> None:
    """Add one flag for every field of the config in `only`, and for every parameter of every part.

    `hidden`: fields whose flags are accepted but not in the help ("scheme.", with a dot: the parameters of that part).
    `short`: the sections that `--help` shows; `--help-all` shows the others too.
    `several`: every flag but yes or no takes one value or more.
    """
    for key, (title, fields) in SECTIONS.items():
        chosen = [name for name in fields if name in only]
        group = section(parser, key, title, shown=key in short) if chosen or key == "machine" else None
        if group is not None and key == "machine":
            add_import(group)
        for name in chosen:
            assert group is not None
            _field(group, name, name in hidden, several)
    for table in (table for table in TABLES if table in only):
        title = f"parameters of --{table.replace('_', '-')}"
        group = section(parser, table, title, shown=False)
        if isinstance(parser, Parser):
            shipped = TABLES[table].shipped
            parser.takes[f"--{table.replace('_', '-')}"] = {name: list(p.takes) for name, p in shipped.items()}
        for name, owners in _parameters(table).items():
            _parameter(group, table, name, owners, (f"{table}{PLACE}" in hidden, several))


def _field(group: argparse._ArgumentGroup, name: str, hidden: bool, several: bool) -> None:
    field = Config.model_fields[name]
    flag, words = "--" + name.replace("_", "-"), str(field.description)
    known: dict[str, Iterable[str]] = {**TABLES, "task": TASKS, "profile": PROFILES}
    if name in known:
        words += f": {', '.join(known[name])}"
    words += _range(field.metadata) + _default(name, field.default)
    more: dict[str, Any] = {"metavar": METAVARS.get(name) or kind_of(field.annotation)}
    if field.annotation is bool:
        more = {"action": argparse.BooleanOptionalAction}
    elif name == "cut" or several:
        more["nargs"] = "+"
    help_ = argparse.SUPPRESS if hidden else words.replace("%", "%%")
    group.add_argument(flag, dest=name, default=argparse.SUPPRESS, help=help_, **more)


def _default(name: str, default: Any) -> str:
    if name in ("model", "cut"):
        return " (default: the task's)"
    if default is None:
        return ""
    if isinstance(default, bool):
        return f" (default: {'yes' if default else 'no'})"
    shown = default["name"] if isinstance(default, Mapping) else default
    others = [f"{task}: {about.defaults[name]}" for task, about in TASKS.items() if name in about.defaults]
    return f" (default: {', '.join([str(shown), *others])})"


def _range(limits: Sequence[Any]) -> str:
    """Pydantic's bounds in words."""
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    said = [f"{words[name]} {getattr(one, name)}" for one in limits for name in words if hasattr(one, name)]
    return f", {' and '.join(said)}" if said else ""


def _parameters(table: str) -> dict[str, list[tuple[str, Takes]]]:
    """Each parameter, and the parts that take it."""
    found: dict[str, list[tuple[str, Takes]]] = {}
    for name, part in TABLES[table].shipped.items():  # others say themselves what they take, once they are imported
        for parameter, takes in part.takes.items():
            found.setdefault(parameter, []).append((name, takes))
    return found


def _parameter(
    group: argparse._ArgumentGroup, table: str, name: str, owners: list[tuple[str, Takes]], how: tuple[bool, bool]
) -> None:
    """Add the flag of a parameter; `how`: whether it is hidden, and whether it takes several values."""
    hidden, several = how
    said: dict[str, list[str]] = {}
    for owner, takes in owners:
        default = "" if takes.default in (None, "") else f" (default: {_plain(takes.default)})"
        said.setdefault(f"{takes.about or 'see the part itself'}{default}", []).append(owner)
    words = "; ".join(f"{', '.join(names)}: {what}" for what, names in said.items())
    kinds = list(dict.fromkeys(takes.kind for _, takes in owners))
    flag = f"--{table}.{name}"
    flags = list(dict.fromkeys((flag, flag.replace("_", "-"))))
    more: dict[str, Any] = {"metavar": kinds[0] if len(kinds) == 1 else "VALUE"}
    if kinds == ["BOOL"]:
        more = {"action": argparse.BooleanOptionalAction}
    elif kinds == ["FLOAT FLOAT"] or several:
        more = {"metavar": kinds[0].split()[0] if len(kinds) == 1 else "VALUE", "nargs": "+"}
    help_ = argparse.SUPPRESS if hidden else words.replace("%", "%%")
    group.add_argument(*flags, dest=f"{table}{PLACE}{name}", default=argparse.SUPPRESS, help=help_, **more)


def _plain(default: Any) -> str:
    if isinstance(default, tuple):
        return " ".join(str(one) for one in default)
    return {True: "yes", False: "no"}[default] if isinstance(default, bool) else str(default)


def choices(name: str) -> list[str]:
    """The values that a field allows, if it is a choice."""
    annotation = Config.model_fields[name].annotation
    options = [annotation, *get_args(annotation)]
    return [str(word) for option in options if get_origin(option) is Literal for word in get_args(option)]


def config_values(args: argparse.Namespace) -> dict[str, Any]:
    """The flags that were given, as nested config values."""
    values: dict[str, Any] = {}
    for key, given in vars(args).items():
        field, _, parameter = key.partition(PLACE)
        if field not in Config.model_fields:
            continue
        if parameter:
            path = field == "partition" and parameter == "path"
            values.setdefault(field, {})[parameter] = given if path else value(given)
        elif field in TABLES:
            values.setdefault(field, {})["name"] = given
        else:
            values[field] = given if field in (*TEXT, *PATHS) else value(given)
    for named in text.paths(values):
        own.allow(named)
    return resolved(values)


Axis = tuple[str, list[Any]]
"""A field, or a parameter with a dot, and the values it takes in turn."""


def swept_values(args: argparse.Namespace) -> tuple[dict[str, Any], list[Axis]]:
    """The flags of a sweep: those with one value, as nested config values, and those with several. A value that is
    itself several numbers is written with commas: --cut 0,3 4,7."""
    plain, axes = argparse.Namespace(), []
    for key, given in vars(args).items():
        field = key.partition(PLACE)[0]
        if field not in Config.model_fields or not isinstance(given, list):
            setattr(plain, key, given)
            continue
        words = [word.split(",") if "," in word else word for word in given]
        if len(words) > 1:
            axes.append((key, [value(word) for word in words]))
        else:
            setattr(plain, key, words[0])
    return config_values(plain), axes


def add_import(parser: argparse._ActionsContainer) -> None:
    """Add --import."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module of your own first: for what it registers, or as one that may be named as MODULE:NAME",
    )


def written(path: Path) -> dict[str, Any]:
    """The values of a TOML file. If the user wrote it, its import paths count as named; if a run wrote it, they do not,
    because it may have come from somebody else."""
    values = toml.read(path)
    if not path.read_bytes().startswith(HEADER.encode()):
        for named in text.paths(values):
            own.allow(named)
    return values


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Config values with absolute paths, so that a run can be resumed from any folder."""
    out = {
        key: str(from_root(key, given)) if key in PATHS and isinstance(given, str) else given
        for key, given in values.items()
    }
    partition = out.get("partition")
    if isinstance(partition, Mapping) and isinstance(partition.get("path"), str):
        out["partition"] = {**partition, "path": str(from_root("partition.path", partition["path"]))}
    return out


def value(given: bool | str | Sequence[str]) -> Any:
    """A flag's text as a TOML value: 3, 0.2, true, or a string."""
    if isinstance(given, bool):
        return given
    if not isinstance(given, str):
        return value(given[0]) if len(given) == 1 else [value(item) for item in given]
    try:
        return tomllib.loads(f"v = {given}")["v"]
    except (ValueError, RecursionError):  # not TOML, or too many digits or brackets
        return given


def seeds(given: Sequence[str]) -> list[int]:
    try:
        return [int(item) for item in given]
    except ValueError as error:
        raise ContractError(f"seeds = {list(given)!r}: expected whole numbers") from error
