"""However clients are simulated, the training is the same: stacked as in the loop, on any number of threads, with one
backward pass through both halves or with two. In float64 to 1e-9; where the operations are the same, to the bit."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cutlayer as cl
from cutlayer.clients.simulated import LocalCohort
from cutlayer.core import threads as workers
from cutlayer.data.rows import StoredRows
from cutlayer.data.transform import Pixels
from cutlayer.data.views import View
from cutlayer.engine import backend
from cutlayer.nn import stacked
from cutlayer.registry import SCHEMES, build
from cutlayer.schemes import Scheme
from tests.clients.faulty import Fault, FaultyCohort
from tests.engine.test_inputs import Both, two_inputs
from tests.equal.compare import EXACT, OPTIMIZERS
from tests.equal.naive import difference, small_clients, small_model

Batch = tuple[Tensor, Tensor]
Make = Callable[[], nn.Module]
# T_j = 3, 1, 5, 2 and 4 with a batch of four: everybody finishes at a step of their own, and last batches are unequal.
SIZES = (9, 4, 17, 6, 13)
BASE: dict[str, Any] = {"cut": 0, "rounds": 2, "batch_size": 4, "local_epochs": 1, "last_batch": "keep"}
SGD = OPTIMIZERS["sgd"][0]
STACKED = "stacked (as asked), 1 thread"
ONE_BY_ONE = {"sflv2", "ssl", "cyclessl"}
FLOWING = ["fedavg", "sflv1", "sflv2", "smofi", "aligned", "psl", "ssl"]
CLOSE = {"train_loss", "drift_client", "drift_server", "clip_rate"}  # of a Round, what rounding may touch
COUNTED = {field.name for field in dataclasses.fields(cl.Round)} - CLOSE - {"seconds"}


# ---- Models, data, runs ------------------------------------------------------------------------------------------


def model(dtype: torch.dtype = torch.float64, batchnorm: bool = True) -> nn.Sequential:
    """Convolutions on both sides of the cut. No bias stands right before a BatchNorm: its gradient would be zero but
    for rounding, and Adam would walk on the rounding."""
    torch.default_generator.manual_seed(5)

    def norm(channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels) if batchnorm else nn.Identity()

    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3, padding=1, bias=False), norm(3), nn.Tanh()),
        nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), norm(4), nn.Tanh(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
    ).to(dtype)


def images(sizes: Iterable[int] = SIZES, dtype: torch.dtype = torch.float64) -> list[Batch]:
    """Clients of unequal size and unlike distribution."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for j, size in enumerate(sizes):
        y = torch.randint(0, 3, (size,), generator=generator)
        x = torch.randn(size, 1, 6, 6, generator=generator) + 0.3 * j + 0.5 * y[:, None, None, None]
        made.append((x.to(dtype), y))
    return made


def rounds(backend: str, threads: int = 1, make: Make = model, clients: Any = None, **more: Any) -> cl.Run:
    given = {**BASE, "optimizer": SGD, **more, "backend": backend, "threads": threads}
    return cl.rounds(make(), images() if clients is None else clients, **given)


def played(run: cl.Run) -> tuple[cl.Run, list[cl.Round]]:
    """A run to its end; it is checked that it was a training, or to be equal would say nothing."""
    before = run.model
    records = list(run)
    assert records[-1].n == run.setup.rounds and sum(record.steps for record in records) > 0
    assert difference(run.model, before) > 1e-4
    return run, records


def apart(one: tuple[cl.Run, list[cl.Round]], other: tuple[cl.Run, list[cl.Round]]) -> float:
    """How far two runs are from each other: weights, buffers, everybody's own models, and the records of each round.
    What is counted in a record must be equal."""
    (run, records), (twin, others) = one, other
    gaps = [difference(run.model, twin.model)]
    gaps += [difference(mine, theirs) for mine, theirs in zip(run.clients, twin.clients, strict=True)]
    for record, its in zip(records, others, strict=True):
        for name in COUNTED:
            assert getattr(record, name) == getattr(its, name), name
        for name in CLOSE:
            a, b = getattr(record, name), getattr(its, name)
            gaps.append(0.0 if a is b is None else abs(a - b))
    return math.nan if any(math.isnan(gap) for gap in gaps) else max(gaps)


