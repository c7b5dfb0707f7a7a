"""argparse with help in sections, suggestions for unknown flags, and negative numbers as values.

`--help` shows the sections most people need, `--help-all` all of them, `--help SECTION` one.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from cutlayer.errors import NEAR, one_line

PLACE = "."  # between a part and its parameter: --scheme.alpha


class Help(argparse.Action):
    """-h, --help [SECTION], and --help-all."""

    def __init__(self, option_strings: Any, dest: str, everything: bool = False, **kwargs: Any) -> None:
        words = "show all flags" if everything else "show this, or the flags of one section"
        more: dict[str, Any] = {"nargs": 0} if everything else {"nargs": "?", "metavar": "SECTION"}
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, help=words, **more)
        self.everything = everything

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        assert isinstance(parser, Parser)
        if values and values not in parser.sections:
            names = ", ".join(parser.sections)
            parser.error(f"--help {values}: {near(values, parser.sections)}expected a section: {names}")
        print(parser.format_some("all" if self.everything else values or "short"), end="", flush=True)
        raise SystemExit(0)


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, at most 110 characters."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=min(shutil.get_terminal_size((110, 24)).columns, 110))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """`--scheme.hist_norm {count,weights}`: show only the first spelling, and --x / --no-x together."""
        if isinstance(action, argparse.BooleanOptionalAction):
            return " / ".join(action.option_strings[:2])
        if action.option_strings and action.nargs != 0:
            return f"{', '.join(_spellings(action))} {self._format_args(action, action.dest.upper())}"
        return super()._format_action_invocation(action)


def _spellings(action: argparse.Action) -> list[str]:
    first = action.option_strings[0]
    return [s for s in action.option_strings if s == first or s.replace("-", "_") != first.replace("-", "_")]


class Parser(argparse.ArgumentParser):
    """argparse that takes -1e-3 for a number and suggests the nearest flag for an unknown one."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs |= {"formatter_class": Formatter, "allow_abbrev": False, "add_help": False}
        super().__init__(**kwargs)
        self.sections: dict[str, argparse._ArgumentGroup] = {}
        self.hidden: set[str] = set()  # sections that --help leaves out
        self.takes: dict[str, dict[str, list[str]]] = {}  # of --scheme and the like: the parameters of each part
        self._words: list[str] = []
        self._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^-inf$|^-nan$")
        self.add_argument("-h", "--help", action=Help)

    def format_some(self, which: str) -> str:
        """The help: "short", "all", or one section's."""
        formatter = self._get_formatter()
        groups = [g for g in self._action_groups if g not in self.sections.values()]
        if which in self.sections:
            chosen = [self.sections[which]]
        else:
            formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
            formatter.add_text(self.description)
            keys = [key for key in self.sections if which == "all" or key not in self.hidden]
            chosen = [*groups, *(self.sections[key] for key in keys)]
        for group in chosen:
            formatter.start_section(group.title)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        left = [key for key in self.sections if key in self.hidden]
        if which == "short" and left:
            formatter.add_text(f"more: --help SECTION ({', '.join(left)}), or --help-all")
        return formatter.format_help()

    def format_help(self) -> str:
        return self.format_some("short")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = list(sys.argv[1:] if args is None else args)
        for parser in self._chosen():
            parser.accept_own(self._words)
        return super().parse_args(args, namespace)

    def accept_own(self, words: list[str]) -> None:
        """Accept parameters of a part that is not in our tables (--model my_nets:build --model.width 64): the part says
        later which it has."""
        known = {flag for action in self._actions for flag in action.option_strings}
        for flag in dict.fromkeys(word.partition("=")[0] for word in words):
            part, dot, name = flag.partition(PLACE)
            if not dot or flag in known or not name.replace("-", "_").isidentifier():
                continue
            chosen = [value for value, word in zip(words[1:], words, strict=False) if word == part]
            if part in self.takes and any(value not in self.takes[part] for value in chosen):
                dest = f"{part[2:]}{PLACE}{name}".replace("-", "_")
                self.add_argument(flag, dest=dest, nargs="+", default=argparse.SUPPRESS, help=argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (--?[^\s=]+)", message)
        choice = re.match(r"argument \S+: invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if unknown:
            message = self._unknown_flag(unknown.group(1))
        elif choice:
            names = re.findall(r"[\w-]+", choice.group(2))
            message = f"unknown command {choice.group(1)!r}: {near(choice.group(1), names)}valid: {', '.join(names)}"
        print(f"cutlayer: error: {one_line(message)}", file=sys.stderr)
        raise SystemExit(2)

    def _unknown_flag(self, given: str) -> str:
        """The error for an unknown flag, with the nearest one; for --scheme.x, only among that scheme's parameters."""
        flags = [flag for action in self._all_actions() for flag in action.option_strings]
        part, dot, name = given.partition(PLACE)
        parts = next((p.takes[part] for p in self._chosen() if part in p.takes), None) if dot else None
        if parts is not None:
            after = [word for word, flag in zip(self._words[1:], self._words, strict=False) if flag == part]
            one = after[-1] if after and after[-1] in parts else None
            known = sorted(parts[one] if one else {parameter for takes in parts.values() for parameter in takes})
            whose = f"{part} {one}" if one else part
            hint = near(name, known, prefix=part + PLACE)
            return f"unknown flag {given}: {hint}parameters of {whose}: {', '.join(known) or 'none'}"
        hint = near(given.lstrip("-"), (flag.lstrip("-") for flag in flags if PLACE not in flag), prefix="--")
        return f"unknown flag {given}" + (f": {hint.rstrip()}" if hint else "")

    def _chosen(self) -> list[Parser]:
        """This parser, and that of the command that was given."""
        nested = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        return [self, *(p for a in nested for p in a.choices.values() if p.prog.split()[-1] in self._words[:1])]

    def _all_actions(self) -> list[argparse.Action]:
        return [action for parser in self._chosen() for action in parser._actions]


def section(parser: argparse.ArgumentParser, key: str, title: str, shown: bool) -> argparse._ArgumentGroup:
    """Add a group of flags that `--help KEY` shows, and `--help` only if it is `shown`."""
    assert isinstance(parser, Parser)
    if not shown:
        parser.hidden.add(key)
        if not any(action.option_strings == ["--help-all"] for action in parser._actions):
            parser.add_argument("--help-all", action=Help, everything=True)
    parser.sections[key] = parser.add_argument_group(title)
    return parser.sections[key]


def later(name: str) -> Callable[[argparse.Namespace], int]:
    """`run` of cutlayer.cli.commands.NAME (or NAME:FUNCTION), imported when it is called."""
    module, _, function = name.partition(":")

    def run(args: argparse.Namespace) -> int:
        found = getattr(importlib.import_module(f"cutlayer.cli.commands.{module}"), function or "run")
        return int(found(args))

    return run


def near(given: str, names: Iterable[str], prefix: str = "") -> str:
    """`did you mean NAME? `, or nothing where no name is near."""
    found = difflib.get_close_matches(given, list(names), n=1, cutoff=NEAR)
    if not found:
        return ""
    return f"did you mean {prefix}{found[0]}? " if prefix else f"did you mean {found[0]!r}? "
