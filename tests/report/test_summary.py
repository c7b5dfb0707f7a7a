"""The numbers of a comparison, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from cutlayer.errors import ContractError
from cutlayer.report import curves, table
from cutlayer.report.measure import Measure
from cutlayer.report.paired import differences, interval
from cutlayer.report.summary import Trained, tabulate
from tests.report.made_up import outcome

FEDAVG = Trained("FedAvg", [outcome([0.1, 0.5, 0.4], 0), outcome([0.2, 0.3, 0.7], 1)])
FAST = Trained("fast", [outcome([0.6, 0.6, 0.2], 0), outcome([0.5, 0.8, 0.9], 1)])
PROX = Trained("FedProx", [outcome([0.1, 0.6, 0.1], 0), outcome([0.1, 0.1, 0.6], 1)])
BLOCK = Trained("FedProx + fast", [outcome([0.6, 0.1, 0.1], 0), outcome([0.6, 0.1, 0.1], 1)], "FedProx")


def test_scores_and_rounds_to_a_share_of_the_baselines_best() -> None:
    found = tabulate([FEDAVG, FAST])
    fedavg, fast = found.rows
    assert found.baseline == "FedAvg" and found.target == pytest.approx(0.9 * 0.6)
    assert (fedavg.best, fedavg.final, fedavg.last_ten) == pytest.approx((0.6, 0.55, (0.3333333 + 0.4) / 2))
    assert fedavg.rounds_to_target is None and fedavg.reached == 1 and fedavg.speedup is None  # 0.5 is not enough
    assert fast.rounds_to_target == 1.5 and fast.speedup is None and fast.time_to_target == 15.0
    assert (fast.best, fast.best_std) == pytest.approx((0.75, 0.15 * math.sqrt(2)))


def test_another_target_share_score_and_baseline() -> None:
    found = tabulate([FEDAVG, FAST], Measure("final", target=0.3))
    assert [row.rounds_to_target for row in found.rows] == [2.0, 1.0] and found.rows[1].speedup == 2.0
    assert [row.score for row in found.rows] == pytest.approx([0.55, 0.55])
    assert tabulate([FEDAVG, FAST], Measure(share=0.5)).target == pytest.approx(0.3)
    assert tabulate([FEDAVG, FAST], Measure(baseline="fast")).target == pytest.approx(0.9 * 0.75)
    assert tabulate([FEDAVG, FAST], Measure("last_ten")).rows[1].score == pytest.approx((1.4 / 3 + 2.2 / 3) / 2)


def test_a_block_has_a_baseline_of_its_own() -> None:
    """The target is FedAvg's, the rounds that are 1.00x are the block's."""
    found = tabulate([FEDAVG, FAST, PROX, BLOCK])
    rows = {row.label: row for row in found.rows}
    assert found.target == pytest.approx(0.54)
    assert rows["FedProx"].rounds_to_target == 2.5 and rows["FedProx + fast"].rounds_to_target == 1.0
    assert rows["FedProx + fast"].speedup == 2.5 and rows["FedProx + fast"].baseline == "FedProx"
    assert "FedProx in its block" in table.caption(found)
    all_against = tabulate([FEDAVG, FAST, PROX, BLOCK], Measure(baseline="fast", target=0.54)).rows[-1]
    assert all_against.baseline == "fast" and all_against.speedup == 1.5


def test_differences_are_paired_by_seed() -> None:
    """Students's t with 1, 2 and 4 degrees of freedom, from a printed table."""
    for n, t in ((2, 12.706), (3, 4.303), (5, 2.776)):
        values = [float(i) for i in range(n)]
        deviation = math.sqrt(sum((v - (n - 1) / 2) ** 2 for v in values) / (n - 1))
        found = interval(values)
        assert found is not None and found.mean == (n - 1) / 2
        assert found.half == pytest.approx(t * deviation / math.sqrt(n), rel=1e-3)
    assert interval([1.0]) is None
    steady = Trained("steady", [outcome([0.60, 0.6], 1), outcome([0.40, 0.4], 0)])  # in another order
    (one,) = differences(tabulate([FEDAVG, steady], Measure("best", target=0.3)))
    assert one.score.mean == pytest.approx(-0.1) and one.score.half == pytest.approx(0.0, abs=1e-9)
    assert one.score.excludes_zero and one.rounds is not None and one.rounds.mean == -1.0
    assert differences(tabulate([Trained("a", FEDAVG.outcomes[:1]), Trained("b", FAST.outcomes[:1])])) == []


def test_a_difference_of_rounds_needs_all_seeds_of_both() -> None:
    late = Trained("late", [outcome([0.1, 0.1], 0), outcome([0.1, 0.9], 1)])
    assert differences(tabulate([FEDAVG, late], Measure(target=0.3)))[0].rounds is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"score": "worst"}, "unknown score 'worst'"),
        ({"target": 70.0}, r"target = 70.0: expected an accuracy in \(0, 1\]"),
        ({"share": 0.0}, "share = 0.0"),
        ({"baseline": "nobody"}, "unknown baseline 'nobody'"),
    ],
)
def test_what_cannot_be_measured(given: dict[str, object], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        tabulate([FEDAVG], Measure(**given))  # type: ignore[arg-type]


def test_a_sweep_is_drawn_against_its_parameter() -> None:
    points = [Trained(f"alpha {a}", FAST.outcomes, at={"scheme.alpha": a}) for a in (-1.0, 0.0)]
    assert curves.swept(tabulate([FEDAVG, *points])) == "scheme.alpha"
    assert curves.draw_sweep(tabulate([FEDAVG, *points]), "scheme.alpha").startswith(b"\x89PNG")
    both = [Trained("x", [], at={"cut": 1.0, "lr": 0.1}), Trained("y", [], at={"cut": 2.0, "lr": 0.1})]
    assert curves.swept(tabulate([FEDAVG, *both])) is None
    assert curves.swept(tabulate([FEDAVG, FAST])) is None


def test_curves_of_other_quantities() -> None:
    found = tabulate([FEDAVG, FAST])
    assert curves.draw(found, ("loss", "f1", "mcc")).startswith(b"\x89PNG")
    with pytest.raises(ContractError, match="unknown curve 'los': did you mean 'loss'"):
        curves.draw(found, ("los",))
