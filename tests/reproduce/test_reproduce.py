"""From an item to its table: trained, shared, resumed, in the paper's layout, with the printed numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cutlayer.cli.main import main
from cutlayer.experiment import pool
from cutlayer.reproduce import catalogue, layout, make, printed, runs, scales
from cutlayer.reproduce.figures import draw
from cutlayer.reproduce.item import Cell, Item, Target
from cutlayer.reproduce.results import results
from cutlayer.reproduce.runs import Runs
from cutlayer.reproduce.scales import Reduced
from tests.report.made_up import outcome

DIGITS: dict[str, Any] = {
    "task": "digits",
    "model": {"name": "mlp", "width": 8},
    "scheme": {"name": "fedavg"},
    "partition": {"name": "iid"},
    "clients": 6,
    "participation": 3,
    "batch_size": 32,
    "local_epochs": 1,
    "rounds": 8,
    "optimizer": {"name": "sgd", "lr": 0.1},
}


def small(view: Any = "table", measures: tuple[str, ...] = ("accuracy", "rounds", "speedup"), **more: Any) -> Item:
    smofi = {**DIGITS, "scheme": {"name": "smofi"}}
    cells = (
        Cell("CIFAR-10/Dir100(0.2)", "FedAvg", DIGITS, "FedAvg"),
        Cell("CIFAR-10/Dir100(0.2)", "+ SMoFi", smofi, "FedAvg"),
        Cell("CIFAR-100/Dir100(0.2)", "FedAvg", DIGITS, "FedAvg"),  # the same run once more
        Cell("Tiny-ImageNet/Dir200(0.2)", "FedAvg", {**DIGITS, "task": "celeba"}, "FedAvg"),
    )
    return Item("smofi", "table-1", "a small one", view, measures, cells, **more)


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scales.LAPTOP, ("smofi", "digits"), Reduced(values={"rounds": 2}))
    monkeypatch.setitem(scales.LAPTOP, ("smofi", "celeba"), Reduced(values={"rounds": 2}))
    monkeypatch.delenv("CUTLAYER_DATA", raising=False)
    monkeypatch.setitem(catalogue.PAPERS["smofi"], "table-1", small())


@pytest.mark.usefixtures("digits")
def test_a_table_is_trained_shared_and_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs"
    command = ["reproduce", "smofi", "table-1", "--seeds", "0", "1", "--out", str(out), "--jobs", "2"]
    assert main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "4 runs in" in said and "0 of them there" in said and "no data: celeba" in said and not out.exists()

    assert main(command) == 0
    said = capsys.readouterr().out
    assert "[77.16 ± 0.11]" in said and "no data" in said and "rounds 2 (paper: 8)" in said
    assert sorted(path.name for path in (out / "runs").iterdir()) == sorted(
        {runs.key(scales.scaled(cell.values, "laptop")) for cell in small().cells[:2]}
    )
    folder = out / "smofi-table-1"
    numbers = json.loads((folder / "table.json").read_text())
    first, second, same, none = numbers["cells"]
    assert first["printed"] == {"accuracy": [77.16, 0.11], "rounds": 258, "speedup": 1.0}
    assert first["accuracy"] == same["accuracy"] and set(first["seeds"]) == {"0", "1"}
    assert second["difference_from_baseline"] is not None and none["missing"] == "no data"
    assert numbers["seeds"] == [0, 1] and numbers["scale"] == "laptop" and "cutlayer reproduce" in numbers["command"]
    page = (folder / "report.html").read_text()
    assert "77.16 ± 0.11" in page and "://" not in page
    assert "with 95 % t intervals" in page and "CIFAR-10/Dir100(0.2): + SMoFi" in page.partition("t intervals")[2]
    written_down = [path.read_text().splitlines() for path in (out / "runs").glob("*/*/journal.jsonl")]
    seconds = sum(json.loads(line)["seconds"] for lines in written_down for line in lines)
    all_runs = Runs(small(), "laptop", [0, 1], out, {})
    counted = make._seconds(all_runs, results(small(), all_runs.found(), reduced=True))
    assert counted == pytest.approx(seconds), "the run of two cells counts once"

    journal = next((out / "runs").glob("*/seed-0/journal.jsonl"))
    before, written = journal.read_bytes(), journal.stat().st_mtime_ns
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == numbers["cells"]
    assert (journal.read_bytes(), journal.stat().st_mtime_ns) == (before, written), "trained again"


@pytest.mark.usefixtures("digits")
def test_an_interrupted_run_goes_on_and_a_half_trained_table_is_shown(tmp_path: Path) -> None:
    found = Runs(small(), "laptop", [0], tmp_path, {})
    first, second = found.jobs()
    for _ in pool.train([first], 1, "again"):
        pass
    made = make.trained(found, "command")
    rows = made.sections[0].rows
    assert 0 < float(rows[0][1].ours) <= 100 and rows[1][1].ours == "not trained" and rows[0][-1].ours == "no data"
    assert pool.done(first.folder) and not second.folder.exists()


def test_the_layout_is_the_papers() -> None:
    """Rows by block, a column for each measure of each panel, and R against the block's own baseline."""
    item = catalogue.find("smofi", "table-1").only(["cifar-10"])
    places = {cell.place: cell for cell in item.cells}
    found: dict[Any, Any] = {place: [outcome([0.1, 0.5, 0.6])] for place in places}
    found[next(p for p in places if p[1:3] == ("FedProx", "FedProx"))] = [outcome([0.1, 0.1, 0.6, 0.6])]
    found[next(p for p in places if p[1:3] == ("FedProx", "+ FedAvgM"))] = [outcome([0.1, 0.1, 0.1, 0.1, 0.1, 0.6])]
    found[next(p for p in places if p[1:3] == ("FedNAR", "+ SMoFi"))] = [outcome([0.1, 0.2])]
    (section,) = layout.sections(item, results(item, found, reduced=True))
    assert section.headings[1:] == [f"CIFAR-10/Dir100(0.2): {word}" for word in ("Acc. (%)", "R", "R↑")]
    rows = [[entry.line for entry in row] for row in section.rows]
    assert rows[0] == ["FedAvg", "60.00 [77.16 ± 0.11]", "3 [258]", "1.00x [1.00x]"]
    assert rows[5] == ["FedProx", "60.00 [77.38 ± 0.01]", "3 [167]", "1.00x [1.00x]"]
    assert rows[6] == ["+ FedAvgM", "60.00 [79.26 ± 0.65]", "6 [207]", "0.50x [0.81x]"]
    assert rows[14] == ["+ SMoFi", "20.00 [81.65 ± 0.65]", ">2 [46]", "- [5.54x]"]


