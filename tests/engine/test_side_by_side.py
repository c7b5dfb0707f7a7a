"""Trainings side by side in threads of one process: none stands still, and each ends with the bits it has alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cutlayer as cl
from cutlayer.core.randomness import OwnRandomness
from cutlayer.core.threads import torch_threads
from tests.engine import side_by_side as alongside
from tests.forks import forked

X, Y = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3


@pytest.mark.parametrize("what", ["trainings", "network"])
def test_the_collector_stops_nobody(what: str) -> None:
    """A process of its own, which ends itself after a while if it stands still."""
    with forked(alongside.main, what, strict=True) as process:
        process.wait()
        assert process.out.endswith("done\n"), process.err[-4000:]


class Noise(nn.Module):
    """Numbers that no module was asked for."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.rand(x.shape)


def network(drawing: bool = True) -> nn.Sequential:
    with OwnRandomness(5):
        more = [nn.Dropout(0.3), Noise()] if drawing else []
        return nn.Sequential(nn.Sequential(nn.Linear(6, 8), *more), nn.Sequential(nn.Tanh(), *more), nn.Linear(8, 3))


def clients(n: int = 4) -> list[tuple[Tensor, Tensor]]:
    return [(X[j::n], Y[j::n]) for j in range(n)]


def train(seed: int, drawing: bool = True, **more: Any) -> list[bytes]:
    arguments = {"cut": 0, "rounds": 3, "batch_size": 4, "local_epochs": 2, "test": (X, Y), "threads": 2, **more}
    result = cl.train(network(drawing), clients(), seed=seed, **arguments)
    return [t.numpy().tobytes() for t in result.model.state_dict().values()] + [str(result.history[-1].loss).encode()]


def side_by_side(jobs: list[Callable[[], Any]]) -> list[Any]:
    """What each gives, or what it raised."""
    found: list[Any] = [None] * len(jobs)

    def work(place: int) -> None:
        try:
            found[place] = jobs[place]()
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@pytest.mark.parametrize("drawing", [True, False], ids=["drawing", "plain"])
@pytest.mark.parametrize("backend", ["loop", "auto"])
def test_each_ends_with_the_bits_it_has_alone(backend: str, drawing: bool) -> None:
    """... while the caller draws from torch's generator, seeds it, and reads it: no warning, which is an error here."""
    alone = [train(seed, drawing, backend=backend) for seed in range(4)]
    over = threading.Event()

    def caller() -> None:
        while not over.is_set():
            torch.manual_seed(int(torch.randint(0, 99, ())))
            torch.rand(3)

    beside = threading.Thread(target=caller)
    beside.start()
    try:
        together = side_by_side([lambda seed=seed: train(seed, drawing, backend=backend) for seed in range(4)])
    finally:
        over.set()
        beside.join()
    assert together == alone
    assert len({tuple(bits) for bits in alone}) == 4


def test_two_trainings_taken_turn_by_turn() -> None:
    def stream(seed: int) -> cl.Run:
        return cl.rounds(network(), clients(), cut=0, rounds=3, batch_size=4, local_epochs=2, seed=seed, test=(X, Y))

    alone = [[record.loss for record in stream(seed)] for seed in (0, 1)]
    turns = [(a.loss, b.loss) for a, b in zip(stream(0), stream(1), strict=True)]
    assert [list(losses) for losses in zip(*turns, strict=True)] == alone


