"""Where two methods must agree, they do: in float64, on unequal clients, with BatchNorm, momentum and weight decay."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cutlayer as cl
from cutlayer.data.schedule import BatchSchedule

State = dict[str, Tensor]
SIZES = (10, 7, 23, 3, 16)  # T_j = 4, 2, 10, 0, 8 with B = 4, E = 2: the fourth is skipped
CUTS = (0, 1, 2)
SCHEMES = [
    "fedavg",
    cl.SFLV1("step"),
    cl.SFLV1("epoch"),
    cl.SFLV2("client", "step"),
    cl.SFLV2("step", "round"),
    "smofi",
]
SGD = cl.SGD(0.1, 0.9, 0.01, decay=0.9)
OURS = [SGD, cl.NAG(0.05, 0.9, 0.01, decay=0.9), cl.Adam(0.01, weight_decay=0.01), cl.AdamW(0.01, weight_decay=0.1)]
THEIRS: list[Callable[[Iterable[nn.Parameter], int], torch.optim.Optimizer]] = [
    lambda p, n: torch.optim.SGD(p, 0.1 * 0.9 ** (n - 1), 0.9, weight_decay=0.01),
    lambda p, n: torch.optim.SGD(p, 0.05 * 0.9 ** (n - 1), 0.9, weight_decay=0.01, nesterov=True),
    lambda p, n: torch.optim.Adam(p, 0.01, weight_decay=0.01),
    lambda p, n: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
]


def network(dropout: float = 0.0) -> nn.Sequential:
    """No bias before BatchNorm: its gradient is zero but for rounding, and Adam would walk on the rounding."""
    torch.default_generator.manual_seed(7)
    return nn.Sequential(
        nn.Sequential(nn.Linear(5, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU()),
        nn.Sequential(nn.Linear(8, 6, bias=False), nn.Dropout(dropout)),
        nn.Sequential(nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(dropout)),
        nn.Linear(6, 4),
    ).double()


def population(sizes: Iterable[int] = SIZES) -> list[tuple[Tensor, Tensor]]:
    torch.default_generator.manual_seed(8)
    return [(torch.randn(n, 5, dtype=torch.float64) + j % 3, torch.randint(4, (n,))) for j, n in enumerate(sizes)]


def train(scheme: Any, **more: Any) -> cl.Result:
    given = {"model": network(), "clients": population(), "cut": 1, "optimizer": SGD, "rounds": 3}
    return cl.train(**given | {"scheme": scheme, "batch_size": 4, "local_epochs": 2} | more)


def end(scheme: Any, **more: Any) -> State:
    return train(scheme, **more).model.state_dict()


def close(a: State, b: State, tolerance: float = 1e-9) -> bool:
    assert list(a) == list(b)
    return all(torch.allclose(a[name], b[name], rtol=tolerance, atol=tolerance) for name in a)


def same_bits(a: State, b: State) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@functools.cache
def uncut(which: int, cohorts: tuple[tuple[int, ...], ...], beta: float = 0.0, seed: int = 0) -> State:
    """Federated averaging of the whole model with torch.optim; `beta` is FedAvgM's, on the parameters only."""
    model, clients, schedule = network(), population(), BatchSchedule(batch_size=4, epochs=2, seed=seed)
    momentum = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for n, J in enumerate(cohorts, start=1):
        ends, total = [], sum(SIZES[j] for j in J)
        for j in J:
            twin = copy.deepcopy(model).train()
            optimizer = THEIRS[which](twin.parameters(), n)
            for rows, _ in schedule.batches(SIZES[j], n, j):
                optimizer.zero_grad()
                functional.cross_entropy(twin(clients[j][0][rows]), clients[j][1][rows]).backward()
                optimizer.step()
            ends.append(twin.state_dict())
        old, new = model.state_dict(), {}
        for name, w in old.items():
            parts = [state[name] for state in ends]
            if not w.is_floating_point():
                new[name] = torch.stack(parts).amax(0)
                continue
            new[name] = sum((SIZES[j] / total) * part for j, part in zip(J, parts, strict=True))
            if name in momentum:
                momentum[name] = beta * momentum[name] + (w - new[name])
                new[name] = w - momentum[name]
        model.load_state_dict(new)
    return model.state_dict()


@pytest.mark.parametrize("which", range(4), ids=["sgd", "nag", "adam", "adamw"])
@pytest.mark.parametrize("cut", CUTS)
def test_sflv1_of_a_round_is_fedavg_whatever_the_cut(cut: int, which: int) -> None:
    result = train(cl.SFLV1("round"), cut=cut, optimizer=OURS[which])
    assert close(result.model.state_dict(), uncut(which, tuple(r.clients for r in result.history)))
    assert [(r.participants, r.skipped, r.steps) for r in result.history] == [(4, 1, 24)] * 3


