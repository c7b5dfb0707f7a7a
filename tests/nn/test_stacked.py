"""Stacks of rows in one graph, which rows go into one, what cannot; and how a run chooses its backend."""

from __future__ import annotations

import random
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cutlayer as cl
from cutlayer.core.threads import Workers
from cutlayer.data.rows import StoredRows as Stored
from cutlayer.data.source import Source, source
from cutlayer.data.transform import Pixels, Values
from cutlayer.data.views import View, take_together
from cutlayer.engine import backend
from cutlayer.experiment import config as text
from cutlayer.experiment.experiment import Experiment
from cutlayer.nn import stacked as stack
from cutlayer.nn.flat import Rows, half
from cutlayer.nn.gradients import differentiate
from cutlayer.nn.stacked import KEEP, SIZE, Stack, Stacks, each_loss, stacked, together, unstackable
from tests.experiment.test_resume import BASE, finish, interrupted, sha

CPU = torch.device("cpu")


# ---- Stacks ------------------------------------------------------------------------------------------------------


def network() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 4)).double()


def filled(n: int) -> Rows:
    """n different copies of the network."""
    whole = half(network(), range(4), CPU)
    rows = Rows(whole, n)
    rows.fill(whole.read(), n)
    rows.w *= torch.linspace(0.5, 1.5, n, dtype=torch.float64)[:, None]
    rows.g.fill_(7.0)
    return rows


@pytest.mark.parametrize("which", [[0, 1, 2], [2, 3], [4]], ids=str)
def test_a_stack_computes_what_its_rows_would(which: list[int]) -> None:
    """Outputs, gradients in the rows' own places, BatchNorm's statistics and counters; again after the rows moved.
    Rows outside the stack are left alone."""
    rows, alone = filled(5), filled(5)
    made = Stack(rows, which)
    torch.manual_seed(6)
    for _ in range(2):
        x = torch.randn(len(which), 6, 2, 6, 6, dtype=torch.float64)
        with torch.enable_grad():
            out = made.forward(x)
            differentiate(out.sin().sum(), [made.views])
        for place, j in enumerate(which):
            with torch.enable_grad():
                one = alone.forward(j, x[place])
                differentiate(one.sin().sum(), [alone.views[j]])
            torch.testing.assert_close(out[place], one, rtol=1e-12, atol=1e-12)
        for mine, theirs in ((rows.g, alone.g), (rows.b, alone.b), (rows.i, alone.i), (rows.w, alone.w)):
            torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)
        for some in (rows, alone):  # a step; and of a row that is not in the stack too
            some.w -= 0.1 * some.g
            some.b[:, 0] += 0.5
    outside = [j for j in range(5) if j not in which]
    assert bool((rows.g[outside] == 7).all()) and bool((rows.i[outside] == 0).all())
    assert bool((rows.i[which] == 2).all())


def test_rows_side_by_side_are_used_where_they_lie() -> None:
    rows = filled(4)
    made = Stack(rows, [1, 2]).views
    assert made.w[0].data_ptr() == rows.w[1].data_ptr() and made.g[0].data_ptr() == rows.g[1].data_ptr()
    with pytest.raises(AssertionError, match="no neighbours"):
        Stack(rows, [1, 3])


def test_stacks_are_kept_and_forgotten() -> None:
    """The newest KEEP of them."""
    stacks = Stacks(filled(KEEP + 3))
    first = stacks.of([0, 1])
    assert stacks.of((0, 1)) is first
    for j in range(KEEP):
        stacks.of([j, j + 1, j + 2])
    assert stacks.of([0, 1]) is not first


def test_stacks_are_made_by_several_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """More sets of rows than are kept, asked for by threads that interrupt each other at every turn."""
    monkeypatch.setattr(stack, "Stack", lambda rows, which: list(which))  # quick to make, so that threads often meet
    stacks, pool, interval = Stacks(filled(1)), Workers(4), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        wanted: list[Any] = [[j % 79, 7 * j % 83] for j in range(200_000)]
        assert pool.map(stacks.of, wanted) == wanted
    finally:
        sys.setswitchinterval(interval)


