"""A cut changes nothing: outputs, gradients, statistics and training are those of the uncut model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import cutlayer as cl
from cutlayer.nn.cut import Layout, blocks_of, cut_range
from cutlayer.nn.flat import Rows, half
from cutlayer.nn.gradients import differentiate

quick = settings(max_examples=40, deadline=None, database=None, derandomize=True)
SGD = cl.SGD(lr=0.1, momentum=0.9, weight_decay=0.05)
Data = list[tuple[Tensor, Tensor]]


class Residual(nn.Module):
    """One weight used twice inside one block."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)
        self.down.weight = self.up.weight

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Last(nn.Module):
    """A recurrent block that hands on the last position only."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]


class Assigning(nn.Module):
    """A block that assigns its buffers anew instead of writing into them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count = self.count + 1
            self.mean = 0.8 * self.mean + 0.2 * x.detach().mean(0)
        return x - self.mean


class Blocks(nn.Module):
    """A model that is no nn.Sequential; `twist` makes its forward something else than its blocks."""

    def __init__(self, twist: float = 1.0, stray: bool = False) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)
        self.twist, self.scale = twist, nn.Parameter(torch.ones(1)) if stray else None

    @property
    def blocks(self) -> list[nn.Module]:
        return [self.stem, self.body, self.head]

    def forward(self, x: Tensor) -> Tensor:
        return self.twist * self.head(self.body(self.stem(x)))


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


FLAT = {
    "linear": lambda: nn.Linear(4, 4),
    "norm": lambda: nn.BatchNorm1d(4),
    "frozen norm": lambda: frozen(nn.BatchNorm1d(4)),
    "frozen": lambda: frozen(nn.Linear(4, 4)),
    "gelu": nn.GELU,
    "in place": lambda: nn.LeakyReLU(0.3, inplace=True),
    "residual": Residual,
    "assigning": Assigning,
}
IMAGE = {
    "conv": lambda: nn.Conv2d(2, 2, 3, padding=1),
    "norm": lambda: nn.BatchNorm2d(2),
    "frozen": lambda: frozen(nn.Conv2d(2, 2, 3, padding=1)),
    "relu": nn.ReLU,
    "pair": lambda: nn.Sequential(nn.Conv2d(2, 2, 1, bias=False), nn.BatchNorm2d(2)),
}


@st.composite
def models(draw: st.DrawFn) -> tuple[nn.Sequential, tuple[int, ...]]:
    """A small model in float64 and the shape of one input; sometimes two of its blocks share a weight."""
    torch.manual_seed(draw(st.integers(0, 99)))
    image = draw(st.booleans())
    table = IMAGE if image else FLAT
    names = draw(st.lists(st.sampled_from(sorted(table)), min_size=1, max_size=4))
    # In-place work right after in-place work, or on the very input, is not part of this property.
    names = [name for name, before in zip(names, ["in place", *names], strict=False) if {name, before} != {"in place"}]
    blocks = [table[name]() for name in names or sorted(table)[:1]]
    tie = None if image else draw(st.sampled_from([None, "weight", "module"]))
    if tie:
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        at = draw(st.integers(0, len(blocks)))
        blocks.insert(at, first)
        blocks.insert(draw(st.integers(at + 1, len(blocks))), first if tie == "module" else second)
    head = nn.Sequential(nn.Flatten(), nn.Linear(18, 4)) if image else nn.Linear(4, 4)
    return nn.Sequential(*blocks, head).double(), (2, 3, 3) if image else (4,)


def cuts(model: nn.Module) -> list[int]:
    """The cuts with nothing shared across them."""
    blocks = blocks_of(model)
    held = [{id(t) for t in (*b.parameters(), *b.buffers())} for b in blocks]
    return [c for c in range(len(blocks) - 1) if not set().union(*held[: c + 1]) & set().union(*held[c + 1 :])]


def data(shape: Sequence[int], sizes: Sequence[int] = (8,)) -> Data:
    return [(torch.randn(n, *shape, dtype=torch.float64), torch.randint(4, (n,))) for n in sizes]


def uncut(model: nn.Module, clients: Data, rounds: int = 2, batch: int = 4) -> dict[str, Tensor]:
    """Federated averaging of the whole model, one epoch in order, each client with its own copy and torch.optim."""
    state = copy.deepcopy(model.state_dict())
    total = sum(len(x) for x, _ in clients)
    for _ in range(rounds):
        ends = []
        for xs, ys in clients:
            twin = copy.deepcopy(model).train()
            twin.load_state_dict(state)
            trainable = [p for p in twin.parameters() if p.requires_grad]
            optimizer = torch.optim.SGD(trainable, SGD.lr, SGD.momentum, weight_decay=SGD.weight_decay)
            for at in range(0, len(xs) - batch + 1, batch):
                optimizer.zero_grad()
                functional.cross_entropy(twin(xs[at : at + batch].clone()), ys[at : at + batch]).backward()
                optimizer.step()
            ends.append({name: (t, len(xs) / total) for name, t in twin.state_dict().items()})
        for name, old in state.items():
            whole = not old.is_floating_point()
            values = [end[name] for end in ends]
            state[name] = torch.stack([t for t, _ in values]).amax(0) if whole else sum(t * p for t, p in values)
    return state