def check(words: str = STACKED, **more: Any) -> list[cl.Round]:
    """Stacked equals the loop, and it was stacked. Its records, for more questions."""
    run = rounds("stacked", **more)
    assert run.setup.backend.words == words
    loop = rounds("loop", **more)
    assert loop.setup.backend.words == "loop (as asked), 1 thread" or "one after another" in words
    done = played(run)
    assert apart(done, played(loop)) <= EXACT
    return done[1]


# ---- Stacked equals the loop -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_stacked(scheme: str) -> None:
    one_by_one = "loop (clients step one after another), 1 thread"
    check(one_by_one if scheme in ONE_BY_ONE else STACKED, scheme=scheme, local_epochs=2 if scheme == "sflv1" else 1)


VARIANTS: list[Any] = [
    cl.SFLV1(every="step"),
    cl.SFLV2(order="step", reset="round"),
    cl.SMoFi(adaptive=True),
    cl.SMoFi(fuse_clients=True),
    cl.CycleSFL(frozen_bn="eval"),
    cl.CycleSFL(frozen_bn="no_update", server_epochs=2, loss_weight="uniform"),
    cl.MergeSFL(front_weights="uniform"),
]


@pytest.mark.parametrize("scheme", VARIANTS, ids=str)
def test_variants_of_schemes_stacked(scheme: Any) -> None:
    check(scheme=scheme)


@dataclasses.dataclass(frozen=True)
class Backwards(cl.SFLV1):
    """The server's rows lie in another order than the clients'."""

    def open(self, server: Any, clients: Any) -> Any:
        return super().open(server, list(clients)[::-1])


def test_a_scheme_may_lay_its_rows_otherwise() -> None:
    """Fronts that are no neighbours then go one after another."""
    check(scheme=Backwards(every="round"))


@pytest.mark.parametrize("scheme", ["cyclepsl", "cyclesfl", "cyclesglr", "smofi"])
def test_without_buffers_stacked(scheme: str) -> None:
    """Where no buffer moves, the gradients at the cut of a Cycle scheme are taken in one graph too."""
    check(scheme=scheme, make=lambda: model(batchnorm=False))


@pytest.mark.parametrize("scheme", ["smofi", "sflv1", "psl", "cyclesfl"])
def test_small_clients_stacked(scheme: str) -> None:
    check(scheme=scheme, clients=images((9, 3, 13, 2)), small_client="one_batch", last_batch="drop")


LOCALS: list[tuple[Any, Any]] = [
    *((cl.FedProx(mu=0.5), scheme) for scheme in ("smofi", "sflv1", "psl", "cyclesfl")),
    *(
        ((cl.FedProx(mu=0.3), cl.FedNAR(max_norm=0.7, norm="half")), scheme)
        for scheme in ("smofi", "fedavg", "psl", "mergesfl")
    ),
    *((cl.FedNAR(max_norm=2.2, norm="joint"), scheme) for scheme in ("smofi", "sflv1", "psl")),
    (cl.FedNAR(max_norm=2.2, norm="joint"), cl.SFLV2(order="step")),
]


@pytest.mark.parametrize(("local", "scheme"), LOCALS, ids=str)
def test_local_rules_stacked(local: Any, scheme: Any) -> None:
    records = check(local=local, scheme=scheme)
    if isinstance(local, cl.FedNAR):
        assert all(0 < (record.clip_rate or 0) < 1 for record in records)  # some steps are clipped, and some are not


@pytest.mark.parametrize("optimizer", ["nag", "adam", "adamw"])
@pytest.mark.parametrize("scheme", ["smofi", "fedavg", "sglr"])
def test_optimizers_stacked(scheme: str, optimizer: str) -> None:
    check(scheme=scheme, optimizer=OPTIMIZERS[optimizer][0])


@pytest.mark.parametrize("scheme", ["smofi", "psl", "cyclesfl"])
def test_an_optimizer_for_each_side_stacked(scheme: str) -> None:
    check(scheme=scheme, optimizer=OPTIMIZERS["adam"][0], server_optimizer=OPTIMIZERS["nag"][0])