def test_fedavg_is_a_name_for_it() -> None:
    assert same_bits(end("fedavg"), end(cl.SFLV1("round")))


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_fedavgm_on_part_of_the_clients(beta: float) -> None:
    """Other cohorts each round, weights over those who took part; momentum moves parameters, never statistics."""
    result = train("fedavg", participation=0.6, update=cl.FedAvgM(beta), rounds=5, seed=3)
    assert len({r.clients for r in result.history}) > 1
    assert close(result.model.state_dict(), uncut(0, tuple(r.clients for r in result.history), beta, seed=3))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_fedavgm_without_momentum_is_fedavg(scheme: Any) -> None:
    plain = end(scheme)
    assert same_bits(plain, end(scheme, update=cl.FedAvg()))
    assert close(plain, end(scheme, update=cl.FedAvgM(0)), 1e-12)
    assert not close(plain, end(scheme, update=cl.FedAvgM(0.5)), 1e-3)


@pytest.mark.parametrize("optimizer", OURS, ids=lambda o: type(o).__name__)
def test_smofi_with_one_client_a_round_is_fedavgm(optimizer: Any) -> None:
    same = {"participation": 1, "update": cl.FedAvgM(0.4), "optimizer": optimizer, "rounds": 6}
    assert close(end("smofi", **same), end("fedavg", **same))
    assert not close(end("smofi", **same | {"participation": 2}), end("fedavg", **same | {"participation": 2}), 1e-4)


@pytest.mark.parametrize("cut", CUTS)
def test_smofi_without_momentum_is_fedavgm_with_plain_sgd_on_the_server(cut: int) -> None:
    """The clients keep their momentum: only the server's is fused."""
    for momentum, equal in ((0.0, True), (0.9, False)):
        same = {"cut": cut, "update": cl.FedAvgM(0.3), "server_optimizer": cl.SGD(0.1, momentum, 0.01, decay=0.9)}
        assert close(end("smofi", **same), end("fedavg", **same), 1e-9 if equal else 1e-4) is equal


@pytest.mark.parametrize("optimizer", OURS, ids=lambda o: type(o).__name__)
def test_smofi_of_identical_clients_is_one_client(optimizer: Any) -> None:
    """The same data and the same batches: the mean of equal momenta is each of them."""
    one = population([14])
    same = {"shuffle": False, "optimizer": optimizer, "update": cl.FedAvgM(0.3)}
    assert close(end("smofi", clients=one * 4, **same), end("fedavg", clients=one, **same))


@pytest.mark.parametrize("optimizer", [SGD, cl.Adam(0.01)], ids=lambda o: type(o).__name__)
def test_equal_steps_leave_the_history_unused(optimizer: Any) -> None:
    """With T_j the same for all nobody finishes early: no flag of the history changes a bit; otherwise each does."""
    others = [cl.SMoFi(-5.0), cl.SMoFi(stale_offset=0), cl.SMoFi(hist_norm="weights")]
    others += [cl.SMoFi(rebias_history=True)] if isinstance(optimizer, cl.Adam) else []
    equal = end("smofi", optimizer=optimizer, local_steps=5)
    unequal = end("smofi", optimizer=optimizer)
    for other in others:
        assert same_bits(equal, end(other, optimizer=optimizer, local_steps=5))
        assert not close(unequal, end(other, optimizer=optimizer), 1e-7)


def test_smofi_at_the_last_block_fuses_the_head_only() -> None:
    """With the head frozen there is nothing to fuse, and SMoFi is FedAvg; with the head free it is not."""
    model = network()
    model[3].requires_grad_(False)
    assert close(end("smofi", model=model, cut=2), end("fedavg", model=model, cut=2), 1e-12)
    assert not close(end("smofi", model=model, cut=1), end("fedavg", model=model, cut=1), 1e-4)
    assert not close(end("smofi", cut=2), end("fedavg", cut=2), 1e-4)


@pytest.mark.parametrize("optimizer", OURS, ids=lambda o: type(o).__name__)
def test_with_one_client_the_schemes_are_one(optimizer: Any) -> None:
    """A server memory that is reset per round leaves no difference between them; one reset otherwise does."""
    same = {"clients": population([14]), "optimizer": optimizer}
    expected = end(cl.SFLV1("round"), **same)
    for scheme in (cl.SFLV2("client", "round"), cl.SFLV2("step", "round"), cl.SFLV2("client", "client"), cl.SMoFi()):
        assert close(end(scheme, **same), expected)
    for scheme in (cl.SFLV2("client", "never"), cl.SFLV2("client", "step"), cl.SFLV1("step"), cl.SFLV1("epoch")):
        assert not close(end(scheme, **same), expected, 1e-4)
    assert close(end(cl.SFLV2(reset="never"), rounds=1, **same), end(cl.SFLV1("round"), rounds=1, **same))


