"""The Python interface: what it accepts, what it refuses and how, what it records."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cutlayer as cl


def data(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def model() -> nn.Sequential:
    torch.default_generator.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


CLIENTS = [data(12, 1), data(20, 2), data(3, 3)]
FAST: dict[str, Any] = {"rounds": 2, "batch_size": 4, "local_epochs": 1}


def refused(match: str, **changes: Any) -> None:
    arguments = {"model": model(), "clients": CLIENTS, "test": data(9), **FAST, **changes}
    with pytest.raises(cl.ContractError, match=match):
        cl.rounds(arguments.pop("model"), arguments.pop("clients"), arguments.pop("test"), **arguments)


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("unknown scheme 'smofy': did you mean 'smofi'", {"scheme": "smofy"}),
        ("unknown update 'fedavgmm': did you mean 'fedavgm'", {"update": "fedavgmm"}),
        ("unknown optimizer 'sdg': did you mean 'sgd'", {"optimizer": "sdg"}),
        ("cut = 2: expected block indices from 0 to 1", {"cut": 2}),
        ("cut = -1", {"cut": -1}),
        ("cut = True", {"cut": True}),
        (r"cut = \(1, 0\)", {"cut": (1, 0)}),
        ("batch_size = 50: the largest client has 20 samples", {"batch_size": 50}),
        ("batch_size = 0", {"batch_size": 0}),
        ("rounds = -3", {"rounds": -3}),
        ("rounds = 2.5", {"rounds": 2.5}),
        ("local_epochs = 0", {"local_epochs": 0}),
        ("local_steps = 0", {"local_steps": 0}),
        ("participation = 0:", {"participation": 0}),
        ("participation = 0.0", {"participation": 0.0}),
        ("participation = 1.5", {"participation": 1.5}),
        ("participation = 4", {"participation": 4}),
        ("participation = nan", {"participation": float("nan")}),
        ("evaluate_every = 0", {"evaluate_every": 0}),
        ("last_batch = 'dorp'", {"last_batch": "dorp"}),
        ("small_client = 'no'", {"small_client": "no"}),
        ("target = 2", {"target": 2}),
        ("seed = 'a'", {"seed": "a"}),
        ("clients = ", {"clients": []}),
        ("unknown protocol 'cycle': did you mean 'cyclesl'", {"protocol": "cycle"}),
        ("unknown labels 'stays': did you mean 'stay'", {"labels": "stays"}),
        ("unknown backend 'stackd': did you mean 'stacked'", {"backend": "stackd"}),
        ("unknown local 'fedproxy': did you mean 'fedprox'", {"local": "fedproxy"}),
        ("test = '2 of them': expected one set, or 3, one per client", {"test": [data(9), data(9)]}),
        ("keeps the server's momentum between rounds", {"cut": (0, 1), "scheme": cl.SFLV2(reset="never")}),
        ("lengths of x and y", {"clients": [(torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64))]}),
        ("expected .x, y. tensors", {"clients": [3]}),
        (
            r"do not accept inputs of shape \(5,\)",
            {"clients": [(torch.zeros(8, 5), torch.zeros(8, dtype=torch.int64))]},
        ),
        ("expected an nn.Sequential", {"model": nn.Linear(4, 3)}),
        ("at least 2 blocks", {"model": nn.Sequential(nn.Linear(4, 3))}),
        ("at least one trainable parameter", {"model": nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Softmax(1))}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_arguments_are_refused_by_name_and_value(match: str, changes: dict[str, Any]) -> None:
    refused(match, **changes)


@pytest.mark.parametrize("alpha", [1e-9, 0.1, float("nan"), float("-inf"), "x"])
def test_alpha_is_not_positive(alpha: Any) -> None:
    with pytest.raises(cl.ContractError, match="alpha"):
        cl.SMoFi(alpha=alpha)


def test_nan_in_the_data_is_named() -> None:
    x, y = data(12)
    x[5, 2] = float("nan")
    refused(r"clients\[1\]: row 5 holds NaN", clients=[data(12), (x, y)])
    refused("test: row 5 holds NaN", test=(x, y))


def test_labels_outside_the_classes_are_named() -> None:
    x, y = data(12)
    y[3] = 3
    refused(r"clients\[0\]: labels = '1..3': expected 0..2", clients=[(x, y)])
    y[3] = -1
    refused(r"labels = '-1..2'", test=(x, y))


def test_weights_that_are_not_finite_are_refused() -> None:
    broken = model()
    with torch.no_grad():
        broken[0].weight[0, 0] = float("nan")
    refused("finite weights", model=broken)


class Squares:
    """A map-style dataset."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return self.x[row], int(self.y[row])