@pytest.mark.parametrize("update", [cl.FedAvgM(beta=0.3), cl.SlowMo(beta=0.6), cl.FedNAG()], ids=str)
def test_updates_stacked(update: Any) -> None:
    check(scheme="fedavg", update=update, optimizer=OPTIMIZERS["nag"][0], rounds=3)


@pytest.mark.parametrize("scheme", ["smofi", "sflv1", "psl", "cyclesfl", "cyclesglr", "mergesfl"])
def test_the_cyclesl_protocol_stacked(scheme: str) -> None:
    """Memory lives on, and clients that took part in unequally many rounds have unequal step counters."""
    more: dict[str, Any] = {"protocol": "cyclesl", "local_steps": 2, "participation": 0.6, "rounds": 4}
    check(scheme=scheme, optimizer=OPTIMIZERS["adam"][0], **more)


@pytest.mark.parametrize("scheme", ["smofi", "psl", "sglr"])
def test_some_of_the_clients_stacked(scheme: str) -> None:
    check(scheme=scheme, participation=0.6, rounds=3)


@pytest.mark.parametrize("scheme", ["smofi", "sglr", "cyclesfl"])
def test_noise_stacked(scheme: str) -> None:
    """Every client and step draws its own noise; there is enough of it to be seen."""
    noisy = check(scheme=scheme, noise=0.3, rounds=1)
    quiet = next(rounds("stacked", scheme=scheme, rounds=1))
    assert noisy[0].train_loss != pytest.approx(quiet.train_loss, rel=1e-4)


def test_a_redrawn_cut_stacked() -> None:
    check(cut=(0, 1), rounds=4, update=cl.FedAvgM(beta=0.3))


