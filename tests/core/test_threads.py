"""Threads, and what they work on: results in order, long vectors in parts, rows in runs, a half in every thread."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.core import threads as module
from cutlayer.core.group import ONE_PROCESS
from cutlayer.core.threads import Workers, torch_threads
from cutlayer.nn.flat import Half, Rows, Vectors, half
from cutlayer.nn.gradients import differentiate
from cutlayer.nn.stacked import Stack
from cutlayer.optim.averaging import average, drift
from cutlayer.optim.local import fedprox_fednar
from cutlayer.optim.memory import Memory, runs
from cutlayer.optim.optimizer import LinearMoments, OneMoment, Optimizer
from cutlayer.optim.step import Step, optimizer_step

R = TypeVar("R")
CPU = torch.device("cpu")


# ---- Workers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_results_come_in_the_order_of_the_items(n: int) -> None:
    def work(item: int) -> tuple[int, int]:
        time.sleep(0.002 * (item % 3))  # so that later items are done first
        return item * item, threading.get_ident()

    done = Workers(n).map(work, iter(range(12)))
    assert [square for square, _ in done] == [item * item for item in range(12)]
    threads = {thread for _, thread in done}
    assert (threads == {threading.get_ident()}) == (n == 1)
    assert len(threads) <= n


def test_items_are_worked_on_side_by_side() -> None:
    """Two threads that wait for each other would wait forever in one."""
    both = threading.Barrier(2, timeout=20)
    assert Workers(2).map(lambda item: both.wait() >= 0, range(2)) == [True, True]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_nothing_to_do(n: int) -> None:
    assert Workers(n).map(lambda item: item, []) == []


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_first_error_in_the_order_of_the_items_is_raised(n: int) -> None:
    """Items 2 and 3 fail, 3 sooner than 2; after that nothing new is begun, and the workers can be used again."""
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 2:
            time.sleep(0.02)
        if item in (2, 3):
            raise ValueError(f"item {item}")
        return item

    pool = Workers(n)
    with pytest.raises(ValueError, match="item 2"):
        pool.map(work, range(200))
    assert len(begun) < 100
    assert pool.map(lambda item: item + 1, range(4)) == [1, 2, 3, 4]


@pytest.mark.parametrize("n", [1, 3])
def test_an_interrupt_is_passed_on(n: int) -> None:
    def work(item: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Workers(n).map(work, range(3))


def test_gradients_are_off_inside_and_can_be_turned_on() -> None:
    def work(item: int) -> tuple[bool, bool]:
        before = torch.is_grad_enabled()
        with torch.enable_grad():
            w = torch.ones(2, requires_grad=True)
            (g,) = torch.autograd.grad((item * w).sum(), w)
        return before, bool((g == item).all())

    assert torch.is_grad_enabled()
    with torch.no_grad():
        assert Workers(2).map(work, range(6)) == [(False, True)] * 6
    assert torch.is_grad_enabled()


def test_one_torch_thread_inside_and_the_callers_number_afterwards() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch_threads():
            with torch_threads():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
            assert set(Workers(2).map(lambda item: torch.get_num_threads(), range(8))) == {1}
        assert torch.get_num_threads() == 2
        with pytest.raises(ValueError, match="inside"), torch_threads():
            raise ValueError("inside")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 20_000])
def test_parts_cover_a_vector_exactly_once(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(module, "PART", 4096)
    seen = torch.zeros(length, dtype=torch.int64)
    for at in Workers().parts(length):
        assert 0 < at.stop - at.start <= 4096
        seen[at] += 1
    assert bool((seen == 1).all())
    for threads in (1, 2, 3):
        swept = torch.zeros(length, dtype=torch.int64)

        def visit(at: slice, swept: Tensor = swept) -> None:
            swept[at] += 1

        Workers(threads).sweep(length, visit)
        assert bool((swept == 1).all())


# ---- Rows that step together -------------------------------------------------------------------------------------


def test_runs_are_neighbours_with_one_count() -> None:
    assert list(runs([], [], 8)) == []
    assert list(runs([3], [0, 0, 0, 7], 8)) == [(slice(3, 4), 7)]
    assert list(runs([0, 1, 2], [4, 4, 4], 8)) == [(slice(0, 3), 4)]
    assert list(runs([0, 1, 2], [4, 5, 5], 8)) == [(slice(0, 1), 4), (slice(1, 3), 5)]
    assert list(runs([0, 2, 3], [4, 4, 4, 4], 8)) == [(slice(0, 1), 4), (slice(2, 4), 4)]
    assert list(runs([0, 1, 2], [4, 4, 4], 2)) == [(slice(0, 2), 4), (slice(2, 3), 4)]


def test_a_gpu_computes_with_whole_vectors_and_all_rows() -> None:
    here, there = Workers.on(torch.device("cpu"), 3), Workers.on(torch.device("cuda"), 3)
    assert (here.n, here.part, here.together) == (3, module.PART, module.TOGETHER)
    assert there.n == 1 and list(there.parts(10**9)) == [slice(0, 10**9)]
    assert list(runs(list(range(500)), [1] * 500, there.rows(10**9))) == [(slice(0, 500), 1)]


def test_fewer_long_rows_are_processed_together() -> None:
    workers = Workers(2, part=64, together=8)
    assert [workers.rows(length) for length in (0, 1, 8, 9, 16, 33, 64, 65, 10**9)] == [8, 8, 8, 8, 8, 3, 2, 2, 2]


def test_runs_hold_every_row_once_in_order() -> None:
    dice = random.Random(0)
    for _ in range(200):
        rows = sorted(dice.sample(range(60), dice.randint(0, 60)))
        t = [dice.randint(0, 2) for _ in range(60)]
        together = dice.choice([1, 3, 8, 100])
        found = list(runs(rows, t, together))
        assert all(some.stop - some.start <= together for some, _ in found)
        assert [row for some, _ in found for row in range(some.start, some.stop)] == rows
        assert all(t[row] == count for some, count in found for row in range(some.start, some.stop))


OPTIMIZERS: list[Optimizer] = [
    cl.SGD(0.1, 0.9, 0.01),
    cl.NAG(0.1, 0.8, 0.02),
    cl.Adam(0.01, (0.8, 0.95), 1e-6, 0.02),
    cl.AdamW(0.01, (0.8, 0.95), 1e-6, 0.02),
    cl.Lion(0.01, (0.8, 0.95), 0.02),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_a_step_from_the_fused_momentum_is_a_step_whose_old_moments_are_that(optimizer: Optimizer) -> None:
    """With one moment, in the place of the gradient; with several, by what the gradient adds to them."""
    torch.manual_seed(0)
    g, w = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    m_bar = [torch.rand(5, dtype=torch.float64) for _ in range(optimizer.moments)]
    expected, moments = w.clone(), [m.expand_as(g).clone() for m in m_bar]
    optimizer.update(expected, g.clone(), moments, 0.1, 3)
    assert isinstance(optimizer, OneMoment) != isinstance(optimizer, LinearMoments)
    if isinstance(optimizer, OneMoment):
        optimizer.fused(w, g, optimizer.past(m_bar[0]), 0.1, 3)
        torch.testing.assert_close((w, g), (expected, moments[0]), rtol=1e-14, atol=1e-14)
    else:
        assert isinstance(optimizer, LinearMoments)
        found = [beta * m.expand_as(g) for beta, m in zip(optimizer.betas, m_bar, strict=True)]
        optimizer.accumulate(found, g)
        torch.testing.assert_close(found, moments, rtol=1e-14, atol=1e-14)


def linear(features: int, rows: int) -> Rows:
    torch.manual_seed(1)
    made = Rows(half(nn.Sequential(nn.Linear(features, 3).double(), nn.Identity()), range(1), CPU), rows)
    made.w.normal_()
    made.g.normal_()
    return made


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rule", [None, cl.FedProx(mu=0.3)], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_rows_that_step_together_step_as_each_would_alone(
    monkeypatch: pytest.MonkeyPatch, optimizer: Optimizer, rule: cl.FedProx | None, threads: int
) -> None:
    """Six of eight rows, with three different step counters; the other two stay what they are, to the bit."""
    monkeypatch.setattr(module, "PART", 64)
    which, counts = [0, 1, 2, 4, 5, 7], [3, 3, 1, 0, 1, 1, 2, 3]
    rows = linear(50, 8)
    memory = Memory(optimizer, rows.w)
    for m in memory.moments:
        m.uniform_()
    memory.t = list(counts)
    w, g, moments = rows.w.clone(), rows.g.clone(), [m.clone() for m in memory.moments]
    w0 = torch.randn(rows.w.shape[1], dtype=torch.float64)
    optimizer_step(Workers(threads), Step(rule, optimizer, w0, 0.07), rows, memory, which)
    for j in range(8):
        if j in which:
            if rule is not None:
                rule.pull(g[j], w[j], w0)
            optimizer.regularise(g[j], w[j])
            optimizer.update(w[j], g[j], [m[j] for m in moments], 0.07, counts[j] + 1)
        assert torch.equal(rows.w[j], w[j])
        assert all(torch.equal(mine[j], theirs[j]) for mine, theirs in zip(memory.moments, moments, strict=True))
    assert memory.t == [count + (j in which) for j, count in enumerate(counts)]


def test_a_gradient_that_was_clipped_is_not_regularised_again() -> None:
    """A rule that clips has added its own term and the weight decay before it took the norm."""
    optimizer = cl.SGD(lr=1.0, momentum=0.0, weight_decay=0.5)
    for rule, again in ((fedprox_fednar(0.3, 1.0), False), (fedprox_fednar(0.3, math.inf), True)):
        rows = linear(4, 2)
        w, g, w0 = rows.w.clone(), rows.g.clone(), torch.zeros(rows.w.shape[1], dtype=torch.float64)
        optimizer_step(Workers(), Step(rule, optimizer, w0, 0.1), rows, Memory(optimizer, rows.w), [0, 1])
        torch.testing.assert_close(rows.w, w - 0.1 * (g + 0.8 * w if again else g), rtol=1e-13, atol=1e-13)


# ---- Means -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_mean_and_drift_are_those_computed_by_hand(
    monkeypatch: pytest.MonkeyPatch, threads: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(module, "PART", 64)
    torch.manual_seed(2)
    counters = torch.tensor([[1, 9], [5, 2], [3, 3]])
    rows = [Vectors(torch.randn(300, dtype=dtype), torch.randn(7, dtype=dtype), i) for i in counters]
    p = [0.5, 0.2, 0.3]
    pool = Workers(threads)
    got = average(rows, p, rows[0], pool, ONE_PROCESS)
    for v in (0, 1):
        naive = sum(p_j * row[v].double() for p_j, row in zip(p, rows, strict=True))
        assert isinstance(naive, Tensor) and got[v].dtype == dtype
        torch.testing.assert_close(got[v].double(), naive, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)
    assert got.i.tolist() == [5, 9]
    distances = [math.dist(row.w.tolist(), got.w.tolist()) for row in rows]
    assert drift(rows, got, pool, ONE_PROCESS) == pytest.approx(
        sum(distances) / 3, rel=1e-5 if dtype == torch.float32 else 1e-12
    )


def test_means_and_drifts_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 64)
    torch.manual_seed(3)
    rows = [Vectors(torch.randn(1000), torch.randn(3), torch.arange(2)) for _ in range(5)]
    p = [0.1, 0.3, 0.2, 0.15, 0.25]
    means = [average(rows, p, rows[0], Workers(n), ONE_PROCESS) for n in (1, 2, 3)]
    assert all(torch.equal(a, b) for one in means[1:] for a, b in zip(means[0], one, strict=True))
    assert len({drift(rows, means[0], Workers(n), ONE_PROCESS) for n in (1, 2, 3)}) == 1


def test_a_drift_whose_square_is_too_large_for_the_dtype() -> None:
    rows = [Vectors(torch.full((4,), w), torch.zeros(0), torch.zeros(0, dtype=torch.int64)) for w in (-1e30, 1e30)]
    assert drift(
        rows, average(rows, [0.5, 0.5], rows[0], Workers(), ONE_PROCESS), Workers(2), ONE_PROCESS
    ) == pytest.approx(2e30)


def test_a_half_without_weights_has_a_mean_and_no_drift() -> None:
    rows = [Vectors(torch.zeros(0), torch.full((2,), float(j)), torch.zeros(0, dtype=torch.int64)) for j in range(2)]
    got = average(rows, [0.25, 0.75], rows[0], Workers(2), ONE_PROCESS)
    assert got.b.tolist() == [0.75, 0.75]
    assert drift(rows, got, Workers(2), ONE_PROCESS) == 0.0


def test_what_the_loss_does_not_reach_has_no_gradient() -> None:
    """The place of its gradient holds zeros, whatever was there; an input's is zero too."""
    rows = linear(4, 2)
    x = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        (back,) = differentiate(rows.forward(0, x).sum(), rows.views, inputs=[x])  # the second row is not used
        assert bool((rows.g[0] != 0).all()) and bool((rows.g[1] == 0).all()) and bool((back != 0).any())
        (back,) = differentiate((2 * rows.views[1].w[0]).sum(), [rows.views[1]], inputs=[x])
    assert rows.g[1].tolist() == [2.0] * 12 + [0.0] * 3 and bool((back == 0).all())
    differentiate(torch.tensor(3.0), [rows.views[1]])  # a constant
    assert bool((rows.g[1] == 0).all())