def test_together_by_neighbourhood_and_batch() -> None:
    assert together([], [], 3) == []
    assert together([4, 0, 2], [8, 8, 5], 1) == [[0], [1], [2]]
    assert together([0, 1, 2, 3], [8, 8, 8, 8], 2) == [[0, 1], [2, 3]]
    assert together([0, 1, 2, 3], [8, 8, 5, 5], 4) == [[0, 1], [2, 3]]
    assert together([0, 1, 3, 4], [8, 8, 8, 8], 9) == [[0, 1], [2, 3]]
    assert together([3, 1, 0], [8, 8, 8], 2) == [[2, 1], [0]]


def test_together_puts_everyone_in_one_stack_each() -> None:
    dice = random.Random(1)
    for _ in range(200):
        n, size = dice.randint(0, 40), dice.randint(1, 12)
        rows, samples = dice.sample(range(50), n), [dice.choice([4, 4, 4, 3, 1]) for _ in range(n)]
        groups = together(rows, samples, size)
        assert sorted(place for group in groups for place in group) == list(range(n))
        for group in groups:
            assert 0 < len(group) <= size and len({samples[place] for place in group}) == 1
            if size > 1:
                assert len({rows[place] // size for place in group}) == 1
                first = rows[group[0]]
                assert [rows[place] for place in group] == list(range(first, first + len(group)))


def test_who_goes_together_does_not_depend_on_who_is_there() -> None:
    """As others finish, those who stay keep their stack: its size and order decide the bits."""
    everybody = together(range(12), [4] * 12, 5)
    fewer = together([0, 1, 5, 6, 7, 11], [4] * 6, 5)
    assert everybody == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]] and fewer == [[0, 1], [2, 3, 4], [5]]


def test_batches_are_stacked_by_name() -> None:
    x, y = torch.arange(6.0).view(2, 3), torch.ones(2, 1)
    assert torch.equal(stacked([x, x + 1]), torch.stack([x, x + 1]))  # type: ignore[arg-type]
    both = stacked([{"x": x, "y": y}, {"x": x + 1, "y": y + 1}])
    assert isinstance(both, dict) and list(both) == ["x", "y"]
    assert torch.equal(both["x"], torch.stack([x, x + 1])) and torch.equal(both["y"], torch.stack([y, y + 1]))