def weights(result: cl.Result) -> dict[str, torch.Tensor]:
    return dict(result.model.state_dict())


def same(a: cl.Result, b: cl.Result) -> bool:
    return all(torch.equal(weights(a)[k], weights(b)[k]) for k in weights(a))


def test_a_dataset_is_as_good_as_tensors() -> None:
    tensors = cl.train(model(), CLIENTS, test=data(9), **FAST)
    items = cl.train(model(), [Squares(*pair) for pair in CLIENTS], test=Squares(*data(9)), **FAST)
    wrapped = cl.train(model(), [torch.utils.data.TensorDataset(*pair) for pair in CLIENTS], **FAST)
    assert same(tensors, items)
    assert same(tensors, wrapped)
    assert [r.accuracy for r in tensors.history] == [r.accuracy for r in items.history]


def test_bad_rows_of_a_dataset_are_named_where_they_turn_up() -> None:
    x, y = data(12)
    with pytest.raises(cl.ContractError, match=r"clients\[0\]: labels"):
        cl.train(model(), [Squares(x, y + 2)], **FAST)
    with pytest.raises(cl.ContractError, match=r"clients\[0\], one of rows"):
        cl.train(model(), [Squares(x / 0, y)], **FAST)


def test_the_record_of_a_round() -> None:
    record = cl.train(model(), CLIENTS, test=data(9), cut=1, **FAST).history[0]
    assert (record.n, record.participants, record.skipped, record.lost) == (1, 2, 1, 0)
    assert (record.steps, record.samples, record.clients) == (3 + 5, 12 + 20, (0, 1))
    front = 4 * (4 * 6 + 6)  # bytes of the client's weights
    smashed = 4 * 32 * 6
    assert record.bytes_down == 2 * front + smashed
    assert record.bytes_up == 2 * front + smashed + 8 * 32  # and the labels
    assert record.macs_client == 3 * 32 * 4 * 6
    assert record.macs_server == 3 * 32 * 6 * 3
    assert 0 <= record.accuracy <= 1 and record.loss > 0 and record.seconds > 0 and record.train_loss > 0
    assert record.drift_client > 0 and record.drift_server > 0


def test_scores_equal_those_computed_by_hand() -> None:
    x, y = data(40, 9)
    result = cl.train(model(), CLIENTS, test=(x, y), **FAST)
    out = result.model(x).detach()
    last = result.history[-1]
    assert last.accuracy == pytest.approx(float((out.argmax(1) == y).double().mean()))
    assert last.loss == pytest.approx(float(nn.functional.cross_entropy(out, y)), rel=1e-5)
    f1 = []
    for c in range(3):
        hit = int(((out.argmax(1) == c) & (y == c)).sum())
        f1.append(2 * hit / max(1, int((out.argmax(1) == c).sum()) + int((y == c).sum())))
    assert last.f1 == pytest.approx(sum(f1) / 3)


def test_test_sets_per_client_are_pooled_and_none_means_no_score() -> None:
    x, y = data(40, 9)
    pooled = cl.train(model(), CLIENTS, test=[(x[:10], y[:10]), (x[10:], y[10:]), (x[:0], y[:0])], **FAST).history
    whole = cl.train(model(), CLIENTS, test=(x, y), **FAST).history
    assert [r.accuracy for r in pooled] == [r.accuracy for r in whole]
    assert all(r.accuracy is None for r in cl.train(model(), CLIENTS, **FAST).history)


