"""MomentumFusion: Eq. 4 to 6 written out, the library's own scheme, saving, resetting, and what it refuses."""

from __future__ import annotations

import copy
import io
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW

import cutlayer as cl
from cutlayer.data.schedule import BatchSchedule

KINDS = ["sgd", "nag", "adam", "adamw"]
FLAGS = list(itertools.product((-0.1, -2.0), (0, 1), ("count", "weights"), (False, True)))
T = (1, 4, 7, 3, 7)
SHAPES = [(3, 2), (4,)]
GROUPS: dict[str, list[dict[str, Any]]] = {
    "sgd": [{"lr": 0.05, "momentum": 0.9, "weight_decay": 0.02}, {"lr": 0.2, "momentum": 0.6}],
    "adam": [{"lr": 0.05, "betas": (0.9, 0.99), "weight_decay": 0.02}, {"lr": 0.01, "betas": (0.5, 0.8)}],
}
GROUPS |= {"nag": [{**g, "nesterov": True} for g in GROUPS["sgd"]], "adamw": GROUPS["adam"]}
CLASSES: dict[str, Any] = {"sgd": SGD, "nag": SGD, "adam": Adam, "adamw": AdamW}
NAMES = ("alpha", "stale_offset", "hist_norm", "rebias_history")
Flags = tuple[float, int, str, bool]


def weights(n: int = len(T)) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [[torch.randn(s, dtype=torch.float64, generator=generator) for s in SHAPES] for _ in range(n)]


def gradient(w: Tensor, j: int, k: int) -> Tensor:
    """A different smooth pull for every surrogate and step."""
    return torch.sin(2 * w + j) + 0.3 * math.cos(k + j) * w


def make(kind: str, ws: Sequence[Sequence[Tensor]], **flags: Any) -> tuple[list[list[nn.Parameter]], cl.MomentumFusion]:
    parameters = [[nn.Parameter(w.clone()) for w in row] for row in ws]
    groups = [[{**g, "params": [p]} for g, p in zip(GROUPS[kind], row, strict=True)] for row in parameters]
    return parameters, cl.MomentumFusion([CLASSES[kind](g) for g in groups], **flags)


def drive(parameters: Sequence[Sequence[nn.Parameter]], fusion: cl.MomentumFusion, steps: Iterable[int]) -> None:
    for k in steps:
        A = [j for j in range(len(T)) if k < T[j]]
        for j in A:
            for p in parameters[j]:
                p.grad = gradient(p.detach(), j, k)
        fusion.step(active=reversed(A))


def plain(state: Any) -> Any:
    """Nested tensors as nested numbers, to be compared exactly."""
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, list):
        return [plain(value) for value in state]
    return state.tolist() if isinstance(state, Tensor) else state


def naive(kind: str, ws: list[list[Tensor]], alpha: float, offset: int, norm: str, rebias: bool) -> list[list[Tensor]]:
    """Algorithm 1 on lists of tensors, with a momentum per surrogate, one parameter after another."""
    out = [[w.clone() for w in row] for row in ws]
    for i, group in enumerate(GROUPS[kind]):
        eta, lam = group["lr"], group.get("weight_decay", 0.01 if kind == "adamw" else 0.0)
        betas = group.get("betas", (group.get("momentum"),))
        m_bar = [torch.zeros_like(out[0][i]) for _ in betas]
        H: dict[int, tuple[int, list[Tensor]]] = {}
        for k in range(max(T)):
            sums, count = [torch.zeros_like(m) for m in m_bar], 0.0
            for j in (j for j in range(len(T)) if k < T[j]):
                w = out[j][i]
                g = gradient(w, j, k) + (0 if kind == "adamw" else lam * w)
                if kind in ("sgd", "nag"):
                    m = [betas[0] * m_bar[0] + g]  # Eq. 4
                    out[j][i] = w - eta * (m[0] if kind == "sgd" else g + betas[0] * m[0])  # Eq. 3
                else:
                    m = [b * old + (1 - b) * g**power for b, old, power in zip(betas, m_bar, (1, 2), strict=True)]
                    M, V = (moment / (1 - b ** (k + 1)) for moment, b in zip(m, betas, strict=True))
                    w = w * (1 - eta * lam) if kind == "adamw" else w
                    out[j][i] = w - eta * M / (V.sqrt() + 1e-8)
                sums, count = [s + mine for s, mine in zip(sums, m, strict=True)], count + 1
                if k == T[j] - 1:
                    H[j] = (k, m)
            for k_j, m in (entry for entry in H.values() if entry[0] < k):
                s = (k - k_j + offset) ** alpha  # Eq. 6
                for q, b in enumerate(betas):
                    factor = (1 - b ** (k + 1)) / (1 - b ** (k_j + 1)) if rebias and len(betas) == 2 else 1.0
                    sums[q] = sums[q] + s * factor * m[q]
                count += 1 if norm == "count" else s
            m_bar = [s / count for s in sums]  # Eq. 5
    return out


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_equations(kind: str, flags: Flags) -> None:
    parameters, fusion = make(kind, weights(), **dict(zip(NAMES, flags, strict=True)))
    drive(parameters, fusion, range(max(T)))
    for row, expected in zip(parameters, naive(kind, weights(), *flags), strict=True):
        for p, w in zip(row, expected, strict=True):
            torch.testing.assert_close(p.detach(), w, rtol=1e-11, atol=1e-11)