def label_smoothing(out: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(out, y, label_smoothing=0.1)


@pytest.mark.parametrize("shape", [(), (5,)], ids=["a label", "a sequence of labels"])
@pytest.mark.parametrize("loss", [functional.cross_entropy, label_smoothing, nn.CrossEntropyLoss()])
def test_each_loss_is_the_loss_of_each(loss: Any, shape: tuple[int, ...]) -> None:
    """And has its gradient."""
    torch.manual_seed(7)
    out = torch.randn(3, 6, 4, *shape, dtype=torch.float64, requires_grad=True)
    y = torch.randint(0, 4, (3, 6, *shape))
    losses = each_loss(loss, out, y)
    expected = torch.stack([loss(o, t) for o, t in zip(out, y, strict=True)])
    torch.testing.assert_close(losses, expected, rtol=1e-13, atol=1e-13)
    mine, theirs = (torch.autograd.grad(every.sum(), out)[0] for every in (losses, expected))
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


def test_each_loss_of_class_probabilities() -> None:
    out = torch.randn(3, 6, 4, dtype=torch.float64)
    y = torch.rand(3, 6, 4, dtype=torch.float64).softmax(dim=2)
    expected = [functional.cross_entropy(o, t) for o, t in zip(out, y, strict=True)]
    torch.testing.assert_close(each_loss(functional.cross_entropy, out, y), torch.stack(expected))


# ---- What cannot be stacked --------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Computes something else every time."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Failing(nn.Module):
    """Works by itself, and not under vmap."""

    def forward(self, x: Tensor) -> Tensor:
        return x + float(x.detach().numpy().mean())


class Stepping(nn.Module):
    """Replaces its buffer instead of writing into it."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return x


class Shuffling(nn.Module):
    """Mixes up its features."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, torch.randperm(x.shape[1])]


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (nn.Tanh(), None),
        (nn.BatchNorm1d(6), None),
        (nn.LayerNorm(6), None),
        (nn.ReLU(inplace=True), None),
        (nn.Dropout(0.5), None),
        (Shuffling(), "aten::randperm draws its random numbers for all clients in another way than for one"),
        (Stepping(), "Stepping replaces its buffer 'seen' in its forward"),
        (Counting(), "it computes something else under torch.func.vmap"),
        (Failing(), ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_why_a_half_cannot_be_stacked(block: nn.Module, why: str | None) -> None:
    torch.manual_seed(8)
    whole = half(nn.Sequential(nn.Linear(5, 6), block, nn.Linear(6, 3)), range(3), CPU)
    state, x = whole.read(), torch.randn(4, 5)
    given, before = x.clone(), state.clone()
    reason = unstackable(whole, state, x, autocast=False)
    assert reason == why or (why == "" and reason is not None)
    assert torch.equal(x, given) and all(torch.equal(a, b) for a, b in zip(state, before, strict=True))


# ---- Rows read at once -------------------------------------------------------------------------------------------


def stored(features: bool = False) -> Stored:
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (40, 3, 4, 4), dtype=np.uint8)
    return Stored(x.astype(np.float32) if features else x, generator.integers(0, 5, 40))


OWNED = (np.array([3, 1, 4, 15, 9]), np.array([2, 6, 5, 35]), np.array([8, 7, 39, 0, 11, 12]))
WANTED = [np.array([4, 0, 2]), np.array([1, 3, 0]), np.array([5, 5, 1])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transform", [Pixels(), Pixels((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)), Values(3.0, 2.0)], ids=str)
def test_rows_taken_together_are_those_taken_one_by_one(transform: Any, dtype: torch.dtype) -> None:
    rows = stored(isinstance(transform, Values))
    views = [View(rows, index, transform, dtype) for index in OWNED]
    found = take_together(views, WANTED, CPU)
    assert found is not None
    each = [view.take(some, CPU) for view, some in zip(views, WANTED, strict=True)]
    assert torch.equal(found[0], torch.stack([x for x, _ in each])) and found[0].dtype == dtype
    assert torch.equal(found[1], torch.stack([y for _, y in each]))


def test_what_does_not_lie_together_is_not_taken_together() -> None:
    rows, plain, moved = stored(), Pixels(), Pixels(pad=1)
    views: list[Source] = [View(rows, index, plain) for index in OWNED]
    own = source((torch.rand(6, 3, 4, 4), torch.zeros(6, dtype=torch.int64)), torch.float32, "own")
    assert take_together(views, WANTED, CPU) is not None
    for others in (
        [View(rows, index, moved) for index in OWNED],  # changed at random, each at its own address
        [View(rows, index, Pixels(flip=True)) for index in OWNED],
        [*views[:2], View(stored(), OWNED[2], plain)],  # another data set
        [*views[:2], View(rows, OWNED[2], Pixels((0.5,), (0.2,)))],  # another transform
        [*views[:2], own],
        [own, *views[1:]],
        [own, own, own],
    ):
        assert take_together(others, WANTED, CPU) is None


# ---- The choice --------------------------------------------------------------------------------------------------


def mlp(width: int = 6) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))


def chosen(model: nn.Module | None = None, **more: Any) -> backend.Backend:
    clients = [(torch.randn(n, 4), torch.arange(n) % 3) for n in (12, 20, 8)]
    return cl.rounds(model or mlp(), clients, **{"rounds": 1, "batch_size": 4, **more}).setup.backend