def check(model: nn.Module, clients: Data, cut: Any, **more: Any) -> nn.Module:
    """Training with a cut ends where the uncut model's training ends; gives back the trained model."""
    arguments = {"scheme": "fedavg", "optimizer": SGD, "rounds": 2, "batch_size": 4, "local_epochs": 1} | more
    trained = cl.train(model, clients, cut=cut, shuffle=False, **arguments).model
    expected = uncut(model, clients)
    assert list(trained.state_dict()) == list(expected)
    for name, tensor in trained.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
    return trained


@quick
@given(models())
def test_joined_halves_are_the_model(given: tuple[nn.Sequential, tuple[int, ...]]) -> None:
    """The same names, outputs and statistics, training or not; and the halves are copies."""
    model, shape = given
    x = data(shape)[0][0]
    before = copy.deepcopy(model.state_dict())
    for cut in cuts(model):
        twin = copy.deepcopy(model)
        front, back = cl.halves(model, cut)
        assert (len(front), len(back)) == (cut + 1, len(model) - cut - 1)
        again = cl.joined(front, back)
        for mode in (True, False):
            assert torch.equal(again.train(mode)(x.clone()), twin.train(mode)(x.clone()))
        for name, tensor in twin.state_dict().items():
            assert torch.equal(again.state_dict()[name], tensor)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@quick
@given(models())
def test_gradients_across_the_cut(given: tuple[nn.Sequential, tuple[int, ...]]) -> None:
    """Flat rows, detached at the cut: the halves' weights, gradients and buffers laid end to end are the model's."""
    model, shape = given
    x, y = data(shape)[0]
    n = len(model)
    whole = half(model, range(n), "cpu")
    twin = copy.deepcopy(model).train()
    functional.cross_entropy(twin(x.clone()), y).backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in twin.parameters() if p.requires_grad]
    kernels = [p.ndim == 4 for p in twin.parameters() if p.requires_grad]  # these lie channels last
    turned = [g.permute(0, 2, 3, 1) if last else g for g, last in zip(gradients, kernels, strict=True)]
    flat = torch.cat([g.reshape(-1) for g in turned])
    for cut in cuts(model):
        front, back = (half(model, range(*ends), "cpu") for ends in ((0, cut + 1), (cut + 1, n)))
        assert whole.ends[cut] == front.sizes
        starts = front.read(), back.read()
        assert all(
            torch.equal(torch.cat(pair), v) for pair, v in zip(zip(*starts, strict=True), whole.read(), strict=True)
        )
        rows = [Rows(h, 2) for h in (front, back)]
        for r, start in zip(rows, starts, strict=True):
            r.fill(start, 2)
        a = rows[0].forward(1, x.clone())
        leaf = a.detach().requires_grad_()
        loss = functional.cross_entropy(rows[1].forward(1, leaf.clone()), y)
        (grad,) = differentiate(loss, [rows[1].views[1]], inputs=[leaf])
        differentiate(a, [rows[0].views[1]], grad)
        torch.testing.assert_close(torch.cat([r.g[1] for r in rows]), flat, rtol=1e-12, atol=1e-12)
        assert not any(r.g[0].any() for r in rows)
        after = half(twin, range(n), "cpu").read()
        for kind in ("b", "i"):
            stepped = torch.cat([getattr(r, kind)[1] for r in rows])
            torch.testing.assert_close(stepped, getattr(after, kind), rtol=1e-12, atol=1e-12)
            assert torch.equal(torch.cat([getattr(r, kind)[0] for r in rows]), getattr(whole.read(), kind))


@settings(quick, max_examples=12)
@given(models())
def test_training_equals_the_uncut_model(given: tuple[nn.Sequential, tuple[int, ...]]) -> None:
    """Two rounds of three unequal clients, with momentum and weight decay, at every cut; frozen layers stay."""
    model, shape = given
    clients = data(shape, (4, 9, 13))
    for cut in cuts(model):
        trained = check(model, clients, cut)
        momentum = cl.train(model, clients, cut=cut, optimizer=SGD, update=cl.FedAvgM(0.5), rounds=2, batch_size=9)
        for other in (trained, momentum.model):
            for p, old in zip(other.parameters(), model.parameters(), strict=True):
                assert p.requires_grad == old.requires_grad
                assert p.requires_grad or torch.equal(p, old)


@quick
@given(models())
def test_what_both_sides_would_hold_is_refused_by_name(given: tuple[nn.Sequential, tuple[int, ...]]) -> None:
    model, shape = given
    clients, good = data(shape), cuts(model)
    names = [name for name, _ in model.named_parameters()]
    for cut in set(range(len(model) - 1)) - set(good):
        for refused in (lambda c=cut: cl.halves(model, c), lambda c=cut: cl.train(model, clients, cut=(c, c))):
            with pytest.raises(cl.ContractError, match="shared by blocks") as error:
                refused()
            assert any(f"'{name}'" in str(error.value) for name in names)
    if len(good) < len(model) - 1:
        with pytest.raises(cl.ContractError, match="shared by blocks"):
            cl.train(model, clients, cut=(0, len(model) - 2))


