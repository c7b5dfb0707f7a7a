"""Scores against scikit-learn and by hand: pooled over clients, in three series, with the spread over clients."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.nn import functional

import cutlayer as cl
from cutlayer.engine import evaluate, metrics
from cutlayer.engine.metrics import Outputs, Scores, Series, Tally, auc, score

Rows = tuple[Tensor, Tensor]
SIZES = (9, 14, 0, 21, 8, 12, 8)  # rows each client is tested on: the third on none
SCORES = ("loss", "accuracy", "f1", "mcc", "auc", "metric")


def sklearn() -> Any:
    """scikit-learn's metrics, imported when they are needed, because that takes a while."""
    from sklearn import metrics

    return metrics


def series(parts: list[Outputs]) -> Series:
    """The scores over all parts together, one for each client, and their spread."""
    tally = Tally()
    for part in parts:
        tally.add(part)
    return metrics.series(tally, sum(len(part.y) > 0 for part in parts))


def guesses(rows: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Outputs that lean towards the truth."""
    torch.default_generator.manual_seed(seed)
    y = torch.randint(0, classes, (rows,))
    return torch.randn(rows, classes) + 1.2 * functional.one_hot(y, classes), y


def parts_of(out: Tensor, y: Tensor, sizes: Sequence[int]) -> list[Outputs]:
    pairs = zip(torch.split(out, list(sizes)), torch.split(y, list(sizes)), strict=True)
    return [Outputs(float(functional.cross_entropy(o, t, reduction="sum")), o, t) for o, t in pairs]


def one_against_rest(out: Tensor, y: Tensor) -> float:
    """The mean, over the classes that occur, of the area under each one's curve against all others."""
    p: NDArray[np.float64] = out.double().softmax(dim=1).numpy()
    areas = [sklearn().roc_auc_score((y == c).numpy(), p[:, c]) for c in range(out.shape[1]) if bool((y == c).any())]
    return float(np.mean(areas))


def expected(out: Tensor, y: Tensor) -> dict[str, float]:
    guess, truth = out.argmax(dim=1).numpy(), y.numpy()
    return {
        "loss": float(functional.cross_entropy(out.double(), y)),
        "accuracy": sklearn().accuracy_score(truth, guess),
        "f1": sklearn().f1_score(truth, guess, average="macro"),
        "mcc": sklearn().matthews_corrcoef(truth, guess),
        "auc": one_against_rest(out, y),
    }


# ---- Scores ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(60,), (1, 20, 39), (30, 0, 30)], ids=str)
def test_scores_are_those_of_scikit_learn_over_all_rows(sizes: tuple[int, ...]) -> None:
    out, y = guesses(60, 4)
    found = score(parts_of(out, y, sizes))
    for name, value in expected(out, y).items():
        assert getattr(found, name) == pytest.approx(value, abs=1e-6), name
    scikit = sklearn().roc_auc_score(y.numpy(), out.double().softmax(dim=1).numpy(), multi_class="ovr", average="macro")
    assert found.auc == pytest.approx(scikit, abs=1e-12)


def test_auc_with_two_classes_is_that_of_the_second() -> None:
    out, y = guesses(50, 2)
    p = out.double().softmax(dim=1).numpy()
    assert auc(out, y.numpy()) == pytest.approx(sklearn().roc_auc_score(y.numpy(), p[:, 1]), abs=1e-12)
    assert 0.6 < (auc(out, y.numpy()) or 0) < 0.99
    assert auc(out.flip(1), y.numpy()) == pytest.approx(1 - sklearn().roc_auc_score(y.numpy(), p[:, 1]), abs=1e-12)


@pytest.mark.parametrize("values", [[0.5], [0.1] * 4, [3.0, 1.0, 2.0, 1.0, 3.0, 3.0]], ids=len)
def test_equal_values_share_their_ranks(values: list[float]) -> None:
    """As SciPy ranks them."""
    assert metrics.ranks(np.array(values)).tolist() == rankdata(values).tolist()


def test_auc_leaves_out_classes_that_do_not_occur() -> None:
    """Scikit-learn's own mean is not defined then."""
    out, y = guesses(60, 5)
    there = (y != 2) & (y != 4)
    out, y = out[there], y[there]
    assert auc(out, y.numpy()) == pytest.approx(one_against_rest(out, y), abs=1e-12)
    p = out.double().softmax(dim=1).numpy()
    areas = [sklearn().roc_auc_score((y == c).numpy(), p[:, c]) for c in (0, 1, 3)]
    assert auc(out, y.numpy()) == pytest.approx(statistics.fmean(areas), abs=1e-12)


@pytest.mark.parametrize(
    ("out", "y"),
    [
        (torch.randn(6, 3), torch.ones(6, dtype=torch.int64)),  # one class only
        (torch.randn(6, 2), torch.zeros(6, dtype=torch.int64)),
        (torch.randn(6, 1), torch.zeros(6, dtype=torch.int64)),
        (torch.tensor([[0.0, torch.nan], [1.0, 0.0]]), torch.tensor([0, 1])),
        (torch.tensor([[0.0, torch.inf], [1.0, 0.0]]), torch.tensor([0, 1])),
    ],
    ids=["one-of-three", "one-of-two", "one-output", "nan", "infinite"],
)
def test_no_auc_where_there_is_none(out: Tensor, y: Tensor) -> None:
    assert auc(out, y.numpy()) is None


def test_other_labels_than_classes_have_a_loss_only() -> None:
    assert score([Outputs(3.0, torch.randn(6, 2), torch.randn(6, 2))]) == Scores(loss=0.5)
    assert score([]) == score([Outputs(0.0, torch.empty(0), torch.empty(0))]) == Scores()


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("clients", [1, 3, 10, 11, 25])
def test_the_spread_is_over_clients(clients: int) -> None:
    sizes = [5 + 3 * j % 11 for j in range(clients)]
    out, y = guesses(sum(sizes), 3, seed=clients)
    found = series(parts_of(out, y, sizes))
    assert (found["clients"], found["samples"]) == (clients, sum(sizes))
    hits = torch.split((out.argmax(dim=1) == y).double(), sizes)
    each = np.sort([float(hit.mean()) for hit in hits])
    tenth = -(-clients // 10)  # rounded up
    assert {1: 1, 3: 1, 10: 1, 11: 2, 25: 3}[clients] == tenth
    by_hand = {
        "client_mean": each.mean(),
        "client_std": each.std(),
        "client_median": np.median(each),
        "worst_tenth": each[:tenth].mean(),
        "best_tenth": each[-tenth:].mean(),
    }
    for name, value in {**by_hand, **expected(out, y)}.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name
    assert set(found) == {*by_hand, *SCORES, "clients", "samples"}


def test_clients_without_rows_do_not_count() -> None:
    out, y = guesses(20, 3)
    with_none = series(parts_of(out, y, (8, 0, 12)))
    assert with_none == series(parts_of(out, y, (8, 12))) and with_none["clients"] == 2
    assert series(parts_of(out[:0], y[:0], (0, 0))) == {**dict.fromkeys(SCORES), "clients": 0, "samples": 0}


# ---- A run that tests each client on its own rows ----------------------------------------------------------------


def model() -> nn.Sequential:
    torch.default_generator.manual_seed(4)
    return nn.Sequential(
        nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU()), nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 3))
    )


