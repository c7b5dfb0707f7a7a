"""The log: one event a line, bounded, in a file that does not grow for ever."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutlayer.cli.main import main
from cutlayer.core import logs
from cutlayer.errors import ContractError, StoreError

log = logging.getLogger("cutlayer.tests")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    root = logging.getLogger(logs.ROOT)
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up()
    log.info("%s: connected,\n%d samples", "ward-3", 12)
    assert capsys.readouterr().err.partition(" ")[2] == "INFO ward-3: connected, 12 samples\n"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("json")
    log.warning("%s is refused: %s", "ward-3", 'a "reason"\n')
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {"level": "warning", "from": "cutlayer.tests", "event": 'ward-3 is refused: a "reason"\n'}


def test_quiet_says_warnings_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    logs.set_up(quiet=True, file=tmp_path / "log")
    log.info("nothing much")
    log.warning("look")
    assert capsys.readouterr().err.endswith(" WARNING look\n")
    assert [line.split(" ", 1)[1] for line in (tmp_path / "log").read_text().splitlines()] == [
        "INFO nothing much",
        "WARNING look",
    ]


def test_it_is_bounded_and_says_what_it_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever comes again and again costs a few lines a minute; others are heard all the same."""
    clock = [1000.0]
    monkeypatch.setattr(logging.time, "time", lambda: clock[0])
    logs.set_up(file=tmp_path / "log")
    for n in range(5000):
        log.warning("%s is refused: attempt %d", "stranger", n)
    log.warning("another event")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == logs.BURST + 1 and said[-1].endswith("another event")
    clock[0] += logs.WINDOW
    log.warning("%s is refused: attempt %d", "stranger", 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"({5000 - logs.BURST} more like it were left out)")
    assert len((tmp_path / "log").read_text().splitlines()) == logs.BURST + 2


def test_many_kinds_are_bounded_too(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up()
    letters = "abcdefghijklmnop"
    for a in letters:
        for b in letters:
            for c in letters:
                log.warning("%s%s%s", a, b, c)
    assert len(capsys.readouterr().err.splitlines()) <= logs.ALL


def test_the_file_is_renamed_when_it_is_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(logs, "SIZE", 1000)
    monkeypatch.setattr(logs, "BURST", 10**6)
    monkeypatch.setattr(logs, "ALL", 10**6)
    logs.set_up(file=tmp_path / "log", quiet=True)
    for n in range(2000):
        log.info("line %d", n)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"log", *(f"log.{k}" for k in range(1, logs.FILES + 1))} and max(sizes.values()) <= 1000


def test_a_full_disk_loses_lines_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(file="/dev/full", quiet=True)
    for n in range(3):
        log.info("round %d", n)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "cutlayer: warning: /dev/full: cannot be written: [Errno 28] No space left on device"
    logs.set_up()  # closes it


@pytest.mark.parametrize("form", logs.FORMATS)
def test_how_a_command_ends_is_in_its_log(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "log", tmp_path / "x"
    words = ["run", "--log-format", form, "--log-file", str(file), "--out", str(out), "--clients", "-3"]
    assert main(words) == 2
    said, (kept,) = capsys.readouterr().err.splitlines()[-1], file.read_text().splitlines()
    if form == "text":
        assert said.startswith("cutlayer: error: clients = -3") and kept.partition(" ERROR ")[2] in said
    else:
        assert said == kept and json.loads(said)["event"].startswith("error: clients = -3")


def test_what_cannot_be_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ContractError, match="log_format = 'xml': expected 'text' or 'json'"):
        logs.set_up("xml")
    with pytest.raises(StoreError, match=r"log_file = .*: cannot be written"):
        logs.set_up(file=tmp_path / "no" / "log")
    assert main(["run", "--log-file", str(tmp_path), "--out", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err.startswith("cutlayer: error: log_file = ") and not (tmp_path / "x").exists()