def test_evaluation_every_few_rounds_and_at_the_end() -> None:
    history = cl.train(model(), CLIENTS, test=data(9), **{**FAST, "rounds": 5}, evaluate_every=2).history
    assert [r.accuracy is not None for r in history] == [False, True, False, True, True]


def test_a_target_ends_the_run() -> None:
    assert len(cl.train(model(), CLIENTS, test=data(9), **{**FAST, "rounds": 9}, target=0.01).history) == 1


def test_a_round_without_a_full_batch_changes_nothing() -> None:
    run = cl.rounds(model(), [data(3), data(12)], rounds=30, batch_size=4, local_epochs=1, participation=1)
    empty = [r for r in run if r.participants == 0]
    assert empty and all(r.skipped == 1 and r.steps == 0 and r.train_loss is None for r in empty)


def test_regression_has_a_loss_and_no_accuracy() -> None:
    x = torch.randn(30, 4)
    pairs = [(x[:12], x[:12, :1]), (x[12:], x[12:, :1])]
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    history = cl.train(net, pairs, test=(x, x[:, :1]), loss=nn.functional.mse_loss, **{**FAST, "rounds": 8}).history
    assert history[-1].accuracy is None
    assert history[-1].loss < history[0].loss


def test_divergence_names_round_client_and_rate() -> None:
    with pytest.raises(cl.Diverged, match=r"round 1: the loss of client \d became (nan|inf).*learning rate 1e\+30"):
        cl.train(model(), CLIENTS, optimizer=cl.SGD(lr=1e30), **{**FAST, "local_epochs": 3})


def test_a_front_without_parameters_works() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Linear(6, 3))
    assert cl.train(net, CLIENTS, cut=0, **FAST).history[-1].drift_server > 0


def test_weights_that_are_huge_but_finite_can_be_journaled() -> None:
    """Their squares overflow float32; the distances and mean losses in the record must not."""
    huge = model()
    with torch.no_grad():
        for w in huge.parameters():
            w.mul_(1e30)
    tame = {"optimizer": cl.SGD(lr=1e28, momentum=0.0, weight_decay=0.0), "loss": lambda out, y: out.mean() * 1e-2}
    record = cl.train(huge, CLIENTS, **tame, **FAST).history[0]
    assert math.isfinite(record.drift_client + record.drift_server + record.train_loss)
    assert record.drift_server > 1e20