@pytest.mark.parametrize(
    ("paper", "name", "baselines"),
    [
        ("smofi", "table-2", {"FedAvg"}),
        ("smofi", "figure-11", {"SMoFi"}),
        ("cyclesl", "table-3", {"FedAvg"}),
        ("smofi", "table-1", {"FedAvg", "FedProx", "FedNAR"}),
    ],
)
def test_differences_have_a_baseline_in_every_item(paper: str, name: str, baselines: set[str]) -> None:
    item = catalogue.find(paper, name)
    found: dict[Any, Any] = {cell.place: [outcome([0.1, 0.5, 0.4], seed) for seed in (0, 1)] for cell in item.cells}
    (section,) = layout.differences(item, made := results(item, found, reduced=True))
    assert {row[1].ours for row in section.rows} == baselines
    itself = {(r.cell.panel, r.cell.block, r.baseline) for r in made}
    shown = [r for r in made if not r.cell.hidden and (r.cell.panel, r.cell.block, r.cell.row) not in itself]
    assert len(section.rows) == len(shown)
    assert layout.differences(item, results(item, {p: some[:1] for p, some in found.items()}, reduced=True)) == []


def test_the_json_of_curves_has_every_point() -> None:
    item = catalogue.find("smofi", "figure-11")
    found: dict[Any, Any] = {cell.place: [outcome([0.1, None, 0.4])] for cell in item.cells}
    number = results(item, found, reduced=True)[0].plain(("accuracy",))
    assert number["seeds"][0]["accuracy"] == [[1, 0.1], [3, 0.4]]


def test_hours_of_a_table_of_split_methods() -> None:
    item = catalogue.find("smofi", "table-2").only(["cifar-10"])
    found: dict[Any, Any] = {cell.place: [outcome([0.1, 0.5, 0.6], seconds=3600.0)] for cell in item.cells}
    found[next(c.place for c in item.cells if c.row == "SFLV1 (τ = 1)")] = [outcome([0.1] * 4, seconds=3600.0)]
    (section,) = layout.sections(item, [r for r in results(item, found, True) if not r.cell.hidden])
    rows = {row[0].ours: [entry.line for entry in row[1:]] for row in section.rows}
    assert rows["SFLV1 (τ = 1)"] == ["10.00 [68.10 ± 0.57]", ">4 [>1000]", ">4.00 [>551.62]"]
    assert rows["SFLV2"] == ["60.00 [79.42 ± 0.04]", "3 [278]", "3.00 [144.50]"]
    assert rows["SFLV2 (time as in the paper)"] == ["60.00", "3", "3.00"]


def test_metrics_have_rows_of_their_own() -> None:
    item = catalogue.find("cyclesl", "table-3").only(["femnist"])
    found: dict[Any, Any] = {cell.place: [outcome([0.9, 0.75])] for cell in item.cells}
    (section,) = layout.sections(item, results(item, found, reduced=True))
    rows = [[entry.line for entry in row] for row in section.rows]
    assert rows[0] == ["PSL, Loss", "0.250 [2.050 ± 0.235]"] and rows[1] == ["PSL, Accu", "0.750 [0.525 ± 0.046]"]
    assert len(rows) == 8 * 4 and section.headings == ["Method", "FEMNIST"]