# ---- A half in every thread --------------------------------------------------------------------------------------


def network() -> nn.Sequential:
    torch.manual_seed(4)
    made = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), nn.Sequential(nn.Flatten(), nn.Linear(32, 3))
    )
    next(made[1].parameters()).requires_grad_(False)  # a constant
    return made.double()


@pytest.fixture
def elsewhere() -> Iterator[Callable[[Callable[[], R]], R]]:
    """Run something in another thread, always the same."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda work: pool.submit(work).result()


Elsewhere = Callable[[Callable[[], Half]], Half]


def modules(one: Half) -> list[nn.Module]:
    return [m for block in one.blocks for m in block.modules()]


def tensors(one: Half) -> list[Tensor]:
    return [t for block in one.blocks for t in (*block.parameters(), *block.buffers())]


def test_a_thread_has_its_own_modules_and_everybodys_tensors(elsewhere: Elsewhere) -> None:
    whole = half(network(), range(2), CPU)
    twin = elsewhere(whole.here)
    assert whole.here() is whole
    assert elsewhere(whole.here) is twin is not whole
    assert not {id(m) for m in modules(whole)} & {id(m) for m in modules(twin)}
    bound = ([getattr(*slot.places[0]) for kind in one.slots for slot in kind] for one in (whole, twin))
    assert all(a is b for a, b in zip(*bound, strict=True))  # what is bound is shared, constants are not
    assert [type(m) for m in modules(whole)] == [type(m) for m in modules(twin)]
    assert twin.sizes == whole.sizes and twin.ends == whole.ends and twin.dtypes == whole.dtypes


def test_twins_bind_separately(elsewhere: Elsewhere) -> None:
    """What one thread has bound, another's call does not see: neither weights nor BatchNorm's statistics."""
    whole = half(network(), range(2), CPU)
    rows = Rows(whole, 2)
    rows.fill(whole.read(), 2)
    rows.w[1] *= 2
    x = torch.randn(5, 1, 6, 6, dtype=torch.float64)
    expected = [whole(x, rows.views[j]).detach() for j in range(2)]
    rows.fill(whole.read(), 0)
    rows.b[:] = whole.read().b
    whole.bind(rows.views[0])
    bound = tensors(whole)

    def theirs() -> Half:
        assert torch.equal(whole(x, rows.views[1]).detach(), expected[1])
        return whole.here()

    twin = elsewhere(theirs)
    assert all(a is b for a, b in zip(tensors(whole), bound, strict=True))
    learning = [t for t in tensors(twin) if t.requires_grad]
    assert len(learning) == 5 and all(a is b for a, b in zip(learning, rows.views[1].w, strict=True))
    assert torch.equal(rows.b[0], whole.read().b) and not torch.equal(rows.b[1], rows.b[0])
    assert torch.equal(whole(x, rows.views[0]).detach(), expected[0])


def test_many_threads_compute_with_rows_of_their_own() -> None:
    """Forward and backward of eight rows on four threads, again and again, are those of one thread to the bit."""
    whole = half(network(), range(2), CPU)
    rows = Rows(whole, 8)
    torch.manual_seed(5)
    x = torch.randn(4, 1, 6, 6, dtype=torch.float64)
    start = whole.read()

    def work(j: int) -> None:
        with torch.enable_grad():
            differentiate(rows.forward(j, x).square().sum(), [rows.views[j]])

    def go(threads: int) -> tuple[Tensor, Tensor, Tensor]:
        rows.fill(start, 8)
        for j in range(8):
            rows.w[j] *= 1 + j / 8
        pool = Workers(threads)
        for _ in range(5):
            pool.map(work, range(8))
        return rows.g.clone(), rows.b.clone(), rows.i.clone()

    one, four = go(1), go(4)
    assert all(torch.equal(a, b) for a, b in zip(one, four, strict=True))
    assert len({tuple(row.tolist()) for row in one[0]}) == 8 and one[2].tolist() == [[5]] * 8


def test_the_mode_reaches_every_twin(elsewhere: Elsewhere) -> None:
    whole = half(network(), range(2), CPU)
    twin = elsewhere(whole.here)
    for mode in (False, True):
        whole.train(mode)
        assert all(m.training is mode for one in (whole, twin) for m in modules(one))
    whole.train(False)
    with ThreadPoolExecutor(1) as late:  # a twin made later has the mode of the others
        assert not any(m.training for m in modules(late.submit(whole.here).result()))


def test_a_twin_can_be_made_after_a_stack_was_computed(elsewhere: Elsewhere) -> None:
    """A stack leaves nothing in the modules that a thread which comes later would take for their tensors."""
    whole = half(network(), range(2), CPU)
    rows = Rows(whole, 2)
    rows.fill(whole.read(), 2)
    x = torch.randn(2, 5, 1, 6, 6, dtype=torch.float64)
    with torch.enable_grad():
        together = Stack(rows, [0, 1]).forward(x)
    assert elsewhere(whole.here).sizes == whole.sizes

    def theirs() -> Tensor:
        return whole(x[1], rows.views[1]).detach()

    with ThreadPoolExecutor(1) as pool:
        torch.testing.assert_close(pool.submit(theirs).result(), together[1].detach(), rtol=1e-12, atol=1e-12)
