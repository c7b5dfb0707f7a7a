"""The README's Python runs as it stands."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 1 and len(blocks[0].splitlines()) <= 16
    done = subprocess.run([sys.executable, "-c", blocks[0]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[")


def test_every_command_it_shows_parses() -> None:
    from cutlayer.cli.main import parser

    lines = [line.split("#")[0] for line in README.read_text().splitlines() if line.startswith("cutlayer ")]
    commands = [line.split()[1:] for line in lines]
    assert len(commands) >= 7
    for command in commands:
        helps = pytest.raises(SystemExit) if "--help" in command else contextlib.nullcontext()
        with helps:
            parser().parse_args(command)
