"""What a package index and its readers are told. (`make package` builds it, installs it and runs it.)"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
HOME = "https://github.com/cutlayer/cutlayer"
ABOUT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())


def plain(name: str) -> str:
    """A package's name without its version, as indexes spell it."""
    return re.split(r"[><=\[; ]", name)[0].lower().replace("_", "-")


def test_addresses() -> None:
    urls = ABOUT["project"]["urls"]
    assert set(urls) == {"Homepage", "Repository", "Issues", "Changelog", "Documentation"}
    assert all(url.startswith(HOME) for url in urls.values())
    for name in ("Changelog", "Documentation"):
        where = urls[name].removeprefix(HOME).strip("/").split("/", 2)  # blob or tree, branch, path
        assert (ROOT / where[2]).exists()


@pytest.mark.parametrize(
    "classifier",
    [
        *(f"Programming Language :: Python :: {version}" for version in ("3", "3 :: Only", "3.11", "3.12", "3.13")),
        *(f"Operating System :: {name}" for name in ("POSIX :: Linux", "MacOS", "Microsoft :: Windows")),
        "Typing :: Typed",
    ],
)
def test_classifiers(classifier: str) -> None:
    assert classifier in ABOUT["project"]["classifiers"]


def test_the_readme_says_what_is_tested_and_what_is_not() -> None:
    install = (ROOT / "README.md").read_text().split("## Install\n")[1].split("\n## ")[0]
    for words in (
        "pip install cutlayer",
        'pip install "cutlayer[net]"',
        "Linux",
        "3.11",
        "expected to work",
        "Windows",
    ):
        assert words in install


def test_what_it_needs_is_pinned_for_the_tests() -> None:
    pinned = {plain(name) for name in PINS}
    needed = [*ABOUT["project"]["dependencies"], *ABOUT["project"]["optional-dependencies"]["net"]]
    needed += ABOUT["build-system"]["requires"]
    assert [name for name in needed if plain(name) not in pinned] == []


def test_the_source_archive_holds_what_a_packager_needs() -> None:
    include = ABOUT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    for name in ("cutlayer", "tests", "docs", "examples", "experiments", "Makefile", "constraints.txt", "CITATION.cff"):
        assert f"/{name}" in include
        assert (ROOT / name).exists()
    assert "/conftest.py" in include and ABOUT["project"]["license-files"] == ["LICENSE"]
