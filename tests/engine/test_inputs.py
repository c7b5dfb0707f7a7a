"""Losses and metrics of the caller's; integer inputs and inputs by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cutlayer as cl
from cutlayer.errors import ContractError

SETTINGS = {"rounds": 3, "batch_size": 5, "local_epochs": 2, "seed": 1}


class Both(nn.Module):
    """A first block that takes two inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.numbers = nn.Embedding(7, 3), nn.Linear(2, 3)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return self.words(x["words"]).mean(dim=1) + self.numbers(x["numbers"])


def two_inputs(n: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = {"words": torch.randint(0, 7, (n, 4), generator=g), "numbers": torch.randn(n, 2, generator=g)}
    return x, torch.randint(0, 3, (n,), generator=g)


class Samples:
    """The same rows one by one."""

    def __init__(self, x: dict[str, Tensor], y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[dict[str, Tensor], Tensor]:
        return {name: t[row] for name, t in self.x.items()}, self.y[row]


def model() -> nn.Sequential:
    torch.default_generator.manual_seed(0)
    return nn.Sequential(Both(), nn.ReLU(), nn.Linear(3, 3))


@pytest.mark.parametrize("scheme", ["smofi", "cyclesfl", "mergesfl"])
def test_inputs_by_name_train_and_are_tested(scheme: str) -> None:
    clients = [two_inputs(20, seed) for seed in range(3)]
    result = cl.train(model(), clients, test=two_inputs(12, 9), cut=0, scheme=scheme, **SETTINGS)
    again = cl.train(
        model(), [Samples(*c) for c in clients], test=Samples(*two_inputs(12, 9)), cut=0, scheme=scheme, **SETTINGS
    )
    assert result.history[-1].accuracy is not None and result.history[-1].macs_client > 0
    for one, other in zip(result.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert any(not torch.equal(a, b) for a, b in zip(result.model.parameters(), model().parameters(), strict=True))


def test_inputs_by_name_equal_a_plain_loop() -> None:
    """One client, one round, plain SGD: what a loop over the same batches gives."""
    x, y = two_inputs(20, 0)
    optimizer = cl.SGD(lr=0.1, momentum=0.0, weight_decay=0.0)
    result = cl.train(
        model(),
        [(x, y)],
        cut=0,
        scheme="fedavg",
        optimizer=optimizer,
        rounds=1,
        batch_size=5,
        local_epochs=1,
        shuffle=False,
    )
    plain = model()
    for k in range(0, 20, 5):
        loss = functional.cross_entropy(plain({name: t[k : k + 5] for name, t in x.items()}), y[k : k + 5])
        grads = torch.autograd.grad(loss, list(plain.parameters()))
        with torch.no_grad():
            for p, g in zip(plain.parameters(), grads, strict=True):
                p -= 0.1 * g
    for one, other in zip(result.model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_what_does_not_fit_is_said() -> None:
    x, y = two_inputs(20, 0)
    with pytest.raises(ContractError, match="lengths of x and y"):
        cl.train(model(), [({**x, "numbers": x["numbers"][:5]}, y)], cut=0, **SETTINGS)
    with pytest.raises(ContractError, match=r"inputs of shape \{words: \(4,\)\}"):
        cl.train(model(), [({"words": x["words"]}, y)], cut=0, **SETTINGS)
    bad = {**x, "numbers": x["numbers"].clone()}
    bad["numbers"][3, 0] = np.nan
    with pytest.raises(ContractError, match="row 3 holds NaN"):
        cl.train(model(), [(bad, y)], cut=0, **SETTINGS)


def regression(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=g)
    return x, x @ torch.tensor([[1.0], [-2.0], [0.5], [0.0]]) + 0.1


@pytest.mark.parametrize("scheme", ["smofi", "sflv2", "cyclesfl"])
def test_regression_with_a_metric_of_the_callers(scheme: str) -> None:
    torch.default_generator.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    test = regression(40, 9)

    def worst(out: Tensor, y: Tensor) -> Tensor:
        return (out - y).abs().max()

    result = cl.train(
        net,
        [regression(20, s) for s in range(3)],
        test=test,
        cut=1,
        scheme=scheme,
        loss=nn.MSELoss(),
        metric=worst,
        **{**SETTINGS, "rounds": 10},
    )
    last = result.history[-1]
    with torch.no_grad():
        out = result.model.eval()(test[0])
    assert last.metric == pytest.approx(float(worst(out, test[1])), abs=1e-5)
    assert last.loss == pytest.approx(float(functional.mse_loss(out, test[1])), abs=1e-5)
    assert last.accuracy is None and last.f1 is None
    assert result.history[0].loss is not None and last.loss < result.history[0].loss


def test_a_metric_beside_accuracy_and_by_client() -> None:
    torch.default_generator.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    clients = [(x, (y[:, 0] > 0).long()) for x, y in (regression(20, s) for s in range(3))]

    def wrong(out: Tensor, y: Tensor) -> float:
        return float((out.argmax(dim=1) != y).sum())

    one = cl.train(net, clients, test=clients[0], metric=wrong, cut=0, **SETTINGS).history[-1]
    assert one.accuracy is not None and one.metric == pytest.approx(20 * (1 - one.accuracy))
    each = cl.train(net, clients, test=list(clients), metric=wrong, cut=0, **SETTINGS).history[-1]
    assert each.series["all"]["metric"] == each.metric