def rows(n: int, j: int, seed: int) -> Rows:
    generator = torch.Generator().manual_seed(100 * seed + j)
    y = torch.randint(0, 3, (n,), generator=generator)
    return torch.randn(n, 5, generator=generator) + functional.one_hot(y, 5) * (1 + j % 3), y


CLIENTS = [rows(12 + 2 * j, j, seed=1) for j in range(len(SIZES))]
TESTS = [rows(n, j, seed=2) for j, n in enumerate(SIZES)]


def by_hand(models: Sequence[nn.Module], group: Sequence[int]) -> dict[str, float]:
    """What a series says of these clients, each with its own model, computed at once over all their rows."""
    with torch.no_grad():
        outs = [copy.deepcopy(models[j]).eval()(TESTS[j][0]) for j in group if SIZES[j]]
    ys = [TESTS[j][1] for j in group if SIZES[j]]
    each = sorted(float((out.argmax(dim=1) == y).double().mean()) for out, y in zip(outs, ys, strict=True))
    spread = {
        "clients": len(each),
        "samples": sum(len(y) for y in ys),
        "client_mean": statistics.fmean(each),
        "client_std": statistics.pstdev(each),
        "client_median": statistics.median(each),
        "worst_tenth": each[0],
        "best_tenth": each[-1],
    }
    return {**expected(torch.cat(outs), torch.cat(ys)), **spread}