def test_a_shared_buffer_is_refused_too() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[2].running_mean = model[0].running_mean
    with pytest.raises(cl.ContractError, match=r"'0.running_mean' is shared by blocks 0 and 2"):
        cl.halves(model, 1)


def test_both_sides_may_have_constants() -> None:
    """A frozen parameter, and a buffer that is not part of the state."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)).double()
    model[2].weight = model[0].weight
    model[0].weight.requires_grad_(False)
    table = torch.ones(4, dtype=torch.float64)
    for block in (model[0], model[2]):
        block.register_buffer("table", table, persistent=False)
    before = model[0].weight.clone()
    trained = cl.train(model, data((4,)), cut=1, batch_size=4, rounds=1, local_epochs=1).model
    assert isinstance(trained, nn.Sequential) and trained[2].weight is trained[0].weight
    assert torch.equal(trained[0].weight, before) and not torch.equal(trained[2].bias, model[2].bias)


class Counting(nn.Module):
    """Writes into a buffer that is not part of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x


def test_a_forward_leaves_constants_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Counting(), nn.Linear(4, 4)).double()
    with pytest.raises(cl.ContractError, match=r"its forward changes the buffer = 'Counting.seen': expected a persist"):
        cl.train(model, data((4,)), cut=0, batch_size=4)


@pytest.mark.parametrize("cut", [-1, 2, 3, True, 1.0, "1", None, (1, 0), (-1, 1), (0, 2), (0, 1.0), (0,), (0, 1, 1)])
def test_a_cut_out_of_range_is_refused(cut: Any) -> None:
    """Of three blocks the server keeps at least the last."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    assert [cut_range(c, Layout(3)) for c in (0, 1, (0, 1))] == [(0, 0), (1, 1), (0, 1)]
    with pytest.raises(cl.ContractError, match=r"^cut = "):
        cl.train(model, data((4,)), cut=cut, batch_size=4)


@pytest.mark.parametrize("cut", [0, 1, (0, 1)])
def test_a_module_with_blocks(cut: Any) -> None:
    """It is cut like a Sequential, and the result is a module of the same type."""
    model = Blocks().double()
    trained = check(model, data((4,), (4, 9)), cut)
    assert type(trained) is Blocks
    assert all(a is not b for a, b in zip(trained.blocks, model.blocks, strict=True))


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (Blocks(stray=True), "scale"),
        (Blocks(twist=2.0), "forward is not its blocks"),
        (nn.Linear(4, 4), "blocks"),
        (nn.Sequential(nn.Linear(4, 4)), "at least 2 blocks"),
        (nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4)), "lazy"),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double()), "dtype"),
        (frozen(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))), "trainable"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_models_that_cannot_be_cut_are_refused(model: nn.Module, word: str) -> None:
    with pytest.raises(cl.ContractError, match=word):
        cl.train(model, data((4,)), cut=0, batch_size=4)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.SiLU])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_block_may_work_in_place(activation: type[nn.Module], at: int) -> None:
    """First on the client, last on the client, first on the server: as if it worked on a copy."""
    ends = []
    for in_place in (True, False):
        torch.manual_seed(1)
        blocks = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)]
        model = nn.Sequential(*blocks[:at], activation(inplace=in_place), *blocks[at:]).double()
        clients = data((4,), (4, 9))
        kept = copy.deepcopy(clients)
        ends += [check(model, clients, cut, test=clients[0]).state_dict() for cut in (0, 1, 2)]
        assert all(torch.equal(x, x2) for (x, _), (x2, _) in zip(clients, kept, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(ends[0].values(), ends[3].values(), strict=True))


@pytest.mark.parametrize("middle", [nn.Tanh, lambda: nn.BatchNorm1d(4)], ids=["tanh", "norm"])
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_block_may_assign_its_buffers(cut: int, middle: Callable[[], nn.Module]) -> None:
    """Counters by their maximum, statistics by their mean, on either side of the cut, beside BatchNorm or not."""
    model = nn.Sequential(Assigning(), nn.Linear(4, 4, bias=False), middle(), Assigning()).double()
    trained = check(model, data((4,), (4, 9, 13)), cut)
    assert [int(trained[at].count) for at in (0, 3)] == [6, 6]  # three steps of the largest client, twice
    assert all(bool(trained[at].mean.all()) for at in (0, 3))
    assert int(model[0].count) == 0


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_recurrent_block(cut: int) -> None:
    """Tokens in, an embedding, an LSTM on either side of the cut."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4), nn.Tanh(), Last(), nn.Linear(4, 4)).double()
    clients = [(torch.randint(6, (n, 5)), torch.randint(4, (n,))) for n in (4, 9)]
    check(model, clients, cut)
