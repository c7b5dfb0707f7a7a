"""Every table and figure: its cells are trainings at every scale, and runs are shared."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer.errors import ContractError
from cutlayer.experiment import config as text
from cutlayer.reproduce import estimate, sizes
from cutlayer.reproduce.catalogue import PAPERS, find, papers
from cutlayer.reproduce.item import Item
from cutlayer.reproduce.runs import Runs, key
from cutlayer.reproduce.scales import SCALES, differences, reductions, scaled, seeds

ALL = [item for items in PAPERS.values() for item in items.values()]


def test_everything_with_numbers_is_there() -> None:
    """All but the drawings (SMoFi F2, CycleSL F1), the list of symbols (T6) and the authors' machine (T7)."""
    smofi = {*(f"table-{n}" for n in range(1, 6)), "figure-1", *(f"figure-{n}" for n in range(3, 12))}
    cyclesl = {f"table-{n}" for n in (1, 2, 3, 4, 5, 6, 8, 9, 10, 11)} | {f"figure-{n}" for n in range(2, 14)}
    assert set(PAPERS["smofi"]) == smofi and set(PAPERS["cyclesl"]) == cyclesl
    assert all(bool(item.cells) != bool(item.make) for item in ALL)


@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_is_a_config(scale: str) -> None:
    different = {key(scaled(cell.values, scale)): scaled(cell.values, scale) for item in ALL for cell in item.cells}
    for values in different.values():
        config = text.parse(values)
        assert config.rounds == values["rounds"]


def test_places_are_different() -> None:
    for item in ALL:
        assert max(Counter(cell.place for cell in item.cells).values(), default=1) == 1, item.name


def test_items_that_need_the_same_run_share_it() -> None:
    def keys(paper: str, name: str) -> set[str]:
        return {key(scaled(cell.values, "laptop")) for cell in find(paper, name).cells}

    table_1 = keys("smofi", "table-1")
    assert keys("smofi", "figure-7") == table_1
    assert len(keys("smofi", "table-2") - table_1) == 3 * 5  # FedAvg and SMoFi are there; SFLV2 is timed twice
    assert len(table_1 & keys("smofi", "figure-3")) == 2  # FedAvg, and SMoFi at alpha -0.1 and cut 2
    assert len(keys("smofi", "figure-3")) == 1 + 4 + 9 - 1
    assert len(keys("smofi", "figure-11") - table_1) == 3  # FedAvgM is SMoFi without alignment
    assert len(table_1 & keys("smofi", "figure-10")) == 9
    assert keys("cyclesl", "table-4") == keys("cyclesl", "table-3") == keys("cyclesl", "figure-2")
    assert len(keys("cyclesl", "table-5") & keys("cyclesl", "table-3")) == 4  # cut 3 is the preset's


def test_a_scale_says_what_it_reduces() -> None:
    values = find("smofi", "table-1").cells[2].values  # SlowMo, which takes a fixed number of steps
    assert list(differences(values, "paper")) == []
    assert list(differences(values, "workstation")) == ["rounds 250 (paper: 1000)"]
    said = ", ".join(differences(values, "laptop"))
    for words in (
        "model.width 8 (paper: 64)",
        "rounds 30 (paper: 1000)",
        "batch_size 16 (paper: 32)",
        "local_steps 29 (paper: 75)",
    ):
        assert words in said
    table = find("smofi", "table-4")
    clients = [scaled(cell.values, "laptop")["participation"] for cell in table.cells[::5]]
    assert clients == [3, 5, 8] and any(
        "participation 3" in line for line in reductions([c.values for c in table.cells], "laptop")
    )
    assert seeds("smofi", "paper") == (0, 1, 2) and seeds("cyclesl", "paper") == (0, 1, 2, 3, 4)
    assert seeds("smofi", "laptop") == (0,)
    with pytest.raises(ContractError, match="unknown scale 'lap'"):
        scaled(values, "lap")


def shown(item: Item) -> list[tuple[str, str, str]]:
    return [(cell.panel, cell.block, cell.row) for cell in item.cells if not cell.hidden]