class Trap:
    """Stands where torch's global generator is."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"somebody asked the global generator for {name}")


def test_nobody_asks_the_global_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_rng_state()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "default_generator", Trap())
        patch.setattr(torch.random, "default_generator", Trap())
        train(0, labels="stay")
        train(0, scheme="cyclesfl", loss=lambda out, y: functional.cross_entropy(out + torch.rand_like(out), y))
        cl.cuts(network(), X[:4])
        cl.leakage(network(), X[:4])
        with OwnRandomness():
            torch.native_dropout(X, 0.5, True)
    assert torch.equal(before, torch.get_rng_state())


def test_a_loss_that_draws_draws_at_an_address() -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(out + torch.rand_like(out), y)

    torch.manual_seed(1)
    first = train(0, loss=loss)
    torch.manual_seed(2)
    assert train(0, loss=loss, threads=3) == first
    assert train(1, loss=loss) != first


class Changing(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Rows that are changed at random when they are taken."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row] + 0.1 * torch.randn(6), self.y[row]


def test_what_a_dataset_draws_has_an_address() -> None:
    def losses(seed: int, threads: int) -> list[float | None]:
        rows = [Changing(x, y) for x, y in clients()]
        arguments = {"cut": 0, "rounds": 2, "batch_size": 4, "local_epochs": 1, "threads": threads, "seed": seed}
        return [r.train_loss for r in cl.rounds(network(False), rows, test=Changing(X, Y), **arguments)]

    torch.manual_seed(1)
    first = losses(0, 1)
    torch.manual_seed(2)
    assert losses(0, 3) == first != losses(1, 1)


def test_torchs_threads_are_one_inside_and_the_callers_afterwards() -> None:
    """Whoever comes first or last, also in threads that were born in between."""
    mine, seen = torch.get_num_threads(), []
    first, second, third = (threading.Event() for _ in range(3))

    def early() -> int:
        with torch_threads():
            first.set()
            second.wait(30)
        third.set()
        return torch.get_num_threads()

    def late() -> int:
        first.wait(30)
        with torch_threads():
            second.set()
            seen.append(torch.get_num_threads())
            third.wait(30)  # the other one leaves first
        return torch.get_num_threads()

    torch.set_num_threads(3)
    try:
        assert side_by_side([early, late]) == [3, 3]
        assert seen == [1] and torch.get_num_threads() == 3
        assert side_by_side([torch.get_num_threads]) == [3]
    finally:
        torch.set_num_threads(mine)


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: functional.dropout(x, 0.3),
    "channels": lambda x: functional.dropout1d(x, 0.3),
    "alpha": lambda x: functional.alpha_dropout(x, 0.3, training=True),
    "rand": lambda x: torch.rand(3, 4),
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(40),
    "randn_like": torch.randn_like,
    "randint": lambda x: torch.randint(0, 9, (5,)),
    "randint_like": lambda x: torch.randint_like(x, 2, 7),
    "randperm": lambda x: torch.randperm(9),
    "into": lambda x: torch.rand(3, out=torch.empty(3)),
    "normal": lambda x: torch.normal(0.0, 1.0, (7,)),
    "bernoulli": lambda x: torch.bernoulli(torch.full((9,), 0.5)),
    "multinomial": lambda x: torch.multinomial(torch.ones(9), 4),
    "poisson": lambda x: torch.poisson(x.abs()),
    "gumbel": functional.gumbel_softmax,
    "rrelu": lambda x: functional.rrelu(x, training=True),
    "attention": lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3),
    "native": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "weights": lambda x: nn.Linear(4, 4).weight,
}


@pytest.mark.parametrize("name", DRAWS)
def test_own_randomness_is_a_seeded_generator(name: str) -> None:
    """The numbers that `torch.manual_seed` would give, without it."""
    x = torch.linspace(-1, 1, 240).view(6, 5, 8)
    torch.manual_seed(11)
    expected, before = DRAWS[name](x), torch.get_rng_state()
    with OwnRandomness(11) as drawn:
        found = DRAWS[name](x)
    assert torch.equal(found, expected) and drawn.used
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("layer", [nn.LSTM(8, 8, 2, dropout=0.5), nn.GRU(8, 8, 2, dropout=0.5)], ids=["lstm", "gru"])
def test_layers_that_draw_inside(layer: nn.Module) -> None:
    x = torch.linspace(-1, 1, 240).view(6, 5, 8)
    torch.manual_seed(11)
    expected = layer(x)[0]
    with OwnRandomness(11) as drawn:
        assert torch.equal(layer(x)[0], expected)
    assert drawn.used


def test_what_draws_nothing_is_known_to() -> None:
    x, layer = torch.randn(2, 3, 8), nn.LSTM(8, 8, 2, dropout=0.5).eval()
    with OwnRandomness() as drawn:
        functional.scaled_dot_product_attention(x, x, x)
        functional.dropout(x, 0.5, training=False)
        layer(x)
    assert not drawn.used
