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


def test_every_page_it_links_to_is_there() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README.read_text())
    assert "docs/exit-codes.md" in links
    assert [link for link in links if not (README.parent / link).exists()] == []


def test_every_exit_code_has_a_line() -> None:
    page = (README.parent / "docs" / "exit-codes.md").read_text()
    assert re.findall(r"^\| (\d+) \|", page, re.MULTILINE) == ["0", "2", "3", "4", "130", "141", "143"]