def test_only_picks_rows_and_columns() -> None:
    table = find("smofi", "table-1")
    one = table.only(["cifar-10", "fedprox"])
    assert {panel for panel, *_ in shown(one)} == {"CIFAR-10/Dir100(0.2)"}
    assert [row for _, _, row in shown(one)] == ["FedProx", "+ FedAvgM", "+ SlowMo", "+ FedNAG", "+ SMoFi"]
    assert [cell.row for cell in one.cells if cell.hidden] == ["FedAvg"]  # the target is measured by it
    alone = table.only(["cifar-10", "fedprox/smofi"])
    assert [cell.row for cell in alone.cells if cell.hidden] == ["FedAvg", "FedProx"]  # and the block's baseline
    rows = table.only(["smofi", "fedavg/fedavg"])
    assert len(shown(rows)) == 3 * 4 and {row for *_, row in shown(rows)} == {"+ SMoFi", "FedAvg"}
    assert table.only(["CIFAR-10"]).panels == ["CIFAR-10/Dir100(0.2)"]
    with pytest.raises(ContractError, match="unknown row or column 'fedprx': did you mean 'FedProx'"):
        table.only(["fedprx"])


@pytest.mark.parametrize("name", ["table-1", "Table 1", "t1", "TABLE_1"])
def test_names_of_an_item(name: str) -> None:
    assert find("smofi", name).name == "table-1"


def test_names_of_none() -> None:
    with pytest.raises(ContractError, match="unknown table or figure of smofi 'table-6'"):
        find("smofi", "table-6")
    with pytest.raises(ContractError, match="unknown paper 'smof': did you mean 'smofi'"):
        papers("smof")


def test_the_counted_work_of_models_is_theirs() -> None:
    """Those that are quick to count; the file has them all."""
    for model, task in (
        ({"name": "resnet18", "width": 8}, "cifar10"),
        ({"name": "leaf_cnn", "hidden": 256, "width": 16}, "femnist"),
        ({"name": "leaf_lstm", "hidden": 64}, "shakespeare"),
        ({"name": "transformer", "width": 32, "heads": 2, "hidden": 64}, "shakespeare"),
        ({"name": "resnet18"}, "cifar100"),
    ):
        assert sizes.size(model, task) == sizes.count(model, task)
    for item in ALL:
        for cell in item.cells:
            values = scaled(cell.values, "laptop")
            name = sizes.name_of(values["model"], values["task"])
            assert name in sizes._known(), f"{name} is not in sizes.json"


def test_samples_of_a_run() -> None:
    cifar, slow = (find("smofi", "table-1").cells[k].values for k in (0, 2))
    assert estimate.work(cifar).samples == 1000 * 20 * 5 * 500
    assert estimate.work(slow).samples == 1000 * 20 * 75 * 32
    femnist = find("cyclesl", "table-3").cells[0].values
    assert estimate.work(femnist).samples == 600 * round(0.05 * 3550) * 32
    assert estimate.work(cifar).steps == 1000 * 20 * 5 * round(500 / 32)
    assert estimate.work(cifar).evaluated == 1000 * 10_000
    assert estimate.work(slow).steps == 1000 * 20 * 75


def test_the_time_of_a_run_counts_its_samples_and_its_steps() -> None:
    values = scaled(find("smofi", "table-1").cells[0].values, "laptop")
    macs, layers, numbers, draws = sizes.size(values["model"], "cifar10")
    samples, steps, tested = 30 * 20 * 5 * 100, 30 * 20 * 5 * round(100 / 16), 30 * 10_000
    by_hand = macs * (3 * samples + tested) / 1e9 + steps * layers * 1e-4 + numbers * (samples + tested / 3) * 1e-8
    assert estimate.seconds(values, estimate.Machine(1e9, 1e-4, 1e-8, 1e-7)) == pytest.approx(by_hand)
    assert draws == 0


def test_numbers_that_are_written_and_drawn_are_counted() -> None:
    """A product writes its output, and the gradient of its weights, which does not grow with the rows. Dropout draws a
    mask, divides it and multiplies by it, and again in the backward pass."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 5, bias=False), torch.nn.Dropout(0.5))
    macs, layers, numbers, draws = sizes.counted(model, torch.ones(2, 3))
    assert (macs, layers, draws) == (15, 2, 5)
    assert numbers >= 5 * 5
    dry = sizes.counted(torch.nn.Sequential(model[0]), torch.ones(2, 3))
    assert (dry.numbers, dry.draws) == (5, 0)


def test_tasks_without_data_are_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUTLAYER_DATA", raising=False)
    item = find("cyclesl", "table-3")
    runs = Runs(item, "laptop", [0], tmp_path, {"data_dir": str(tmp_path)})
    assert runs.without_data == item.tasks and runs.jobs() == []
    found: Any = runs.found()
    assert set(found.values()) == {"no data"}