@pytest.mark.parametrize("update", [None, cl.FedAvgM(0.4)], ids=str)
def test_a_redrawn_cut_does_not_change_fedavg(update: Any) -> None:
    """Momentum of the global update is on the whole model, so it survives a cut that moves."""
    moving = train("fedavg", cut=(0, 2), rounds=6, update=update)
    assert {r.cut for r in moving.history} == set(CUTS)
    for cut in CUTS:
        assert close(moving.model.state_dict(), end("fedavg", cut=cut, rounds=6, update=update))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_weights_that_sum_to_one(scheme: Any) -> None:
    """Where no gradient pulls, the mean of equal models is that model, round after round."""
    still = {"optimizer": cl.SGD(0.1, 0.9, 0.0), "loss": lambda out, y: 0 * out.sum(), "participation": 0.6}
    start = dict(network().named_parameters())
    for update in (None, cl.FedAvgM(0.5)):
        for name, p in train(scheme, rounds=8, update=update, **still).model.named_parameters():
            torch.testing.assert_close(p, start[name], rtol=0, atol=1e-14)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_variances_stay_above_zero(scheme: Any) -> None:
    """Inputs of tiny variance pull running_var from 1 to almost 0: momentum on it would shoot below."""
    clients = [(1e-3 * x, y) for x, y in population()]
    given = {"cut": 0, "optimizer": SGD, "batch_size": 4, "rounds": 6, "update": cl.FedAvgM(0.5), "test": clients[2]}
    run = cl.rounds(network(), clients, scheme=scheme, local_epochs=2, **given)
    seen = []
    for record in run:
        seen.append(min(float(t.min()) for name, t in run.model.state_dict().items() if "running_var" in name))
        assert np.isfinite(record.loss)
    assert seen[-1] < 0.1
    assert min(seen) > 0


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_seed_names_a_run(scheme: Any, dropout: float) -> None:
    """Bit for bit, whatever the caller draws in between; another seed is another run."""
    given = {"participation": 0.6, "cut": (0, 2), "rounds": 2}
    first = train(scheme, model=network(dropout), seed=5, **given)
    torch.default_generator.manual_seed(99)
    again = train(scheme, model=network(dropout), seed=5, **given)
    assert same_bits(first.model.state_dict(), again.model.state_dict())
    assert [(r.clients, r.cut, r.train_loss) for r in first.history] == [
        (r.clients, r.cut, r.train_loss) for r in again.history
    ]
    assert not close(first.model.state_dict(), end(scheme, model=network(dropout), seed=6, **given), 1e-4)
    if dropout:
        assert not close(first.model.state_dict(), end(scheme, seed=5, **given), 1e-4)


class Watched:
    """A client's rows, remembering the order in which they were asked for."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.asked = x, y, []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        self.asked.append(row)
        return self.x[row], self.y[row]


def test_methods_with_the_same_seed_see_the_same_clients_and_batches() -> None:
    seen = set()
    for scheme in SCHEMES:
        clients = [Watched(x, y) for x, y in population()]
        history = train(scheme, clients=clients, participation=0.6, rounds=4, seed=2).history
        seen.add((tuple(tuple(sorted(r.clients)) for r in history), tuple(tuple(c.asked) for c in clients)))
    assert len(seen) == 1


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_the_caller_notices_nothing(scheme: Any) -> None:
    """Generators, the model given and the data given are as they were."""
    model, clients = network(0.3).eval(), population()
    kept, data = copy.deepcopy(model.state_dict()), copy.deepcopy(clients)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    result = train(scheme, model=model, clients=clients, test=clients[0])
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert same_bits(kept, model.state_dict())
    assert not any(m.training for m in model.modules())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(
        torch.equal(a, b) for pair, twin in zip(clients, data, strict=True) for a, b in zip(pair, twin, strict=True)
    )
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in result.model.parameters()}


@pytest.mark.parametrize("inside", [1, 3])
def test_a_step_has_its_threads_and_the_caller_keeps_theirs(inside: int) -> None:
    threads, seen = torch.get_num_threads(), []

    def loss(out: Tensor, y: Tensor) -> Tensor:
        seen.append(torch.get_num_threads())
        return functional.cross_entropy(out, y)

    torch.set_num_threads(2)
    try:
        train("sflv2", loss=loss, rounds=1, torch_threads=inside)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert set(seen) == {1, inside}  # with one, the model is tried
    with pytest.raises(cl.ContractError, match="threads = 2: expected 1 or None, beside torch_threads"):
        train("smofi", threads=2, torch_threads=2)


class Drawing(nn.Module):
    """A block that draws a number in training, and tells."""

    drawn: ClassVar[list[float]] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.drawn.append(float(torch.rand((), dtype=torch.float64)))
        return x


def test_what_a_forward_draws_has_an_address() -> None:
    """(round, client, step, side): the server's numbers do not depend on the scheme, nor on what the front draws."""
    seen = set()
    for scheme in SCHEMES:
        for front in (nn.Identity(), nn.Dropout(0.5)):
            model = nn.Sequential(nn.Linear(5, 4), front, Drawing(), nn.Linear(4, 4)).double()
            run = cl.rounds(model, population(), scheme=scheme, cut=1, rounds=2, batch_size=4, local_epochs=2)
            Drawing.drawn.clear()
            steps = sum(record.steps for record in run)
            assert len(set(Drawing.drawn)) == len(Drawing.drawn) == steps
            seen.add(tuple(sorted(Drawing.drawn)))
    assert len(seen) == 1
