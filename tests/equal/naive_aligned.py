"""SMoFi carried further, and calibrated logits, once more and as plainly as they can be said.

A  the clients that step at step k     q_j   n_j / sum of n_i over A     c_j   the running mean of client j's gradient
H  those that have finished            n_j   1, or the client's samples  k_j   the last step of client j
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.equal.naive import Batch, Half, Moments, Parts, Scheme, State, Task, mean


def deal(sent: dict[int, Batch]) -> dict[int, Batch]:
    """All rows in one pile, dealt out one by one in turn; nobody gets more than it sent."""
    pile = [row for x, y in sent.values() for row in zip(x, y, strict=True)]
    hands: dict[int, list[tuple[Tensor, Tensor]]] = {j: [] for j in sent}
    while pile:
        for j, (_, y) in sent.items():
            if len(hands[j]) < len(y):
                hands[j].append(pile.pop(0))
    return {j: (torch.stack([x for x, _ in hand]), torch.stack([y for _, y in hand])) for j, hand in hands.items()}


def server_gradients(
    back: Half, a: Tensor, y: Tensor, tau: float, seen: Sequence[int]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The gradient at the cut and those of the back, of the loss of calibrated logits; `seen`: labels of the round."""
    leaf = a.detach().clone().requires_grad_()
    z = back.module(leaf)
    C = z.shape[1]
    log_pi = [math.log((list(seen).count(c) + 1 / C) / (len(seen) + 1)) for c in range(C)]
    loss = functional.cross_entropy(z + tau * torch.tensor(log_pi, dtype=z.dtype), y)
    at_cut, *of_back = torch.autograd.grad(loss, [leaf, *back.weights.values()])
    return at_cut, dict(zip(back.weights, of_back, strict=True))


def front_step(front: Half, a: Tensor, at_cut: Tensor, n: int) -> None:
    """The client's step: the gradient at the cut goes back through the forward pass that made `a`."""
    front.step(torch.autograd.grad(a, list(front.weights.values()), grad_outputs=at_cut), n)


def cosine(one: State, other: State) -> float:
    """Of two momenta, each laid end to end."""
    dot, a, b = (sum(float((p[w] * q[w]).sum()) for w in one) for p, q in ((one, other), (one, one), (other, other)))
    return dot / math.sqrt(a * b)


def weighted(terms: Sequence[tuple[float, Tensor]]) -> Tensor:
    """The sum of tensors, each times its weight."""
    return torch.stack([factor * tensor for factor, tensor in terms]).sum(dim=0)


def reported(halves: dict[int, Half], parts: Parts) -> State:
    return mean((halves[j].module, p.size) for j, p in parts.items() if p.reported)