def begun(scheme: str, protocol: str = "cyclesl", **changes: Any) -> cl.Run:
    given: dict[str, Any] = {"rounds": 5, "participation": 2, "batch_size": 6, "local_steps": 3, "test": TESTS}
    return cl.rounds(model(), CLIENTS, scheme=scheme, protocol=protocol, **given | changes)


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("protocol", ["smofi", "cyclesl"])
@pytest.mark.parametrize("scheme", ["psl", "sglr", "cyclepsl", "cyclesglr", "fedavg", "ssl"])
def test_the_three_series(scheme: str, protocol: str) -> None:
    """A client that keeps its front is tested with it; all others with the one model there is."""
    run, ever, different = begun(scheme, protocol), set[int](), False
    for record in run:
        models = list(run.clients) or [run.model] * len(SIZES)
        ever |= set(record.clients)
        groups = {"sampled": sorted(record.clients), "ever": sorted(ever), "all": list(range(len(SIZES)))}
        assert set(record.series) == set(groups)
        for name, group in groups.items():
            found = record.series[name]
            for figure, value in by_hand(models, group).items():
                assert found[figure] == pytest.approx(value, abs=1e-6), (record.n, name, figure)
        assert all(getattr(record, name) == record.series["all"][name] for name in SCORES)
        different |= record.series["sampled"]["loss"] != record.series["ever"]["loss"]
    assert different and 2 < len(ever) < len(SIZES)


@pytest.mark.parametrize("scheme", ["psl", "smofi"])
@pytest.mark.parametrize(
    ("protocol", "every", "sampled", "due"),
    [
        ("smofi", 1, {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}),
        ("smofi", 2, {2, 4, 5}, {2, 4, 5}),
        ("smofi", 9, {5}, {5}),
        ("cyclesl", 1, {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}),
        ("cyclesl", 2, {1, 2, 3, 4, 5}, {2, 4, 5}),
        ("cyclesl", 9, {1, 2, 3, 4, 5}, {5}),
    ],
)
def test_when_it_is_tested(protocol: str, every: int, sampled: set[int], due: set[int], scheme: str) -> None:
    """The clients of a round are tested every round with cyclesl; everybody, when it is due and at the end."""
    records = list(begun(scheme, protocol, evaluate_every=every))
    assert {r.n for r in records if "sampled" in r.series} == sampled
    assert {r.n for r in records if "ever" in r.series} == {r.n for r in records if "all" in r.series} == due
    assert {r.n for r in records if r.accuracy is not None} == due
    often = list(begun(scheme, protocol))
    for rare, usual in zip(records, often, strict=True):  # looking changes nothing
        assert rare.train_loss == usual.train_loss
        assert all(usual.series[name] == found for name, found in rare.series.items())


@pytest.mark.parametrize("protocol", ["smofi", "cyclesl"])
@pytest.mark.parametrize("every", [1, 3])
def test_one_test_set_is_for_the_global_model(protocol: str, every: int) -> None:
    """Where clients keep their fronts: the server's half with the mean of them."""
    x, y = rows(40, 1, seed=3)
    run = begun("psl", protocol, test=(x, y), evaluate_every=every)
    for record in run:
        assert not record.series
        if record.n % every and record.n != 5:
            assert [getattr(record, name) for name in SCORES] == [None] * len(SCORES)
            continue
        with torch.no_grad():
            out = copy.deepcopy(run.model).eval()(x)
        for name, value in expected(out, y).items():
            assert getattr(record, name) == pytest.approx(value, abs=1e-6), name


def test_no_test_no_scores() -> None:
    for record in begun("psl", test=None):
        assert not record.series and [getattr(record, name) for name in SCORES] == [None] * len(SCORES)


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_a_round_in_which_only_an_untested_client_took_part() -> None:
    """Of it there is nothing to say, and that is what is said."""
    run = begun("psl", participation=1, rounds=4, seed=3)
    alone = [record for record in run if record.clients == (2,)]
    assert alone
    for record in alone:
        assert record.series["sampled"] == {**dict.fromkeys(SCORES), "clients": 0, "samples": 0}
        assert record.accuracy is not None


