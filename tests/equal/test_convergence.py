"""The O(1/N) of the convergence theorem, on a problem it is about.

The client maps x to (x, Cx) and the server adds Sx, so the logits are (C + S)x: with cross-entropy and an L2 term the
objective sum_j p_j L_j(C, S) is strongly convex, mu = lam. All clients take T steps a round, and the rate falls as
eta_n = 4 / (T mu (gamma + n - 1)). The theorem leaves momentum out. With momentum the fusion takes the plain mean of
the clients (Eq. 5) and the round's end the mean by size, so the two aim at one point only if the sizes are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import cutlayer as cl

FEATURES, CLASSES = 10, 6
LAM, T, GAMMA, ROUNDS, FIRST = 0.5, 2, 8, 240, 15
Data = list[tuple[Tensor, Tensor]]


class Front(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.C = nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.C(x)], dim=1)


class Back(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.S = nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, a: Tensor) -> Tensor:
        return a[:, FEATURES:] + self.S(a[:, :FEATURES])


def population(sizes: Sequence[int]) -> Data:
    """Every client has inputs around a point of its own and labels by a rule of its own."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    clients = []
    for n in sizes:
        x = normal(n, FEATURES) + 0.5 * normal(FEATURES)
        clients.append((x, (x @ normal(FEATURES, CLASSES) + normal(n, CLASSES)).argmax(dim=1)))
    return clients


def optimum(clients: Data, p: Sequence[float]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """W* of sum_j p_j L_j by gradient descent on all the data, and the objective."""

    def objective(w: Tensor) -> Tensor:
        C, S = w.view(2, CLASSES, FEATURES)
        losses = [functional.cross_entropy(x @ (C + S).T, y) for x, y in clients]
        return sum(p_j * loss for p_j, loss in zip(p, losses, strict=True)) + LAM / 2 * w.square().sum()

    w = torch.zeros(2 * CLASSES * FEATURES, dtype=torch.float64, requires_grad=True)
    for _ in range(400):  # the curvature is between 0.5 and 3
        (gradient,) = torch.autograd.grad(objective(w), w)
        w = (w.detach() - 0.4 * gradient).requires_grad_()
    assert gradient.norm() < 1e-13
    return w.detach(), objective


def errors(clients: Data, seeds: int, decay: Callable[[int], float], momentum: float = 0.0) -> tuple[Tensor, Tensor]:
    """Squared distance to W*, and excess of the objective, after each round; the mean over some seeds."""
    sizes = [len(x) for x, _ in clients]
    best, objective = optimum(clients, [n / sum(sizes) for n in sizes])
    lowest = objective(best)
    optimizer = cl.SGD(lr=4 / (T * LAM), momentum=momentum, weight_decay=LAM, decay=decay)
    given: dict[str, Any] = {"cut": 0, "scheme": "smofi", "optimizer": optimizer, "rounds": ROUNDS}
    distance, excess = torch.zeros(2, ROUNDS, dtype=torch.float64)
    for seed in range(seeds):
        torch.default_generator.manual_seed(seed)
        model = nn.Sequential(Front(), Back()).double()
        run = cl.rounds(model, clients, batch_size=4, local_steps=T, seed=seed, **given)
        for record in run:
            w = run.state.W.w
            distance[record.n - 1] += (w - best).square().sum() / seeds
            excess[record.n - 1] += (objective(w) - lowest) / seeds
    return distance, excess


def slope(error: Tensor) -> float:
    """Of log error against log n, by least squares over bins of equal width in log n."""
    points, lo = [], FIRST
    while lo < ROUNDS:
        hi = min(ROUNDS, math.ceil(1.4 * lo))
        points.append((math.log(math.sqrt(lo * hi)), math.log(float(error[lo:hi].mean()))))
        lo = hi
    xs, ys = torch.tensor(points, dtype=torch.float64).T
    return float(((xs - xs.mean()) * (ys - ys.mean())).sum() / (xs - xs.mean()).square().sum())


def harmonic(n: int) -> float:
    return 1 / (GAMMA + n - 1)


def test_the_error_falls_as_one_over_n() -> None:
    """Without momentum, clients of unequal size; the point it goes to is the optimum of the mean by size.

    The slope was -0.90 when this was written; that of 1 / (gamma + n - 1) itself is -0.88.
    """
    clients = population([20, 40, 140])
    distance, excess = errors(clients, seeds=2, decay=harmonic)
    assert -1.5 < slope(distance) < -0.7
    assert -1.5 < slope(excess) < -0.7
    by_size, by_head = (optimum(clients, p)[0] for p in ((0.1, 0.2, 0.7), (1 / 3, 1 / 3, 1 / 3)))
    assert float(distance[-50:].mean()) < 0.1 * float((by_size - by_head).square().sum())


def test_with_fused_momentum_too_where_sizes_are_equal() -> None:
    distance, excess = errors(population([60, 60, 60]), seeds=2, decay=harmonic, momentum=0.9)
    assert -1.5 < slope(distance) < -0.7
    assert -1.5 < slope(excess) < -0.7


def test_at_a_constant_rate_it_does_not_fall() -> None:
    """So it is the falling rate that is measured, not the way in from the start."""
    distance, _ = errors(population([20, 40, 140]), seeds=1, decay=lambda n: harmonic(FIRST))
    assert abs(slope(distance)) < 0.4
