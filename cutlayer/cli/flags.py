"""Flags from the config: every field is one, and every parameter of a part is one with a dot (--scheme.alpha)."""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import sys
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from cutlayer.config import TABLES, Config, parameters
from cutlayer.errors import ContractError

PATHS = ("data_dir", "init", "data", "data_test")
TEXT = ("task", "device", "devices", "x_column", "y_column", "owner_column")  # whatever they look like


class Parser(argparse.ArgumentParser):
    """argparse that takes -1e-3 for a number and suggests the nearest flag for an unknown one."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs |= {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(**kwargs)
        self._words: list[str] = []
        self._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^-inf$|^-nan$")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (--?[^\s=]+)", message)
        if unknown:
            flags = [flag for action in self._all_actions() for flag in action.option_strings]
            near = difflib.get_close_matches(unknown.group(1), flags, n=1, cutoff=0.5)
            message = f"unknown flag {unknown.group(1)}" + (f": did you mean {near[0]}?" if near else "")
        choice = re.match(r"argument \S+: invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice:
            names = re.findall(r"[\w-]+", choice.group(2))
            near = difflib.get_close_matches(choice.group(1), names, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            message = f"unknown command {choice.group(1)!r}: {hint}valid: {', '.join(names)}"
        print(f"cutlayer: error: {message}", file=sys.stderr)
        raise SystemExit(2)

    def _all_actions(self) -> list[argparse.Action]:
        nested = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        chosen = [p for a in nested for p in a.choices.values() if p.prog.split()[-1] in self._words[:1]]
        return [*self._actions, *(action for parser in chosen for action in parser._actions)]


def add_config(
    parser: argparse.ArgumentParser, only: Collection[str] = tuple(Config.model_fields), hidden: Collection[str] = ()
) -> None:
    """One flag for every field of the config (of those named), and for every parameter of every part; `hidden`: known,
    but not in the help."""
    group = parser.add_argument_group("the run")
    for name, field in Config.model_fields.items():
        if name not in only:
            continue
        default = field.default["name"] if name in TABLES and field.default else field.default
        shown = "" if default is None or name in ("model", "cut") else f" (default: {default})"
        names = f" - {', '.join(TABLES[name])}" if name in TABLES else _choices(field.annotation)
        group.add_argument(
            "--" + name.replace("_", "-"),
            dest=name,
            nargs="+" if name == "cut" else None,
            metavar="NAME" if name in TABLES or name == "task" else "VALUE",
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS if name in hidden else f"{field.description}{names}{shown}",
        )
    for table in (table for table in TABLES if table in only):
        group = parser.add_argument_group(f"parameters of --{table.replace('_', '-')}")
        for parameter, owners in _parameters(table).items():
            said: dict[str, list[str]] = {}
            for name, spec in owners:
                said.setdefault(_words(spec), []).append(name)
            words = "; ".join(f"{', '.join(names)}: {what}" for what, names in said.items())
            flag = f"--{table}.{parameter}"
            flags = list(dict.fromkeys((flag, flag.replace("_", "-"))))
            group.add_argument(
                *flags,
                dest=f"{table}.{parameter}",
                nargs="+" if parameter == "betas" else None,
                metavar="VALUE",
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS if table in hidden else words,
            )


def _choices(annotation: Any) -> str:
    """The words a plain field may be, if it is a choice."""
    options = [annotation, *get_args(annotation)]
    words = [str(word) for option in options if get_origin(option) is Literal for word in get_args(option)]
    return f" - {', '.join(words)}" if len(words) > 1 else ""


def _parameters(table: str) -> dict[str, list[tuple[str, inspect.Parameter]]]:
    found: dict[str, list[tuple[str, inspect.Parameter]]] = {}
    for name, part in TABLES[table].items():
        for parameter, spec in parameters(part).items():
            found.setdefault(parameter, []).append((name, spec))
    return found


def _words(spec: inspect.Parameter) -> str:
    """A parameter's choices, if it has some, and its default."""
    choices = [str(choice) for choice in get_args(spec.annotation)] if get_origin(spec.annotation) is Literal else []
    return (f"{' | '.join(choices)}, " if choices else "") + f"default {spec.default}"


def config_values(args: argparse.Namespace) -> dict[str, Any]:
    """What was given on the command line, as nested config values."""
    values: dict[str, Any] = {}
    for key, given in vars(args).items():
        field, _, parameter = key.partition(".")
        if field not in Config.model_fields:
            continue
        if parameter:
            values.setdefault(field, {})[parameter] = given if key == "partition.path" else value(given)
        elif field in TABLES:
            values.setdefault(field, {})["name"] = given
        else:
            values[field] = given if field in (*TEXT, *PATHS) else value(given)
    return resolved(values)


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Config values with their paths from the root: a run is resumed from anywhere."""
    out = {key: str(Path(given).resolve()) if key in PATHS else given for key, given in values.items()}
    partition = out.get("partition")
    if isinstance(partition, Mapping) and isinstance(partition.get("path"), str):
        out["partition"] = {**partition, "path": str(Path(partition["path"]).resolve())}
    return out


def value(given: str | Sequence[str]) -> Any:
    """A flag's words as a TOML value: 3, 0.2, true, or a string."""
    if not isinstance(given, str):
        return value(given[0]) if len(given) == 1 else [value(item) for item in given]
    try:
        return tomllib.loads(f"v = {given}")["v"]
    except tomllib.TOMLDecodeError:
        return given


def seeds(given: Sequence[str]) -> list[int]:
    try:
        return [int(item) for item in given]
    except ValueError as error:
        raise ContractError(f"seeds = {list(given)!r}: expected whole numbers") from error
