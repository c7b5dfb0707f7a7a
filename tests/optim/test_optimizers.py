"""The functional optimizers are torch.optim's, to rounding; the rate follows its schedule; bad numbers are refused."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.optim.memory import Memory
from cutlayer.optim.optimizer import OnePass, Optimizer, rate
from cutlayer.optim.sgd import LONG

STEPS = 20
ETA = 0.07
ROWS = 3
Theirs = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

PAIRS: list[tuple[Optimizer, Theirs]] = [
    (cl.SGD(1.0, 0.9, lam), lambda p, lam=lam: torch.optim.SGD(p, ETA, momentum=0.9, weight_decay=lam))
    for lam in (0.0, 0.03)
]
PAIRS += [(cl.SGD(1.0, 0.0, lam), lambda p, lam=lam: torch.optim.SGD(p, ETA, weight_decay=lam)) for lam in (0.0, 0.03)]
PAIRS += [
    (cl.NAG(1.0, 0.8, lam), lambda p, lam=lam: torch.optim.SGD(p, ETA, momentum=0.8, weight_decay=lam, nesterov=True))
    for lam in (0.0, 0.03)
]
PAIRS += [
    (ours(1.0, (0.85, 0.97), 1e-6, lam), lambda p, lam=lam, kind=kind: kind(p, ETA, (0.85, 0.97), 1e-6, lam))
    for ours, kind in ((cl.Adam, torch.optim.Adam), (cl.AdamW, torch.optim.AdamW))
    for lam in (0.0, 0.03)
]


def step(optimizer: Optimizer, memory: Memory, row: int, w: Tensor, g: Tensor, eta: float) -> None:
    memory.t[row] += 1
    optimizer.update(w, g, [m[row] for m in memory.moments], eta, memory.t[row])


def gradient(w: Tensor, k: int) -> Tensor:
    """Something smooth that depends on the weights and on the step, of both signs."""
    return torch.sin(3 * w + k) + 0.1 * w**3


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda o: repr(o) if isinstance(o, cl.SGD | cl.Adam) else "")
def test_twenty_steps_equal_torch(ours: Optimizer, theirs: Theirs) -> None:
    """Every row goes its own way, exactly as a parameter under torch.optim would."""
    start = torch.randn(ROWS, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    w, memory = start.clone(), Memory(ours, start)
    parameters = [nn.Parameter(row.clone()) for row in start]
    optimizers = [theirs([p]) for p in parameters]
    for k in range(STEPS):
        for j, (parameter, optimizer) in enumerate(zip(parameters, optimizers, strict=True)):
            if j == 2 and k % 3:
                continue  # a row that steps more rarely has a counter of its own
            g = gradient(w[j], k)
            ours.regularise(g, w[j])
            step(ours, memory, j, w[j], g, ETA)
            parameter.grad = gradient(parameter.detach(), k)
            optimizer.step()
            torch.testing.assert_close(w[j], parameter.detach(), rtol=1e-12, atol=1e-12)
    assert memory.t == [STEPS, STEPS, 7]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS[::2], ids=lambda o: type(o).__name__)
def test_a_reset_row_starts_like_a_fresh_optimizer(ours: Optimizer, theirs: Theirs) -> None:
    """Forgetting one row leaves the other rows' memory alone."""
    w = torch.linspace(-1, 1, 2 * 4, dtype=torch.float64).view(2, 4)
    memory = Memory(ours, w)
    for k in range(5):
        for j in range(2):
            step(ours, memory, j, w[j], gradient(w[j], k), ETA)
    kept = [m[1].clone() for m in memory.moments]
    memory.reset(0)
    assert memory.t == [0, 5]
    assert all(torch.equal(m[1], before) for m, before in zip(memory.moments, kept, strict=True))
    parameter = nn.Parameter(w[0].clone())
    optimizer = theirs([parameter])
    for k in range(3):
        parameter.grad = gradient(parameter.detach(), k)
        optimizer.step()
        step(ours, memory, 0, w[0], gradient(w[0], k), ETA)
    torch.testing.assert_close(w[0], parameter.detach(), rtol=1e-12, atol=1e-12)
    memory.reset()
    assert memory.t == [0, 0]
    assert not any(m.any() for m in memory.moments)


def test_adam_and_adamw_are_one_without_weight_decay() -> None:
    """The difference between the two is where the decay goes, and nothing else."""
    ends = []
    for ours in (cl.Adam(), cl.AdamW()):
        w = torch.linspace(-1, 1, 5, dtype=torch.float64)[None].clone()
        memory = Memory(ours, w)
        for k in range(4):
            g = gradient(w[0], k)
            ours.regularise(g, w[0])
            step(ours, memory, 0, w[0], g, ETA)
        ends.append(w)
    assert torch.equal(*ends)