def test_a_learning_rate_for_each_client_stacked() -> None:
    """Clients whose devices set their batch sizes, and whose rate follows these, cannot step in one expression."""
    devices = [(0.02 * (1 + j % 3), 4000.0) for j in range(len(SIZES))]
    scheme = cl.MergeSFL(scale_lr=True)
    first = check(scheme=scheme, profile=devices)[0]
    assert len({s // t for s, t in zip(first.client_samples, first.client_steps, strict=True)}) > 1


@pytest.mark.parametrize("scheme", ["smofi", "sglr", "cyclesfl"])
def test_inputs_by_name_stacked(scheme: str) -> None:
    def make() -> nn.Module:
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            Both(), nn.Sequential(nn.Tanh(), nn.Linear(3, 5)), nn.Sequential(nn.Tanh(), nn.Linear(5, 3))
        )

    clients = [two_inputs(size, seed) for seed, size in enumerate(SIZES)]
    clients = [({"words": x["words"], "numbers": x["numbers"].double()}, y) for x, y in clients]
    check(scheme=scheme, make=lambda: make().double(), clients=clients)


@pytest.mark.parametrize("scheme", ["smofi", "cyclesfl"])
def test_a_loss_of_the_callers_stacked(scheme: str) -> None:
    def squared(out: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(out, functional.one_hot(y, 3).to(out.dtype))

    check(scheme=scheme, loss=squared)


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("scheme", ["smofi", "sglr"])
def test_rows_of_a_stored_data_set_stacked(scheme: str, pad: int) -> None:
    """Read at once, or, where rows change at random, client by client."""
    generator = np.random.default_rng(0)
    rows = StoredRows(generator.integers(0, 256, (60, 1, 6, 6), dtype=np.uint8), generator.integers(0, 3, 60))
    owned = np.split(generator.permutation(60)[: sum(SIZES)], np.cumsum(SIZES)[:-1])
    pixels = Pixels(mean=(0.5,), std=(0.3,), pad=pad)
    check(scheme=scheme, clients=[View(rows, index, pixels) for index in owned])


@pytest.mark.parametrize("scheme", ["smofi", "psl", "sglr", cl.SFLV2(order="step")], ids=str)
def test_a_client_lost_from_a_stack(scheme: Any) -> None:
    """One is silent from its second step on, another after its last; the rest of their stack goes on."""
    faults = [Fault("drop", 1, 2, 1), Fault("drop", 2, 0, -1)]

    def disturbed(backend: str) -> tuple[cl.Run, list[cl.Round]]:
        plain = rounds(backend, scheme=scheme)
        cohort = FaultyCohort(plain.setup.cohort, faults)
        run = cl.Run(model(), dataclasses.replace(plain.setup, cohort=cohort), plain.state, None)
        done = played(run)
        assert cohort.unfired == [] and [record.lost for record in done[1]] == [1, 1]
        return done

    assert apart(disturbed("stacked"), disturbed("loop")) <= EXACT


@pytest.mark.parametrize("scheme", SCHEMES)
def test_float32_stacked(scheme: str) -> None:
    """At a rate gentle enough for rounding not to grow."""
    gentle = cl.SGD(lr=0.01, momentum=0.9, weight_decay=0.01)
    single: dict[str, Any] = {"make": lambda: model(torch.float32), "clients": images(dtype=torch.float32)}
    one, other = (
        played(rounds(how, scheme=scheme, optimizer=gentle, rounds=1, **single)) for how in ("stacked", "loop")
    )
    assert difference(one[0].model, other[0].model) <= 1e-5
    losses = ([record.train_loss for record in records] for _, records in (one, other))
    assert next(losses) == pytest.approx(next(losses), abs=1e-5)


@pytest.mark.parametrize("scheme", ["smofi", "sglr", "fedavg"])
@pytest.mark.parametrize(("size", "keep"), [(2, 1), (3, 32)])
def test_small_stacks(monkeypatch: pytest.MonkeyPatch, scheme: str, size: int, keep: int) -> None:
    """Stacks of two or three rows, of neighbours or not, made anew at every step or kept."""
    monkeypatch.setattr(backend, "SIZE", size)
    monkeypatch.setattr(stacked, "KEEP", keep)
    check(scheme=scheme)


class Watched(nn.Module):
    """A block that counts how often it is called."""

    calls: ClassVar[int] = 0

    def forward(self, x: Tensor) -> Tensor:
        Watched.calls += 1
        return x


@pytest.mark.parametrize("scheme", ["smofi", "sglr"])
@pytest.mark.parametrize("side", [0, 1])
def test_stacked_means_fewer_calls(scheme: str, side: int) -> None:
    """Five clients with three full batches each: in the loop a call for each step, stacked one for all clients."""

    def make() -> nn.Module:
        made = list(model())
        made[side] = nn.Sequential(made[side], Watched())
        return nn.Sequential(*made)

    counts = []
    for how in ("loop", "stacked"):
        run = rounds(how, make=make, clients=images([12] * 5), scheme=scheme, rounds=1)
        Watched.calls = 0
        next(run)
        counts.append(Watched.calls)
    assert counts == [15, 3]


# ---- Threads -----------------------------------------------------------------------------------------------------


def bits(run: cl.Run) -> list[Any]:
    """Everything a run ends with, seconds left out."""
    records = [dataclasses.asdict(dataclasses.replace(record, seconds=0.0)) for record in played(run)[1]]
    states = [one.state_dict() for one in (run.model, *run.clients)]
    return [records, [{name: tensor.numpy().tobytes() for name, tensor in state.items()} for state in states]]


@pytest.mark.parametrize("how", ["loop", "stacked"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_threads_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch, scheme: str, how: str) -> None:
    """The first step has more stacks than threads, the last has one client left."""
    monkeypatch.setattr(backend, "SIZE", 2)
    more: dict[str, Any] = {
        "scheme": scheme,
        "make": lambda: model(torch.float32),
        "clients": images(dtype=torch.float32),
    }
    one = bits(rounds(how, 1, **more))
    for threads in (2, 3):
        run = rounds(how, threads, **more)
        assert run.setup.backend.workers.n == threads
        assert bits(run) == one


@pytest.mark.parametrize("how", ["loop", "stacked"])
def test_threads_that_have_to_wait_for_their_first_work(how: str) -> None:
    """Full batches all go into one stack, which needs no thread; the last ones, of unequal size, go into several."""
    alike: dict[str, Any] = {"clients": images((8, 9, 10, 11)), "scheme": "smofi"}
    assert bits(rounds(how, 3, **alike)) == bits(rounds(how, 1, **alike))


class Remembering(nn.Module):
    """A block that keeps what it saw last, graph and all, as many do to be looked at later."""

    seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x * 1
        return x


@pytest.mark.parametrize("how", ["loop", "stacked"])
def test_threads_and_a_block_that_keeps_its_last_activations(how: str) -> None:
    """The first rounds have one client with a full batch, later ones have two."""

    def make() -> nn.Module:
        front, *back = model()
        return nn.Sequential(nn.Sequential(front, Remembering()), Remembering(), *back)

    more: dict[str, Any] = {
        "make": make,
        "clients": images((9, 3, 9, 3, 9)),
        "participation": 2,
        "seed": 3,
        "last_batch": "drop",
    }
    one, two = (rounds(how, threads, rounds=5, **more) for threads in (1, 2))
    assert bits(two) == bits(one)
    assert [record.participants for record in rounds(how, rounds=5, **more)][:3] == [1, 1, 2]


@pytest.mark.parametrize(
    ("scheme", "local", "optimizer"),
    [
        ("smofi", None, "adam"),
        ("smofi", cl.FedNAR(max_norm=0.7), "sgd"),
        ("sflv1", cl.FedProx(mu=0.3), "nag"),
        ("psl", None, "adamw"),
        ("cyclesfl", cl.FedNAR(max_norm=0.7, norm="half"), "sgd"),
        (cl.SMoFi(adaptive=True, fuse_clients=True), None, "sgd"),
    ],
    ids=str,
)
def test_long_vectors_in_parts_by_threads(
    monkeypatch: pytest.MonkeyPatch, scheme: Any, local: Any, optimizer: str
) -> None:
    """Vectors of several parts: weights and losses are the bits of the undivided ones, on any number of threads."""

    def make() -> nn.Module:
        torch.default_generator.manual_seed(6)
        made = nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(36, 40), nn.Tanh()), nn.Linear(40, 60))
        return made.append(nn.Sequential(nn.Tanh(), nn.Linear(60, 3))).double()

    more: dict[str, Any] = {"make": make, "scheme": scheme, "local": local, "optimizer": OPTIMIZERS[optimizer][0]}
    whole = rounds("loop", 1, **more)
    records, states = bits(whole)
    monkeypatch.setattr(workers, "PART", 256)  # the halves have 1480 and 2643 numbers
    assert len(list(workers.Workers().parts(1480))) == 6
    one, *others = (bits(rounds("loop", threads, **more)) for threads in (1, 2, 3))
    assert others == [one, one]
    assert one[1] == states
    assert [record["train_loss"] for record in one[0]] == [record["train_loss"] for record in records]
    for record, undivided in zip(one[0], records, strict=True):
        assert record["drift_client"] == pytest.approx(undivided["drift_client"], rel=1e-12)
        assert record["drift_server"] == pytest.approx(undivided["drift_server"], rel=1e-12)


# ---- One backward pass through both halves -----------------------------------------------------------------------


def in_place() -> nn.Sequential:
    """The server's first block writes into the very tensor that the front's last block needs for its backward."""
    made = model(batchnorm=False)
    return nn.Sequential(made[0], nn.ReLU(inplace=True), made[1], made[2])


def bare() -> nn.Sequential:
    """A front without parameters."""
    return nn.Sequential(nn.AvgPool2d(3, 1, padding=1), *model())


HALVES: dict[str, tuple[Make, Mapping[str, Any]]] = {
    "batchnorm": (model, {}),
    "no batchnorm": (lambda: model(batchnorm=False), {}),
    "in place": (in_place, {}),
    "bare front": (bare, {}),
    "noise": (model, {"noise": 0.2}),
    "joint norm": (model, {"local": cl.FedNAR(max_norm=0.7)}),
    "last block": (model, {"cut": 1}),
}


def split(run: cl.Run) -> cl.Run:
    """The same run with the graph cut at the cut: smashed data detached, their gradient sent back."""
    assert isinstance(run.setup.cohort, LocalCohort) and run.setup.cohort.attached
    run.setup.cohort.attached = False
    return run


@pytest.mark.parametrize("halves", HALVES)
@pytest.mark.parametrize("scheme", FLOWING)
def test_one_backward_pass_has_the_bits_of_two(scheme: str, halves: str) -> None:
    make, more = HALVES[halves]
    joined, parted = (rounds("loop", make=make, scheme=scheme, rounds=1, **more) for _ in range(2))
    assert bits(joined) == bits(split(parted))


@pytest.mark.parametrize("halves", HALVES)
def test_one_backward_pass_through_a_stack(halves: str) -> None:
    """Stacked, with one pass or two: equal to the loop, in place and all."""
    make, more = HALVES[halves]
    loop, joined, parted = (rounds(how, make=make, **more) for how in ("loop", "stacked", "stacked"))
    assert joined.setup.backend.words == STACKED
    ends = [played(run) for run in (loop, joined, split(parted))]
    assert apart(ends[0], ends[1]) <= EXACT
    assert apart(ends[0], ends[2]) <= EXACT


def test_who_lets_gradients_flow() -> None:
    """Schemes that give each client its own gradient, as it is; not those that average it or take it twice."""
    made: dict[str, Scheme] = {name: build(SCHEMES, name) for name in SCHEMES}
    assert [name for name, scheme in made.items() if scheme.traits.own_gradient] == sorted(
        FLOWING, key=list(SCHEMES).index
    )
    for name in SCHEMES:
        cohort = rounds("loop", scheme=name).setup.cohort
        assert isinstance(cohort, LocalCohort) and cohort.attached == (name in FLOWING)


# ---- Models that cannot be stacked -------------------------------------------------------------------------------


class Running(nn.Module):
    """Keeps a running mean, and replaces it by a new tensor at every step."""

    mean: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        return x - self.mean


class Branching(nn.Module):
    """Does one thing or the other, as the data are."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x if x.mean() > 0.05 else x / 2


class Shuffling(nn.Module):
    """Mixes up the features."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, torch.randperm(x.shape[1])]


class Attending(nn.Module):
    """Attention over the features as a sequence, with dropout inside and behind it, whose masks lie in memory in
    different ways."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(2, 2, 4, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.stack([x, x.cos()], dim=2)).mean(dim=2)


class Recurrent(nn.Module):
    """An LSTM over the features as a sequence."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, features, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lstm(x[:, :, None])[0]
        return out[:, -1]


ODD: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "shuffle": (lambda features: Shuffling(), "draws its random numbers for all clients in another way than for one"),
    "lstm": (Recurrent, ""),
    "buffer": (Running, "Running replaces its buffer 'mean' in its forward"),
    "branch": (lambda features: Branching(), "data-dependent control flow"),
}