def test_tests_of_a_round_nobody_could_take_part_in() -> None:
    records = list(begun("psl", participation=1, rounds=8, batch_size=20, small_client="skip"))
    empty = [record for record in records if not record.clients]
    assert empty and all(record.series["sampled"]["clients"] == 0 for record in empty)
    assert all(record.series["all"]["clients"] == 6 for record in records)


def test_no_rows_to_test_on_at_all_are_refused() -> None:
    nothing = [(x[:0], y[:0]) for x, y in TESTS]
    with pytest.raises(cl.ContractError, match="test"):
        begun("psl", test=nothing)
    with pytest.raises(cl.ContractError, match="one per client"):
        begun("psl", test=TESTS[:3])


def test_large_test_sets_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows(50, 0, seed=5)
    whole = list(begun("fedavg", test=(x, y)))
    monkeypatch.setattr("cutlayer.engine.evaluate.BATCH", 7)
    parts = list(begun("fedavg", test=(x, y)))
    for name in SCORES:
        assert [getattr(r, name) for r in parts] == pytest.approx([getattr(r, name) for r in whole], abs=1e-6)


def test_one_label_alone_is_scored_without_a_warning() -> None:
    out, y = torch.tensor([[2.0, 1.0]] * 4), torch.zeros(4, dtype=torch.int64)
    found = series(parts_of(out, y, (4,)))
    assert found["mcc"] == 0.0 and found["accuracy"] == 1.0


class Overlap:
    """Intersection over union of the positive class, as a stream."""

    most = 0  # rows that it ever saw at once

    def __init__(self) -> None:
        self.both = self.either = 0

    def update(self, out: Tensor, y: Tensor) -> None:
        Overlap.most = max(Overlap.most, len(y))
        guess, truth = out.argmax(1) == 1, y == 1
        self.both += int((guess & truth).sum())
        self.either += int((guess | truth).sum())

    def compute(self) -> float:
        return self.both / max(self.either, 1)


def overlap(out: Tensor, y: Tensor) -> float:
    guess, truth = out.argmax(1) == 1, y == 1
    return int((guess & truth).sum()) / max(int((guess | truth).sum()), 1)


def test_a_metric_as_a_stream_is_that_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class, an object (which stays as it was), a function; in one test set, or one for each client."""
    monkeypatch.setattr(evaluate, "BATCH", 16)
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(100, 4, generator=g), torch.randint(0, 3, (100,), generator=g)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    mine = Overlap()
    for test in ((x, y), [(x[:30], y[:30]), (x[30:], y[30:])]):
        clients = [(x[:50], y[:50]), (x[50:], y[50:])]
        given: tuple[Any, ...] = (overlap, Overlap, mine)
        found = [
            cl.train(model, clients, test=test, metric=metric, rounds=2, batch_size=10).history for metric in given
        ]
        assert [r.metric for r in found[0]] == [r.metric for r in found[1]] == [r.metric for r in found[2]]
        assert found[0][-1].metric is not None and found[0][-1].metric > 0
    assert (mine.both, mine.either) == (0, 0) and Overlap.most == 70


def test_outputs_are_forgotten_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more outputs than are kept for the AUC, all other scores are the same."""
    monkeypatch.setattr(evaluate, "BATCH", 16)
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(100, 4, generator=g), torch.randint(0, 3, (100,), generator=g)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    whole = cl.train(model, [(x, y)], test=(x, y), rounds=1, batch_size=10).history[0]
    monkeypatch.setattr(metrics, "LARGEST", 500)
    kept: list[int] = []
    real = Tally.add

    def add(self: Tally, part: Outputs) -> None:
        real(self, part)
        kept.append(sum(len(one.y) for one in self._kept))

    monkeypatch.setattr(Tally, "add", add)
    less = cl.train(model, [(x, y)], test=(x, y), rounds=1, batch_size=10).history[0]
    assert less.auc is None and whole.auc is not None and max(kept) <= 500 // 12 and kept[-1] == 0
    assert (less.accuracy, less.loss, less.f1, less.mcc) == (whole.accuracy, whole.loss, whole.f1, whole.mcc)