def test_two_clients_by_hand() -> None:
    """T = (1, 3), constant gradients: the fused momentum after each step, from the formula on paper."""
    g1, g2 = torch.tensor([2.0, -1.0], dtype=torch.float64), torch.tensor([0.5, 4.0], dtype=torch.float64)
    alpha, beta = -0.7, 0.9
    ps = [nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2)]
    optimizers = [SGD([p], lr=0.1, momentum=beta) for p in ps]
    fusion = cl.MomentumFusion(optimizers, alpha=alpha)
    ps[0].grad, ps[1].grad = g1.clone(), g2.clone()
    first = (g1 + g2) / 2
    second = (beta * first + g2 + 2**alpha * g1) / 2
    third = (beta * second + g2 + 3**alpha * g1) / 2
    for active, expected in (([0, 1], first), ([1], second), ([1], third)):
        fusion.step(active)
        torch.testing.assert_close(optimizers[1].state[ps[1]]["momentum_buffer"], expected, rtol=1e-14, atol=1e-14)
    total = 3 * g2 + beta * (first + second)  # every step used the fused momentum before it
    torch.testing.assert_close(ps[1].detach(), -0.1 * total, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(ps[0].detach(), -0.1 * g1, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_all_active_buffers_are_the_fused_one(kind: str) -> None:
    """Equal after every step, each in a memory of its own."""
    parameters, fusion = make(kind, weights())
    names = ("exp_avg", "exp_avg_sq") if kind.startswith("adam") else ("momentum_buffer",)
    for k in range(max(T)):
        drive(parameters, fusion, [k])
        active = [j for j in range(len(T)) if k < T[j]]
        for i, name in itertools.product(range(len(SHAPES)), names):
            buffers = [fusion.optimizers[j].state[parameters[j][i]][name] for j in active]
            assert all(torch.equal(b, buffers[0]) for b in buffers)
            assert len({b.data_ptr() for b in buffers}) == len(buffers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", range(1, max(T)))
def test_saved_and_loaded_it_goes_on_as_before(kind: str, stop: int) -> None:
    """At any step of the round, through a file, together with the optimizers' own states."""
    parameters, fusion = make(kind, weights(), rebias_history=True)
    drive(parameters, fusion, range(stop))
    file = io.BytesIO()
    torch.save([fusion.state_dict(), [o.state_dict() for o in fusion.optimizers]], file)
    twins, other = make(kind, [[p.detach() for p in row] for row in parameters], rebias_history=True)
    held = fusion.state_dict()
    kept = plain(held)
    drive(parameters, fusion, range(stop, max(T)))
    file.seek(0)
    mine, theirs = torch.load(file, weights_only=True)
    for optimizer, state in zip(other.optimizers, theirs, strict=True):
        optimizer.load_state_dict(state)
    other.load_state_dict(mine)
    drive(twins, other, range(stop, max(T)))
    for row, twin in zip(parameters, twins, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(row, twin, strict=True))
    assert plain(held) == kept  # a saved state does not change under one's hands


@pytest.mark.parametrize("kind", KINDS)
def test_reset_equals_fresh_optimizers(kind: str) -> None:
    parameters, fusion = make(kind, weights())
    drive(parameters, fusion, range(max(T)))
    fusion.reset()
    twins, fresh = make(kind, [[p.detach() for p in row] for row in parameters])
    drive(parameters, fusion, range(max(T)))
    drive(twins, fresh, range(max(T)))
    for row, twin in zip(parameters, twins, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(row, twin, strict=True))


SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (cl.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "nag": (cl.NAG, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "adam": (cl.Adam, {"lr": 0.01, "weight_decay": 0.01}),
    "adamw": (cl.AdamW, {"lr": 0.01, "weight_decay": 0.05}),
}


def theirs(kind: str, module: nn.Module) -> Any:
    extra = {"nesterov": True} if kind == "nag" else {}
    return CLASSES[kind](module.parameters(), **SETTINGS[kind][1], **extra)


def mean_into(models: Sequence[nn.Module], trained: Sequence[nn.Module], sizes: Sequence[int]) -> None:
    """Every model becomes the weighted mean of the trained ones; counters by their maximum."""
    states = [m.state_dict() for m in trained]
    mean = {
        name: sum(s[name] * (n / sum(sizes)) for s, n in zip(states, sizes, strict=True))
        if states[0][name].is_floating_point()
        else torch.stack([s[name] for s in states]).amax(0)
        for name in states[0]
    }
    for model in models:
        model.load_state_dict(mean)


@pytest.mark.parametrize("cut", [0, 3])
@pytest.mark.parametrize("flags", [(-0.1, 1, "count", False), (-1.5, 0, "weights", True)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_scheme_is_the_plug_in(kind: str, flags: Flags, cut: int) -> None:
    """A plain loop with modules, torch.optim and the plug-in gives what `train` gives with scheme SMoFi."""
    torch.manual_seed(3)
    named = dict(zip(NAMES, flags, strict=True))
    stem = nn.Linear(5, 7, bias=False)  # before BatchNorm a bias would have the rounding for its gradient
    model = nn.Sequential(stem, nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 6), nn.Linear(6, 3)).double()
    sizes = [9, 4, 22, 2, 13]  # T = 4, 2, 10, 0, 6: one finishes at each turn, one has no batch
    clients = [(torch.randn(n, 5, dtype=torch.float64), torch.randint(3, (n,))) for n in sizes]
    ours, numbers = SETTINGS[kind]
    scheme, optimizer = cl.SMoFi(**named), ours(**numbers)
    result = cl.train(
        model, clients, cut=cut, scheme=scheme, optimizer=optimizer, rounds=2, batch_size=4, local_epochs=2
    )
    schedule = BatchSchedule(batch_size=4, epochs=2)
    front, back = cl.halves(model, cut)
    fronts, backs = ([copy.deepcopy(half) for _ in sizes] for half in (front, back))
    fusion = cl.MomentumFusion([theirs(kind, b) for b in backs], **named)
    J = [j for j, n in enumerate(sizes) if n >= 4]
    for n in (1, 2):
        fusion.reset()
        own = [theirs(kind, f) for f in fronts]
        batches = [[batch.rows for batch in schedule.batches(size, n, j)] for j, size in enumerate(sizes)]
        for k in range(10):
            active = [j for j in J if k < len(batches[j])]
            for j in active:
                own[j].zero_grad()
                fusion.optimizers[j].zero_grad()
                x, y = (t[batches[j][k]] for t in clients[j])
                functional.cross_entropy(backs[j](fronts[j](x)), y).backward()
                own[j].step()
            fusion.step(active)
        mean_into(fronts, [fronts[j] for j in J], [sizes[j] for j in J])
        mean_into(backs, [backs[j] for j in J], [sizes[j] for j in J])
    expected = nn.Sequential(*fronts[0], *backs[0]).state_dict()
    for name, tensor in result.model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-9, atol=1e-9)


def linear(inputs: int = 3) -> list[nn.Parameter]:
    return list(nn.Linear(inputs, 2).parameters())


SHARED = linear()
REFUSED: dict[str, tuple[str, Callable[[], list[Any]]]] = {
    "nobody": ("optimizers", list),
    "no momentum": ("momentum", lambda: [SGD(linear(), 0.1)]),
    "no momentum in one group": (
        "momentum",
        lambda: [SGD([{"params": [p], "momentum": m} for p, m in zip(linear(), (0.9, 0), strict=True)], 0.1)],
    ),
    "dampening": ("dampening", lambda: [SGD(linear(), 0.1, 0.9, dampening=0.1)]),
    "amsgrad": ("amsgrad", lambda: [Adam(linear(), amsgrad=True)]),
    "another kind": ("SGD, Adam or AdamW", lambda: [torch.optim.Adagrad(linear())]),
    "two kinds": ("one kind", lambda: [Adam(linear()), AdamW(linear())]),
    "shapes": ("shapes", lambda: [SGD(linear(n), 0.1, 0.9) for n in (3, 4)]),
    "order": ("shapes", lambda: [SGD(ps, 0.1, 0.9) for ps in (linear(), linear()[::-1])]),
    "groups": ("group", lambda: [Adam(linear()), Adam([{"params": [p]} for p in linear()])]),
    "momenta": ("momentum", lambda: [SGD(linear(), 0.1, b) for b in (0.9, 0.8)]),
    "nesterov": ("nesterov", lambda: [SGD(linear(), 0.1, 0.9, nesterov=b) for b in (True, False)]),
    "betas": ("betas", lambda: [Adam(linear(), betas=(0.9, b)) for b in (0.99, 0.999)]),
    "shared": ("shared", lambda: [SGD(SHARED, 0.1, 0.9), SGD(SHARED, 0.1, 0.9)]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_optimizers_that_cannot_be_fused_are_refused(case: str) -> None:
    word, given = REFUSED[case]
    with pytest.raises(cl.ContractError, match=word):
        cl.MomentumFusion(given())


@pytest.mark.parametrize(
    ("flag", "value"),
    [("alpha", a) for a in (0.5, math.nan, -math.inf, True, None, "-0.1")]
    + [("stale_offset", 2), ("stale_offset", -1), ("hist_norm", "mean"), ("rebias_history", 1)],
)
def test_bad_flags_are_refused(flag: str, value: Any) -> None:
    for make_it in (lambda **f: cl.MomentumFusion([SGD(linear(), 0.1, 0.9)], **f), cl.SMoFi):
        with pytest.raises(cl.ContractError, match=f"^{flag} = "):
            make_it(**{flag: value})


def everything(parameters: Sequence[Sequence[nn.Parameter]], fusion: cl.MomentumFusion) -> Any:
    """All that could change, to the last bit."""
    return plain([[*row] for row in parameters] + [fusion.state_dict(), *(o.state_dict() for o in fusion.optimizers)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("active", [[], [1, 2, 5], [-1, 1], [1, 1], [0, 1], [1, 0.5], ["1"]], ids=str)
def test_a_refused_step_changes_nothing(kind: str, active: list[Any]) -> None:
    """Nobody, out of range, twice, or back after finishing: 0 took its only step before."""
    parameters, fusion = make(kind, weights())
    drive(parameters, fusion, range(2))
    before = everything(parameters, fusion)
    with pytest.raises(cl.ContractError, match="active"):
        fusion.step(active)
    assert everything(parameters, fusion) == before
    drive(parameters, fusion, range(2, max(T)))
    expected = naive(kind, weights(), -0.1, 1, "count", False)
    torch.testing.assert_close(parameters[2][0].detach(), expected[2][0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("damage", ["key", "index", "shape"])
def test_a_state_that_does_not_fit_is_refused_whole(damage: str) -> None:
    parameters, fusion = make("sgd", weights())
    drive(parameters, fusion, range(2))
    state, before = fusion.state_dict(), everything(parameters, fusion)
    if damage == "key":
        del state["last"]
    elif damage == "index":
        state["last"][len(T)] = 0
    else:
        state["contribution"] = {j: [[t[:1] for t in ts] for ts in named] for j, named in state["contribution"].items()}
    with pytest.raises(cl.ContractError, match="state"):
        fusion.load_state_dict(state)
    assert everything(parameters, fusion) == before


@pytest.mark.parametrize("kind", ["sgd", "nag", "adam", "adamw"])
@pytest.mark.parametrize("after_reset", [False, True])
def test_an_optimizer_that_joins_late_begins_with_the_fused_momentum(kind: str, after_reset: bool) -> None:
    """It is as if it had been there from the start with no say: its first momentum is beta*m_bar + g."""
    make = {
        "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
        "nag": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True),
        "adam": lambda ps: torch.optim.Adam(ps, lr=0.1),
        "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.1, weight_decay=0.0),
    }[kind]
    ws = [torch.zeros(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    optimizers = [make([w]) for w in ws]
    fusion = cl.MomentumFusion(optimizers)
    g = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    if after_reset:
        for w in ws:
            w.grad = g.clone()
        fusion.step()
        fusion.reset()
        with torch.no_grad():
            for w in ws:
                w.zero_()
    ws[0].grad = g.clone()
    fusion.step([0])
    fusion.step(np.array([0]))
    before = ws[0].detach().clone()
    ws[1].grad = g.clone()
    fusion.step([0, 1])  # equal gradients, equal momentum, equal counters: equal movement
    torch.testing.assert_close(ws[1].detach(), ws[0].detach() - before, rtol=1e-12, atol=1e-14)


def test_indices_that_are_no_numbers_are_refused() -> None:
    w = torch.zeros(2, requires_grad=True)
    fusion = cl.MomentumFusion([torch.optim.SGD([w], lr=0.1, momentum=0.9)])
    with pytest.raises(cl.ContractError, match="expected indices of optimizers"):
        fusion.step(["0"])
