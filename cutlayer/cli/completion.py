"""`cutlayer completion`: flags and names that the shell completes."""

from __future__ import annotations

import argparse
from typing import Any

ABOUT = """\
Print a script that teaches your shell cutlayer's commands and flags.

examples:
  cutlayer completion bash > ~/.local/share/bash-completion/completions/cutlayer
  cutlayer completion zsh > ~/.zfunc/_cutlayer                with ~/.zfunc in fpath
"""
SHELLS = ("bash", "zsh", "tcsh")


def add(commands: Any) -> None:
    command = commands.add_parser("completion", help="completion for your shell", description=ABOUT)
    command.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of: {', '.join(SHELLS)}")
    command.set_defaults(run=_completion)


def _completion(args: argparse.Namespace) -> int:
    import shtab

    from cutlayer.cli.main import parser

    print(shtab.complete(parser(), args.shell))
    return 0
