"""What the tables say of a part is what the part takes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from cutlayer.cli import flags
from cutlayer.cli.main import main, parser
from cutlayer.cli.parser import Parser
from cutlayer.data.tasks import SOURCES
from cutlayer.errors import ContractError
from cutlayer.experiment import config as text
from cutlayer.experiment.config import TABLES, Config
from cutlayer.registry import PROFILES, TASKS, Part
from cutlayer.registry.part import kind_of
from cutlayer.simulation.devices import DRAWS

PARTS = [(table, name) for table in TABLES if table != "server_optimizer" for name in TABLES[table]]


@pytest.mark.parametrize(("table", "name"), PARTS)
def test_names_kinds_and_defaults_are_those_of_the_part(table: str, name: str) -> None:
    part = TABLES[table][name]
    assert part.about is not None
    real = part.signature()
    assert {n: (t.kind, t.default) for n, t in part.takes.items()} == {
        n: (kind_of(p.annotation), None if p.default is p.empty else p.default) for n, p in real.items()
    }
    for takes in part.takes.values():
        assert 8 < len(takes.about) < 120 and not takes.about.endswith(".") and takes.kind != "VALUE"


def test_a_part_of_ones_own_needs_no_table() -> None:
    @dataclass(frozen=True)
    class Mine:
        often: Literal["yes", "no"] = "no"
        much: float | None = None

    takes = Part(Mine, "mine", "-").takes
    assert {n: (t.kind, t.default) for n, t in takes.items()} == {"often": ("{yes,no}", "no"), "much": ("FLOAT", None)}


def test_tasks_and_profiles_have_both_halves() -> None:
    assert list(TASKS) == list(SOURCES) and list(PROFILES) == list(DRAWS)


def test_every_field_is_in_one_section() -> None:
    named = [field for _, fields in flags.SECTIONS.values() for field in fields]
    assert sorted(named) == sorted(Config.model_fields) and len(named) == len(set(named))


def commands() -> dict[str, Parser]:
    top: Any = parser()
    (nested,) = [action for action in top._actions if action.dest == "command"]
    found: dict[str, Parser] = dict(nested.choices)
    return found


@pytest.mark.parametrize("command", commands())
def test_every_flag_says_what_it_is(command: str) -> None:
    for action in commands()[command]._actions:
        assert action.help or not action.option_strings, action
        assert action.metavar != "VALUE" or action.dest.startswith("model."), action


def test_sections_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*line: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(list(line))
        assert end.value.code == (2 if "nonsense" in line else 0)
        captured = capsys.readouterr()
        return captured.out + captured.err

    short, everything, one = (said("run", *flag) for flag in (["--help"], ["--help-all"], ["--help", "scheme"]))
    assert len(short.splitlines()) < 90 < 200 < len(everything.splitlines())
    assert "--scheme.alpha FLOAT" in one and "at most 0" in one and "--rounds" not in one
    assert "--scheme.alpha FLOAT" not in short and "--scheme.alpha FLOAT" in everything
    assert "--augment / --no-augment" in everything and "--autocast {bfloat16}" in everything
    assert "--small-client {skip,one_batch}" in everything
    whole = " ".join(everything.split())
    assert "float16 is refused: it needs scaled losses" in whole and "(small models, and on a GPU)" in whole
    assert whole.count("on a GPU it must be 1") == 2 and "stacks are made smaller first" in whole
    assert "did you mean 'scheme'?" in said("run", "--help", "schemes", "nonsense")
    both = said("compare", "--help-all")
    assert "--scheme NAME" not in both and "--seed INT" not in both and "--scheme.alpha FLOAT" in both


@pytest.mark.parametrize(
    ("line", "said", "never"),
    [
        ("run --scheme smofi --scheme.beta 1", "parameters of --scheme smofi: adaptive, alpha", "did you mean"),
        ("run --scheme ssl --scheme.beta 1", "parameters of --scheme ssl: none", "did you mean"),
        ("run --scheme.alfa 1", "did you mean --scheme.alpha?", "--version"),
        ("run --json", "unknown flag --json", "did you mean"),
        ("run --scheme ssl --scheme.alpha -1", "valid: none, it takes nothing", "did you mean"),
        ("run --server-optimizer.lrr 1", "unknown flag --server-optimizer.lrr", "--scheme"),
    ],
)
def test_suggestions_are_near_and_the_parts_own(
    line: str, said: str, never: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):  # argparse leaves so
        assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert said in error and never not in error and error.count("\n") == 1


@pytest.mark.parametrize(("flag", "value"), [("--augment", True), ("--no-augment", False)])
def test_booleans(flag: str, value: bool) -> None:
    args = parser().parse_args(["run", flag, "--no-scheme.adaptive", "--scheme.fuse-clients"])
    values = flags.config_values(args)
    assert values == {"augment": value, "scheme": {"adaptive": False, "fuse_clients": True}}


def test_defaults_are_pythons_unless_the_task_has_its_own() -> None:
    import inspect

    from cutlayer.api.train import rounds

    python = {name: p.default for name, p in inspect.signature(rounds).parameters.items()}
    plain, digits = text.parse({"task": "mnist"}), text.parse({})
    for field in ("rounds", "batch_size", "participation", "local_epochs", "local_steps", "protocol", "seed"):
        assert getattr(plain, field) == python[field], field
    assert (digits.rounds, digits.batch_size) == (20, 8) and TASKS["digits"].defaults == {"rounds": 20, "batch_size": 8}
    assert text.parse({"rounds": 3, "batch_size": 4}).batch_size == 4


def test_unknown_parts_say_so() -> None:
    with pytest.raises(ContractError, match="unknown scheme 'median'"):
        text.parse({"scheme": "median"})