@pytest.mark.parametrize("kind", [cl.SGD, cl.NAG, cl.Adam, cl.AdamW])
def test_rate(kind: Callable[..., Optimizer]) -> None:
    """eta_n = lr * decay^(n-1), the first round at lr itself; or lr times a function of the round."""
    assert [rate(kind(lr=0.5), n) for n in (1, 2, 100)] == [0.5, 0.5, 0.5]
    decayed = kind(lr=0.05, decay=0.998)
    assert rate(decayed, 1) == 0.05
    for n, published in ((101, 0.0409), (401, 0.0225), (601, 0.0150), (1001, 0.0068)):
        assert rate(decayed, n) == pytest.approx(0.05 * 0.998 ** (n - 1), rel=1e-12)
        assert rate(decayed, n) == pytest.approx(published, abs=6e-5)
    assert [rate(kind(lr=0.5, decay=lambda n: 1 / n), n) for n in (1, 2, 4)] == [0.5, 0.25, 0.125]


@pytest.mark.parametrize("factor", [math.nan, math.inf, -0.1])
def test_a_schedule_that_leaves_the_numbers_is_refused(factor: float) -> None:
    with pytest.raises(cl.ContractError, match=r"decay\(3\)"):
        rate(cl.SGD(decay=lambda n: factor), 3)


@pytest.mark.parametrize("kind", [cl.SGD, cl.NAG, cl.Adam, cl.AdamW])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", math.nan),
        ("lr", math.inf),
        ("lr", 0.0),
        ("lr", -0.1),
        ("lr", True),
        ("lr", "0.1"),
        ("weight_decay", -1e-9),
        ("weight_decay", math.nan),
        ("weight_decay", math.inf),
        ("decay", 0.0),
        ("decay", -1.0),
        ("decay", math.nan),
        ("decay", None),
    ],
)
def test_bad_rates_are_refused_by_name(kind: Callable[..., Optimizer], field: str, value: object) -> None:
    with pytest.raises(cl.ContractError, match=f"^{field} = "):
        kind(**{field: value})


@pytest.mark.parametrize("kind", [cl.SGD, cl.NAG])
@pytest.mark.parametrize("momentum", [1.0, 1.5, -0.1, math.nan, math.inf, True, None])
def test_bad_momentum_is_refused(kind: Callable[..., Optimizer], momentum: object) -> None:
    with pytest.raises(cl.ContractError, match=r"^momentum = "):
        kind(momentum=momentum)


@pytest.mark.parametrize("kind", [cl.Adam, cl.AdamW])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("betas", (0.9,)),
        ("betas", (0.9, 0.99, 0.999)),
        ("betas", (1.0, 0.999)),
        ("betas", (0.9, 1.0)),
        ("betas", (-0.1, 0.9)),
        ("betas", (math.nan, 0.9)),
        ("eps", 0.0),
        ("eps", -1e-8),
        ("eps", math.nan),
    ],
)
def test_bad_moments_are_refused(kind: Callable[..., Optimizer], field: str, value: object) -> None:
    with pytest.raises(cl.ContractError, match=f"^{field} = "):
        kind(**{field: value})


def test_momentum_zero_and_betas_as_a_list_are_allowed() -> None:
    assert not cl.SGD(momentum=0).remembers and cl.SGD().remembers
    assert cl.Adam(betas=[0.5, 0.6]).betas == (0.5, 0.6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("length", [5, LONG - 1, LONG, LONG + 3])
@pytest.mark.parametrize("optimizer", [cl.SGD(0.1, 0.9, 0.01), cl.SGD(0.1, 0.9, 0.0)], ids=str)
def test_weight_decay_and_a_step_from_the_fused_momentum_at_once(
    optimizer: cl.SGD, length: int, dtype: torch.dtype
) -> None:
    """Rows that are parts of longer ones: all that is outside them stays as it was."""
    assert isinstance(optimizer, OnePass)
    torch.manual_seed(0)
    rows = torch.randn(2, 3, length + 9, dtype=dtype)
    expected, past = rows.clone(), optimizer.past(torch.randn(length, dtype=dtype))
    (w, g), (w0, g0) = rows[:, :, 4:-5].unbind(), expected[:, :, 4:-5].unbind()
    optimizer.regularise(g0, w0)
    optimizer.fused(w0, g0, past, 0.1, 3)
    optimizer.fused_with_decay(w, g, past, 0.1, 3)
    torch.testing.assert_close(rows, expected)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="other processors may round otherwise")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("lam", [0.0, 0.01])
def test_long_rows_step_to_the_bits_of_short_ones(lam: float, dtype: torch.dtype) -> None:
    optimizer = cl.SGD(0.1, 0.9, lam)
    torch.manual_seed(0)
    w, g, past = (torch.randn(3, LONG + 13, dtype=dtype) for _ in range(3))
    for at in (slice(0, LONG - 5), slice(LONG - 5, None)):
        short = [t[:, at].clone() for t in (w, g)]
        optimizer.fused_with_decay(short[0], short[1], past[0, at], 0.1, 3)
        whole = [t.clone() for t in (w, g)]
        optimizer.fused_with_decay(whole[0], whole[1], past[0], 0.1, 3)
        assert all(torch.equal(a, b[:, at]) for a, b in zip(short, whole, strict=True))