DRAWING: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "dropout": (lambda features: nn.Dropout(0.4), ""),
    "rain": (lambda features: Rain(), ""),
    "attention": (Attending, ""),
}


def odd(kind: str, front: bool, back: bool) -> Make:
    """A model with an odd block in its front, its back, or both."""

    def make() -> nn.Module:
        torch.default_generator.manual_seed(9)
        block = (ODD[kind] if kind in ODD else DRAWING[kind])[0]
        made = nn.Sequential(
            nn.Sequential(nn.Linear(5, 6), nn.Tanh(), block(6) if front else nn.Identity()),
            nn.Sequential(nn.Linear(6, 4), block(4) if back else nn.Identity(), nn.Linear(4, 3)),
        )
        return made.double()

    return make


@pytest.mark.parametrize("scheme", ["smofi", "cyclesfl"])
@pytest.mark.parametrize(("front", "back"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("kind", ODD)
def test_what_cannot_be_stacked_trains_all_the_same(kind: str, front: bool, back: bool, scheme: str) -> None:
    """With one half, the other is stacked nonetheless; the words say which is not, and why."""
    more: dict[str, Any] = {"make": odd(kind, front, back), "clients": small_clients(), "scheme": scheme}
    run = rounds("stacked", **more)
    words = run.setup.backend.words
    assert words.startswith("loop (not stackable: " if front and back else "stacked (as asked), 1 thread; the ")
    if not (front and back):
        assert f"the {'client' if front else 'server'} half is not stacked: " in words
        assert f"the {'server' if front else 'client'} half" not in words
    assert ODD[kind][1] in words
    assert apart(played(run), played(rounds("loop", **more))) <= EXACT
    auto = rounds("auto", **more).setup.backend
    assert auto.words.startswith("loop (not stackable: ") and ODD[kind][1] in auto.words


@pytest.mark.parametrize("kind", ODD)
def test_what_cannot_be_stacked_on_several_threads(kind: str) -> None:
    for how in ("loop", "stacked"):
        for front, back in ((True, False), (False, True), (True, True)):
            more: dict[str, Any] = {"make": odd(kind, front, back), "clients": small_clients()}
            one, three = (rounds(how, threads, rounds=1, **more) for threads in (1, 3))
            assert three.setup.backend.workers.n == 3
            assert bits(one) == bits(three)


@pytest.mark.parametrize("scheme", ["smofi", "sflv2"])
@pytest.mark.parametrize("how", ["auto", "loop", "stacked"])
def test_dropout_draws_the_same_on_any_number_of_threads(how: str, scheme: str) -> None:
    more: dict[str, Any] = {"make": odd("dropout", True, True), "clients": small_clients(), "scheme": scheme}
    run = rounds(how, 4, **more)
    assert run.setup.backend.workers.n == 4 and run.setup.backend.randomness == "own"
    first = bits(run)
    assert bits(rounds(how, 4, **more)) == bits(rounds(how, 1, **more)) == first
    assert bits(rounds(how, 4, seed=1, **more)) != first


@pytest.mark.parametrize("scheme", ["smofi", "mergesfl", "psl", "cyclesfl"])
@pytest.mark.parametrize("kind", DRAWING)
def test_a_stack_draws_what_each_client_draws_alone(kind: str, scheme: str) -> None:
    more: dict[str, Any] = {"make": odd(kind, True, True), "clients": small_clients(), "scheme": scheme}
    run, alone = rounds("auto", 3, rounds=1, **more), rounds("loop", 1, rounds=1, **more)
    assert run.setup.backend.words.startswith("stacked (the model is small)")
    assert apart(played(run), played(alone)) <= EXACT


class Rain(nn.Module):
    """Noise by a function that takes no generator."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.rand(x.shape, dtype=x.dtype)


class LateRain(Rain):
    """The same, but only after a while."""

    seen: ClassVar[int] = 0

    def forward(self, x: Tensor) -> Tensor:
        LateRain.seen += 1
        return super().forward(x) if LateRain.seen > 30 else x


def raining(kind: type[nn.Module]) -> Callable[[], nn.Sequential]:
    def make() -> nn.Sequential:
        torch.default_generator.manual_seed(2)
        front = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), kind())
        return nn.Sequential(front, nn.Sequential(nn.Linear(6, 4), kind()), nn.Linear(4, 3)).double()

    return make


@pytest.mark.parametrize("how", ["auto", "loop", "stacked"])
def test_what_seems_to_draw_from_the_global_generator_runs_in_threads_and_again(how: str) -> None:
    more: dict[str, Any] = {"make": raining(Rain), "clients": small_clients()}
    run = rounds(how, 4, **more)
    assert run.setup.backend.workers.n == 4 and run.setup.backend.randomness == "own"
    first = bits(run)
    assert bits(rounds(how, 4, **more)) == bits(rounds(how, 1, **more)) == first
    assert bits(rounds(how, 4, seed=1, **more)) != first


def test_a_model_that_begins_to_draw_is_warned_of() -> None:
    LateRain.seen = 0
    with pytest.warns(UserWarning, match="cannot be repeated to the bit"):
        played(rounds("loop", 1, make=raining(LateRain), clients=small_clients()))


def test_batchnorm_with_a_cumulative_average_is_not_stacked() -> None:
    """With momentum=None, BatchNorm reads its counter as a Python number."""
    make = lambda: small_model(bn_momentum=None)  # noqa: E731
    more: dict[str, Any] = {"make": make, "clients": small_clients((5, 9, 14)), "cut": 1, "last_batch": "drop"}
    run = rounds("stacked", **more)
    assert run.setup.backend.name == "loop" and "not stackable" in run.setup.backend.words
    assert apart(played(run), played(rounds("loop", **more))) <= EXACT


def test_the_callers_model_is_left_alone() -> None:
    """Choosing a backend tries the model; the caller's has neither moved nor lost its mode, its grads or its hooks."""
    mine = model().eval()
    before = copy.deepcopy(mine)
    for how in ("auto", "loop", "stacked"):
        cl.rounds(mine, images(), backend=how, **BASE)
    assert difference(mine, before) == 0
    assert not any(module.training for module in mine.modules())
    assert all(type(p) is nn.Parameter and p.is_leaf and p.grad is None for p in mine.parameters())