def test_auto_stacks_a_small_model_and_loops_over_a_big_one() -> None:
    assert chosen(threads=1).words == "stacked (the model is small), 1 thread"
    assert chosen(threads=1).size == SIZE
    big = chosen(mlp(backend.SMALL_MODEL // 8 + 1), threads=2)
    assert big.words == "loop (the model is not small), 2 threads" and big.size == 1
    long = chosen(mlp(1000), threads=1, batch_size=backend.SMALL_STEP // 7000 + 1, small_client="one_batch")
    assert long.words == "loop (the model is not small), 1 thread"


def test_where_small_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """51 parameters, and 42 multiplications for each of four samples."""
    for limit, value in (("SMALL_MODEL", 51), ("SMALL_STEP", 4 * 42)):
        with monkeypatch.context() as patch:
            patch.setattr(backend, limit, value)
            assert chosen().name == "stacked"
            patch.setattr(backend, limit, value - 1)
            assert chosen().name == "loop"
            assert chosen(backend="stacked").name == "stacked"  # what is asked for is done


@pytest.mark.parametrize("scheme", ["sflv2", "ssl", "cyclessl"])
@pytest.mark.parametrize("asked", ["auto", "loop", "stacked"])
def test_clients_one_after_another_are_looped_over(scheme: str, asked: str) -> None:
    how = chosen(scheme=scheme, backend=asked, threads=1)
    assert how.words == "loop (clients step one after another), 1 thread" and how.size == 1


def test_threads_are_those_asked_for_or_one_per_core() -> None:
    for asked in ("loop", "stacked"):
        assert [chosen(backend=asked, threads=n).workers.n for n in (1, 2, 5)] == [1, 2, 5]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert backend.cores() == 1 and chosen().workers.n == 1
        torch.set_num_threads(2)
        assert chosen().workers.n == backend.cores() <= 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "two"])
def test_threads_must_be_a_whole_number(threads: Any) -> None:
    with pytest.raises(cl.ContractError, match=r"threads = .*: expected a whole number, at least 1"):
        chosen(threads=threads)


def written(out: Path) -> Any:
    return tomllib.loads((out / "config.toml").read_text())["backend"]


@pytest.mark.parametrize(
    ("scheme", "limit", "name"), [("smofi", 10**9, "stacked"), ("smofi", 10, "loop"), ("ssl", 10**9, "loop")]
)
def test_the_choice_is_written_down_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, limit: int, name: str
) -> None:
    """A run that was interrupted goes on with the backend it began with, whatever the rule says by then."""
    monkeypatch.setattr(backend, "SMALL_MODEL", limit)
    config = text.parse({**BASE, "scheme": scheme})
    assert config.backend == "auto"
    whole = finish(Experiment.start(config, tmp_path / "whole"))
    interrupted(config, tmp_path / "cut", after=2)
    assert written(tmp_path / "whole") == written(tmp_path / "cut") == name
    monkeypatch.setattr(backend, "SMALL_MODEL", 10 if limit > 10 else 10**9)
    assert chosen().name == ("loop" if limit > 10 else "stacked")
    resumed = Experiment.resume(tmp_path / "cut")
    assert resumed.run.setup.backend.name == resumed.config.backend == name
    assert finish(resumed) == whole == sha(tmp_path / "cut")
    assert written(tmp_path / "cut") == name


def test_a_choice_that_was_asked_for_is_written_too(tmp_path: Path) -> None:
    """What cannot be done is written as what is done instead."""
    for asked, scheme, name in (("loop", "smofi", "loop"), ("stacked", "smofi", "stacked"), ("stacked", "ssl", "loop")):
        out = tmp_path / f"{asked}-{scheme}"
        Experiment.start(text.parse({**BASE, "scheme": scheme, "backend": asked, "rounds": 1}), out)
        assert written(out) == name
