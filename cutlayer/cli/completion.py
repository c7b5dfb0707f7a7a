"""`cutlayer completion`: a script with which the shell completes commands and flags."""

from __future__ import annotations

import argparse
import functools
from typing import Any

ABOUT = """\
Print a script that teaches your shell cutlayer's commands and flags.

examples:
  cutlayer completion bash > ~/.local/share/bash-completion/completions/cutlayer
  cutlayer completion zsh > ~/.zfunc/_cutlayer                with ~/.zfunc in fpath
"""
SHELLS = ("bash", "zsh", "tcsh")


def add(commands: Any, top: argparse.ArgumentParser) -> None:
    command = commands.add_parser("completion", help="completion for your shell", description=ABOUT)
    command.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of: {', '.join(SHELLS)}")
    command.set_defaults(run=functools.partial(_completion, top))


def _completion(top: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(top, args.shell))
    return 0
