"""Gaussian noise on the smashed data: how much there is, where it comes from, and what it leaves alone."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cutlayer as cl
from cutlayer.clients.client import Client, Seat
from cutlayer.clients.messages import Address, CutGrad, Plan, Report, Smashed
from cutlayer.data.schedule import BatchSchedule
from cutlayer.data.source import source
from cutlayer.nn.flat import Rows, half
from cutlayer.optim.memory import Memory
from cutlayer.registry import SCHEMES

CPU = torch.device("cpu")
FAST: dict[str, Any] = {"rounds": 2, "batch_size": 5, "local_steps": 2}


def model(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(8)
    return nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.ReLU()), nn.Linear(6, 3)).to(dtype)


def data(rows: int = 20, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (rows,), generator=generator)


class Alone:
    """One client in its seat."""

    def __init__(
        self, net: nn.Module, rows: tuple[Tensor, Tensor], noise: float, n: int = 1, j: int = 0, seed: int = 0
    ) -> None:
        front = half(net, range(1), CPU)
        seats, optimizer = Rows(front, 1), cl.SGD(lr=0.1, momentum=0.9, weight_decay=0.0)
        schedule = BatchSchedule(batch_size=len(rows[0]), epochs=3, shuffle=False, seed=seed)
        seat = Seat(seats, Memory(optimizer, seats.w), 0)
        self.client = Client(j, source(rows, front.dtypes[0], "rows"), seat)
        plan = Plan(Address(n, j, -1), 0, front.read(), schedule, optimizer, 0.1, noise=noise)
        self.client.handle(plan)

    def forward(self) -> Smashed:
        return self.client.forward()

    def step(self, s: Smashed, grad: Tensor) -> None:
        self.client.backward(CutGrad(s.address, grad, torch.tensor(0.0)))

    def close(self) -> Report:
        return self.client.close()


def noise_of(net: nn.Module, rows: tuple[Tensor, Tensor], noise: float, steps: int = 0, **place: int) -> Tensor:
    """What is added at a step, over all rows of a client; the steps before it change no weight."""
    both = [Alone(net, rows, level, **place) for level in (noise, 0.0)]
    for _ in range(steps):
        for alone in both:
            s = alone.forward()
            alone.step(s, torch.zeros_like(s.a))
    noisy, clean = (alone.forward().a for alone in both)
    return noisy - clean


class Same(nn.Module):
    """A front that sends its inputs as they are."""

    def forward(self, x: Tensor) -> Tensor:
        return x


# ---- How much ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.03, 0.5, 2.0])
@pytest.mark.parametrize("shape", [(64,), (4, 4, 4)], ids=["flat", "images"])
def test_its_norm_is_relative_to_that_of_each_sample(noise: float, shape: tuple[int, ...]) -> None:
    """Samples whose sizes range over six orders of magnitude: the ratio of norms is the same for all of them."""
    n, d = 600, math.prod(shape)
    torch.manual_seed(0)
    x = torch.randn(n, *shape, dtype=torch.float64) + 1
    x *= torch.logspace(-3, 3, n, dtype=torch.float64).reshape(-1, *[1] * len(shape))
    net = nn.Sequential(Same(), nn.Sequential(nn.Flatten(), nn.Linear(d, 3))).double()
    z = noise_of(net, (x, torch.zeros(n, dtype=torch.int64)), noise).flatten(1)
    ratio = (z.square().sum(dim=1) / x.flatten(1).square().sum(dim=1)).sqrt() / noise
    spread = math.sqrt(2 / d)  # of the squared ratio, from sample to sample
    assert float(ratio.square().mean()) == pytest.approx(1, abs=4 * spread / math.sqrt(n))
    assert float(ratio.square().std()) == pytest.approx(spread, rel=0.2)
    small, large = ratio[: n // 2].square().mean(), ratio[n // 2 :].square().mean()
    assert float(small - large) == pytest.approx(0, abs=4 * spread * math.sqrt(4 / n))


def test_it_is_gaussian_independent_and_centred() -> None:
    n, d = 500, 60
    x = torch.ones(n, d, dtype=torch.float64)
    net = nn.Sequential(Same(), nn.Linear(d, 3)).double()
    z = noise_of(net, (x, torch.zeros(n, dtype=torch.int64)), 1.0)
    error = 1 / math.sqrt(n * d)
    assert abs(float(z.mean())) < 4 * error
    assert float(z.square().mean()) == pytest.approx(1, abs=4 * math.sqrt(2) * error)
    assert float(z.pow(4).mean()) == pytest.approx(3, abs=4 * math.sqrt(96) * error)
    rows, columns = torch.corrcoef(z).fill_diagonal_(0), torch.corrcoef(z.T).fill_diagonal_(0)
    assert float(rows.abs().max()) < 6 / math.sqrt(d) and float(columns.abs().max()) < 6 / math.sqrt(n)


def test_what_is_zero_stays_zero() -> None:
    x, y = data()
    x[3] = 0
    z = noise_of(nn.Sequential(Same(), nn.Linear(4, 3)).double(), (x, y), 1.0)
    assert float(z[3].abs().max()) == 0 and float(z.abs().max()) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_has_the_models_dtype(dtype: torch.dtype) -> None:
    assert Alone(model(dtype), data(), 0.5).forward().a.dtype == dtype


# ---- Where it comes from -----------------------------------------------------------------------------------------


def test_an_address_has_one_noise() -> None:
    net, rows = model(), data()
    here = noise_of(net, rows, 0.5)
    torch.manual_seed(99)  # the global generator has no say
    assert torch.equal(noise_of(net, rows, 0.5), here)
    others = [
        noise_of(net, rows, 0.5, **place)
        for place in ({"steps": 1}, {"steps": 2}, {"n": 2}, {"j": 1}, {"j": 2}, {"n": 2, "j": 1}, {"seed": 1})
    ]
    every = [here, *others]
    unlike = [not torch.allclose(a, b) for i, a in enumerate(every) for b in every[:i]]
    assert len(unlike) == 28 and all(unlike)


def test_twice_the_noise_is_the_noise_twice() -> None:
    net, rows = model(), data()
    torch.testing.assert_close(noise_of(net, rows, 1.0), 2 * noise_of(net, rows, 0.5))


# ---- What it leaves alone ----------------------------------------------------------------------------------------


def test_gradients_go_back_through_the_clean_activations() -> None:
    """With the same gradient at the cut, a client makes the same step with noise and without."""
    rows = data()
    noisy, clean = (Alone(model(), rows, noise) for noise in (0.7, 0.0))
    torch.manual_seed(3)
    for _ in range(3):
        one, other = noisy.forward(), clean.forward()
        assert not torch.equal(one.a, other.a) and torch.equal(one.y, other.y)
        grad = torch.randn_like(one.a)
        noisy.step(one, grad)
        clean.step(other, grad)
    assert torch.equal(noisy.close().end.w, clean.close().end.w)
    assert not torch.equal(clean.close().end.w, half(model(), range(1), CPU).read().w)


def test_a_step_with_noise_by_hand() -> None:
    """The server's loss is of the noisy activations, and so is the gradient at the cut; the front's graph is clean."""
    x, y = data(5)
    optimizer = cl.SGD(lr=0.1, momentum=0.0, weight_decay=0.0)
    given: dict[str, Any] = {"rounds": 1, "batch_size": 5, "local_steps": 1, "shuffle": False, "optimizer": optimizer}
    result = cl.train(model(), [(x, y)], scheme="fedavg", noise=0.4, seed=6, **given)
    by_hand = model()
    a = by_hand[0](x)
    sent = (a.detach() + noise_of(model(), (x, y), 0.4, seed=6)).requires_grad_()
    loss = functional.cross_entropy(by_hand[1](sent), y)
    loss.backward()  # type: ignore[no-untyped-call]
    a.backward(sent.grad)
    with torch.no_grad():
        for w in by_hand.parameters():
            assert w.grad is not None
            w.sub_(0.1 * w.grad)
    for ours, theirs in zip(result.model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert result.history[0].train_loss == pytest.approx(float(loss.detach()), abs=1e-12)


def test_testing_is_without_noise_and_costs_are_the_same() -> None:
    x, y = data(30, seed=4)
    runs = [cl.train(model(), [data()], test=(x, y), noise=noise, **FAST) for noise in (0.0, 5.0)]
    for result in runs:
        with torch.no_grad():
            loss = functional.cross_entropy(copy.deepcopy(result.model).eval()(x), y)
        assert result.history[-1].loss == pytest.approx(float(loss), abs=1e-12)
    bare = [[(r.bytes_up, r.bytes_down, r.steps, r.samples) for r in result.history] for result in runs]
    assert bare[0] == bare[1]


# ---- In every scheme ---------------------------------------------------------------------------------------------


def trained(scheme: str, protocol: str, **noise: float) -> list[Tensor]:
    clients = [data(12, seed=j) for j in range(3)]
    result = cl.train(model(), clients, scheme=scheme, protocol=protocol, **FAST, **noise)  # type: ignore[arg-type]
    models = [result.model, *result.clients]
    return [tensor for each in models for tensor in each.state_dict().values()]


@pytest.mark.parametrize("protocol", ["smofi", "cyclesl"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_works_in_every_scheme(scheme: str, protocol: str) -> None:
    without, zero = trained(scheme, protocol), trained(scheme, protocol, noise=0.0)
    assert all(torch.equal(a, b) for a, b in zip(without, zero, strict=True))
    one, again = (trained(scheme, protocol, noise=0.3) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in one)
    assert not any(torch.equal(a, b) for a, b in zip(one, without, strict=True))


@pytest.mark.parametrize("wrong", [-0.1, math.nan, math.inf, "much", None, True])
def test_it_is_a_number_from_zero_on(wrong: Any) -> None:
    with pytest.raises(cl.ContractError, match="noise"):
        cl.rounds(model(), [data()], noise=wrong)


def test_a_plan_without_noise_adds_none() -> None:
    alone = Alone(model(), data(), 0.5)
    alone.client.plan = replace(alone.client.plan, noise=0.0)
    x, _ = data()
    assert torch.equal(alone.forward().a, model()[0](x).detach())