X, Y = data(12)


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("scheme = <class", {"scheme": cl.SMoFi}),
        ("scheme = 3", {"scheme": 3}),
        ("optimizer = 0.1", {"optimizer": 0.1}),
        ("update = 0.3", {"update": 0.3}),
        ("update = <class", {"update": cl.FedAvgM}),
        ("clients = Tensor", {"clients": X}),
        ("clients = NoneType", {"clients": None}),
        ("clients = DataLoader", {"clients": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y))}),
        (r"labels of shape \(1,\)", {"clients": [(X, Y[:, None])]}),
        (r"test: model and loss do not accept inputs of shape \(5,\)", {"test": (torch.zeros(4, 5), Y[:4])}),
        (r"clients\[1\]: model and loss do not accept", {"clients": [(X, Y), (torch.zeros(4, 5), Y[:4])]}),
        ("loss = tensor", {"loss": nn.CrossEntropyLoss(reduction="none")}),
        ("do not accept", {"loss": nn.CrossEntropyLoss}),
        (r"clients\[0\]: labels", {"clients": [(X, Y + 1)], "loss": nn.CrossEntropyLoss()}),
        ("target = 0.5: expected a test set", {"target": 0.5, "test": None}),
        ("test = 'no rows'", {"test": (X[:0], Y[:0])}),
        ("device = 'meta'", {"device": "meta"}),
        ("device = 'None'", {"device": None}),
        ("Expected more than 1 value", {"model": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "batch_size": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_said_before_training(match: str, changes: dict[str, Any]) -> None:
    refused(match, **changes)


def test_an_optimizer_of_torch_is_refused() -> None:
    refused("optimizer = SGD", optimizer=torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))


def test_arrays_lists_and_odd_integers_are_taken_as_they_come() -> None:
    plain = cl.train(model(), CLIENTS, test=data(9), **FAST)
    arrays = [(x.numpy(), y.numpy().astype("uint8")) for x, y in CLIENTS]
    assert same(plain, cl.train(model(), arrays, test=[t.numpy() for t in data(9)], **FAST))
    lists = [(x, y.tolist()) for x, y in CLIENTS]
    assert same(plain, cl.train(model(), lists, **{**FAST, "batch_size": np.int64(4)}, cut=np.int64(0)))


def test_blocks_in_a_plain_list_are_refused() -> None:
    class Loose(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [nn.Linear(4, 6), nn.Linear(6, 3)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks[1](self.blocks[0](x))

    refused(r"nn.ModuleList", model=Loose())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_half_without_parameters_keeps_the_models_dtype(dtype: torch.dtype, cut: int) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Softmax(1)).to(dtype)
    result = cl.train(net, CLIENTS, test=data(9), cut=cut, optimizer=cl.SGD(lr=1e-3), **FAST)
    assert {t.dtype for t in result.model.state_dict().values()} == {dtype, torch.int64}


def test_averaging_identical_clients_in_half_precision_changes_nothing() -> None:
    """A hundred equal clients that hardly learn: rounding must not shrink the weights."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).to(torch.bfloat16)
    still = cl.SGD(lr=1e-30, momentum=0.0, weight_decay=0.0)
    trained = cl.train(net, [data(4)] * 100, optimizer=still, rounds=5, batch_size=4, local_epochs=1).model
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), net.parameters(), strict=True))


def test_a_recurrent_block_that_gives_a_tuple_works_behind_the_cut() -> None:
    class Last(nn.Module):
        def forward(self, out: tuple[torch.Tensor, Any]) -> torch.Tensor:
            return out[0][:, -1]

    x, y = torch.randint(0, 9, (20, 6)), torch.arange(20) % 3
    net = nn.Sequential(nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True), Last(), nn.Linear(5, 3))
    assert cl.train(net, [(x, y)], cut=0, **FAST).history[-1].macs_server > 0
    with pytest.raises(cl.ContractError, match="block 1 gives tuple"):
        cl.train(net, [(x, y)], cut=1, **FAST)


def test_train_and_rounds_take_the_same_arguments() -> None:
    ours, theirs = (inspect.signature(f).parameters for f in (cl.train, cl.rounds))
    assert ours == theirs
    assert list(ours)[:4] == ["model", "clients", "test", "cut"]
    assert ours["optimizer"].default == cl.SGD(lr=0.05, momentum=0.9, weight_decay=5e-4, decay=1.0)


def test_what_the_caller_does_to_the_model_between_rounds_does_not_matter() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    for p in net[1].parameters():
        p.requires_grad = False
    expected = cl.train(net, CLIENTS, cut=(0, 1), **{**FAST, "rounds": 6})
    run = cl.rounds(net, CLIENTS, cut=(0, 1), **{**FAST, "rounds": 6})
    for _ in run:
        with torch.no_grad():
            for p in net.parameters():
                p.fill_(7.0)
    assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), expected.model.parameters(), strict=True))


def test_a_mask_is_no_list_of_indices() -> None:
    w = torch.zeros(2, requires_grad=True)
    with pytest.raises(cl.ContractError, match="not a mask"):
        cl.MomentumFusion([torch.optim.SGD([w], lr=0.1, momentum=0.9)]).step([True])