def aligned(
    alpha: float = -0.1,
    hist_norm: Literal["count", "weights"] = "count",
    kappa: float | None = None,
    fade: float | None = None,
    weights: Literal["uniform", "samples"] = "uniform",
    lam: float = 0.0,
    gamma: float = 0.9,
    rho: float = 0.0,
    ramp: int = 0,
    cycle: bool = False,
    adaptive: bool = False,
    tau: float = 0.0,
) -> Scheme:
    """SMoFi with all that may be added to it; a scheme for one training, since `kappa` remembers the last round."""
    assert not (cycle and tau), "a dealt batch belongs to no client"
    kept: dict[str, Moments] = {}  # m_bar at the end of the last round
    taken: dict[str, int] = {"steps": 0}  # in all rounds so far

    def stale(k: int, k_j: int, final: State, fresh: State) -> float:
        if adaptive:
            return max(0.0, cosine(final, fresh))
        return float(k - k_j + 1) ** alpha if fade is None else fade ** (k - k_j)

    def fused(
        backs: dict[int, Half], n_of: dict[int, float], A: list[int], H: dict[int, tuple[int, Moments]], k: int
    ) -> Moments:
        fresh = {w: weighted([(n_of[j], backs[j].moments["m"][w]) for j in A]) for w in backs[A[0]].weights}
        s = {j: stale(k, k_j, final["m"], fresh) for j, (k_j, final) in H.items()}
        N = sum(n_of[j] for j in A) + sum(n_of[j] * (s[j] if hist_norm == "weights" else 1.0) for j in H)
        m_bar: Moments = {"m": {}, "v": {}}
        for which, average in m_bar.items():
            for w in backs[A[0]].weights:
                terms = [(n_of[j], backs[j].moments[which][w]) for j in A]
                terms += [(n_of[j] * s[j], final[which][w]) for j, (_, final) in H.items()]
                average[w] = weighted(terms) / N
        return m_bar

    def play(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
        fronts = {j: Half(front, task.rule) for j in parts}
        backs = {j: Half(back, task.server_rule or task.rule) for j in parts}
        n_of = {j: float(p.size) if weights == "samples" else 1.0 for j, p in parts.items()}
        seen: dict[int, list[int]] = {j: [] for j in parts}
        c = {j: {w: torch.zeros_like(value) for w, value in backs[j].weights.items()} for j in parts}
        H: dict[int, tuple[int, Moments]] = {}
        if kappa is not None and kept:
            for half in backs.values():
                half.t = taken["steps"]
                half.moments = {which: {w: kappa * m for w, m in kept["m_bar"][which].items()} for which in ("m", "v")}
        for k in range(max(len(p.steps) for p in parts.values())):
            A = [j for j, p in parts.items() if k < len(p.steps)]
            q = {j: n_of[j] / sum(n_of[i] for i in A) for j in A}
            a, at_cut, g = {}, {}, {}
            for j in A:
                x, y = parts[j].steps[k]
                a[j] = fronts[j].module(x)
                seen[j] += y.tolist()
            sent = {j: (a[j].detach(), parts[j].steps[k][1]) for j in A}
            for j, (rows, y) in (deal(sent) if cycle else sent).items():
                at_cut[j], g[j] = server_gradients(backs[j], rows, y, tau, seen[j])
            for j in A:
                c[j] = {w: gamma * c[j][w] + (1 - gamma) * g[j][w] for w in g[j]}
            c_bar = {w: weighted([(q[j], c[j][w]) for j in A]) for w in backs[A[0]].weights}
            for j in A:
                backs[j].step([g[j][w] - lam * (c[j][w] - c_bar[w]) for w in backs[j].weights], n, k)
            taken["steps"] += 1
            kept["m_bar"] = fused(backs, n_of, A, H, k)
            for j in A:
                if k == len(parts[j].steps) - 1:
                    H[j] = (k, backs[j].moments)
                backs[j].moments = {which: dict(state) for which, state in kept["m_bar"].items()}
            rho_k = rho * min(1.0, (k + 1) / ramp) if ramp else rho
            with torch.no_grad():
                W_bar = {w: weighted([(q[j], backs[j].weights[w]) for j in A]) for w in backs[A[0]].weights}
                for j in A:
                    for w, value in backs[j].weights.items():
                        value.copy_(value + rho_k * (W_bar[w] - value))
            for j in A:
                if cycle:
                    at_cut[j], _ = server_gradients(backs[j], *sent[j], tau, seen[j])
                front_step(fronts[j], a[j], at_cut[j], n)
        return {**reported(fronts, parts), **reported(backs, parts)}

    return play


def calibrated(tau: float, shared: bool) -> Scheme:
    """FedAvg with calibrated logits, or with `shared` SFLV2: one server model, which takes one client after another."""

    def play(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
        fronts = {j: Half(front, task.rule) for j in parts}
        server = Half(back, task.server_rule or task.rule)
        backs = {j: server if shared else Half(back, task.server_rule or task.rule) for j in parts}
        for j, p in parts.items():
            seen: list[int] = []
            for k, (x, y) in enumerate(p.steps):
                seen += y.tolist()
                a = fronts[j].module(x)
                at_cut, g = server_gradients(backs[j], a, y, tau, seen)
                backs[j].step(list(g.values()), n, k)
                front_step(fronts[j], a, at_cut, n)
        return {**reported(fronts, parts), **(server.module.state_dict() if shared else reported(backs, parts))}

    return play