def test_fixed_targets_and_their_shares() -> None:
    """At the paper's scale 70 %; else the same share of FedAvg's best."""
    item = catalogue.find("smofi", "figure-10").only(["cifar-10"])
    found: dict[Any, Any] = {cell.place: [outcome([0.2, 0.5, 0.8])] for cell in item.cells}
    at_paper, at_laptop = (results(item, found, reduced)[1] for reduced in (False, True))
    assert at_paper.target == 0.70 and at_paper.rounds == 3
    assert at_laptop.target == pytest.approx(0.8 * 0.70 / 0.7716)
    rounds = catalogue.find("cyclesl", "table-4").only(["femnist"])
    reached = results(rounds, {cell.place: [outcome([0.4, 0.46])] for cell in rounds.cells}, reduced=True)
    assert reached[0].target == 0.45 and reached[0].rounds == 2


@pytest.mark.parametrize(
    "name", ["figure-1", "figure-3", "figure-4", "figure-5", "figure-7", "figure-9", "figure-10", "figure-11"]
)
def test_every_figure_is_drawn(name: str) -> None:
    item = catalogue.find("smofi", name)
    found: dict[Any, Any] = {cell.place: [outcome([0.1, 0.5, 0.4], seed) for seed in (0, 1)] for cell in item.cells}
    found[item.cells[-1].place] = "not trained"
    picture = draw(item, results(item, found, reduced=True))
    assert picture is not None and picture.startswith(b"\x89PNG")
    assert draw(item, results(item, dict.fromkeys(found, "not trained"), reduced=True)) is None


@pytest.mark.parametrize("name", ["figure-2", "figure-5", "figure-12", "figure-13"])
def test_every_figure_of_metrics_is_drawn(name: str) -> None:
    item = catalogue.find("cyclesl", name)
    found: dict[Any, Any] = {cell.place: [outcome([0.1, None, 0.4])] for cell in item.cells}
    picture = draw(item, results(item, found, reduced=True))
    assert picture is not None and picture.startswith(b"\x89PNG")


MEASURED = [item for items in catalogue.PAPERS.values() for item in items.values() if item.make]


@pytest.mark.parametrize("item", MEASURED, ids=[f"{item.paper}-{item.name}" for item in MEASURED])
def test_what_is_measured_without_data(item: Item, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUTLAYER_DATA", raising=False)
    made = make.measured(item, {}, "command")
    files = make.write(made, tmp_path / "x")
    assert {path.name for path in files} >= {"report.html", "table.md", "table.json"}
    text = (tmp_path / "x" / "table.md").read_text()
    assert ("no data" in text) == bool(item.data)


@pytest.mark.parametrize("name", ["table-9", "table-10", "table-11"])
def test_every_layer_has_the_papers_words_beside_it(name: str) -> None:
    made = make.measured(catalogue.find("cyclesl", name), {}, "command")
    pairs = [(row[0].ours, row[0].printed) for row in made.sections[0].rows]
    assert len(pairs) == len(printed.cells("cyclesl", name))
    for ours, theirs in pairs:
        assert ours[:4] == theirs[:4] and sorted(re.findall("[0-9]{2,}", theirs)) == [
            number for number in sorted(re.findall("[0-9]{2,}", ours)) if number in theirs
        ]


def test_a_plan_of_what_is_measured_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "cyclesl", "table-1", "--dry-run", "--out", str(tmp_path / "x")]) == 0
    assert "nothing is trained" in capsys.readouterr().out and not (tmp_path / "x").exists()


def test_costs_contradict_constant_computation() -> None:
    made = make.measured(catalogue.find("cyclesl", "table-1"), {}, "command")
    by_class: dict[str, list[float]] = {}
    for number in made.numbers:
        by_class.setdefault(number["class"], []).append(number["compute"])
    assert all(values == sorted(values) and values[-1] > values[0] for values in by_class.values())
    memory = [n["memory"] for n in made.numbers if n["class"] == "CycleSL"]
    assert max(memory) == min(memory)


def test_hyper_parameters_are_the_papers() -> None:
    made = make.measured(catalogue.find("cyclesl", "table-8"), {}, "command")
    for number in made.numbers:
        assert {k: number[k] for k in ("batch_size", "optimizer", "lr")} == {
            k: number["printed"][k] for k in ("batch_size", "optimizer", "lr")
        }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("reproduce smofi table-9", "unknown table or figure of smofi 'table-9'"),
        ("reproduce smofi table-1 --scale huge", "unknown scale 'huge'"),
        ("reproduce smofi table-1 --only nothing", "unknown row or column 'nothing'"),
        ("reproduce cyclesl table-8 --only femnist", "table-8 is one piece; expected no --only"),
        ("reproduce smofi --seeds 1", "--seeds: expected a paper and a table or figure before it"),
    ],
)
def test_what_cannot_be_reproduced(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err


def test_targets_without_a_reference_are_unknown() -> None:
    item = Item("smofi", "table-1", "x", "table", ("rounds",), small().cells[1:2], Target())
    (result,) = results(item, {item.cells[0].place: [outcome([0.5])]}, reduced=True)
    assert layout.entry("smofi", "rounds", result, {}).ours == "-"
