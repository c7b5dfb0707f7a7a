"""The split schemes once more, as plainly as they can be said: MergeSFL, PSL, SGLR, SSL and the Cycle family.

x_j is what client j sends up, d_j its rows; gx_j comes down. Here in rounds of local epochs or steps; every optimizer
starts a round without memory. A scheme that keeps returns the server's half, and leaves the fronts in its hands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.equal.naive import Half, Part, Parts, Scheme, State, Task, copied, mean, part
from tests.equal.naive_local import Bent, Local, averaged, bent_step, in_one, in_two, pair_step
from tests.equal.naive_updates import parts_of

Rows = dict[int, Tensor]  # by client
KeepScheme = Callable[[Task, int, Mapping[int, Bent], nn.Sequential, Parts], State]


def active_at(k: int, parts: Parts) -> list[int]:
    """The clients that take a step k."""
    return [j for j, p in parts.items() if k < len(p.steps)]


def longest(parts: Parts) -> int:
    """The number of steps of the client with the most."""
    return max(len(p.steps) for p in parts.values())


def server_gradients(back: Half, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Of the mean loss over the rows: with respect to the rows, and to the back's parameters."""
    leaf = x.detach().clone().requires_grad_()
    loss = functional.cross_entropy(back.module(leaf), y)
    gx, *of_back = torch.autograd.grad(loss, [leaf, *back.weights.values()])
    return gx, list(of_back)


def client_step(front: Bent, x: Tensor, gx: Tensor, n: int, local: Local = None) -> None:
    """The front's part of a step: back through the graph of x, then its own optimizer."""
    bent_step([front], [torch.autograd.grad(x, list(front.weights.values()), grad_outputs=gx)], n, local)


def common_gradient(gx: Rows, sizes: Mapping[int, int], share: float, trains: Sequence[int]) -> Rows:
    """Every row of the first clients gets the mean of their rows, each counted by the size of its client."""
    chosen = [j for j in trains[: max(1, int(share * len(trains)))] if j in gx]
    if not chosen:
        return gx
    total = sum((sizes[j] * row for j in chosen for row in gx[j]), torch.zeros_like(gx[chosen[0]][0]))
    gbar = total / sum(sizes[j] * len(gx[j]) for j in chosen)
    return gx | {j: torch.stack([gbar] * len(gx[j])) for j in chosen}


# ---- MergeSFL ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """Seconds for one sample's forward of the whole model, and the speed of its connection."""

    seconds: float
    kbps: float


def merged_batch_sizes(task: Task, devices: Sequence[Device] | None) -> list[int]:
    """Proportional to a client's speed, within bounds; a merged batch has about m B rows. Only Linear layers count."""
    B, m = task.batch_size, len(task.clients)
    if devices is None:
        return [min(B, len(x)) for x, _ in task.clients]
    macs = [
        sum(layer.in_features * layer.out_features for layer in block.modules() if isinstance(layer, nn.Linear))
        for block in task.model.children()
    ]
    O = sum(macs[: task.cut + 1]) / sum(macs)  # noqa: E741
    probe = in_two(copied(task.model).eval(), task.cut)[0](task.clients[0][0][:1])
    S = probe.numel() * 32 / 1000
    u = [3 * device.seconds * O + 2 * S / device.kbps for device in devices]
    speed = sum(1 / u_j for u_j in u)
    d_min, d_max = max(2, B // 8), 4 * B
    sizes = []
    for (x, _), u_j in zip(task.clients, u, strict=True):
        wanted = round(m * B * (1 / u_j) / speed)
        sizes.append(min(max(wanted, d_min), min(d_max, len(x))))
    return sizes


def mergesfl(
    devices: Sequence[Device] | None = None,
    scale_lr: bool = False,
    front_weights: Literal["batch", "uniform"] = "batch",
    local: Local = None,
) -> Scheme:
    """The rows of all clients at a step are one batch of the one server model."""

    def play(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, _: Parts) -> State:
        d = merged_batch_sizes(task, devices)
        every = {j: part(replace(task, batch_size=d[j]), j, None) for j in range(len(task.clients))}
        parts = {j: p for j, p in every.items() if p.steps}
        rate = {j: task.rule.lr * (d[j] / task.batch_size if scale_lr else 1.0) for j in parts}
        fronts = {j: Bent(front, replace(task.rule, lr=rate[j]), local) for j in parts}
        server = Bent(back, task.server_rule or task.rule, local)
        for k in range(longest(parts)):
            active = active_at(k, parts)
            x = {j: fronts[j].module(parts[j].steps[k][0]) for j in active}
            merged = torch.cat([x[j].detach() for j in active])
            labels = torch.cat([parts[j].steps[k][1] for j in active])
            gx, of_back = server_gradients(server, merged, labels)
            slices = dict(zip(active, torch.split(gx, [len(x[j]) for j in active]), strict=True))
            bent_step([server], [of_back], n, local)
            for j in active:
                client_step(fronts[j], x[j], slices[j] * len(merged) / len(x[j]), n, local)
        weights = {j: 1 if front_weights == "uniform" else d[j] for j in parts}
        return {**mean((fronts[j].module, weights[j]) for j in parts), **server.module.state_dict()}

    return play


# ---- PSL, SGLR, SSL ----------------------------------------------------------------------------------------------


def psl() -> KeepScheme:
    """A surrogate for each client, averaged at the end of the round; the fronts are never averaged."""

    def play(task: Task, n: int, fronts: Mapping[int, Bent], back: nn.Sequential, parts: Parts) -> State:
        backs = {j: Bent(back, task.server_rule or task.rule) for j in parts}
        for j, p in parts.items():
            for batch in p.steps:
                pair_step(fronts[j], backs[j], batch, n, None)
        return averaged(backs, parts)

    return play


def sglr(share: float = 0.5) -> KeepScheme:
    """PSL, where the first clients of the round get a common gradient; the surrogates have stepped on their own."""

    def play(task: Task, n: int, fronts: Mapping[int, Bent], back: nn.Sequential, parts: Parts) -> State:
        backs = {j: Bent(back, task.server_rule or task.rule) for j in parts}
        sizes = {j: p.size for j, p in parts.items()}
        for k in range(longest(parts)):
            x = {j: fronts[j].module(parts[j].steps[k][0]) for j in active_at(k, parts)}
            gx: Rows = {}
            for j in x:
                gx[j], of_back = server_gradients(backs[j], x[j], parts[j].steps[k][1])
                backs[j].step(of_back, n)
            for j, gradient in common_gradient(gx, sizes, share, list(parts)).items():
                client_step(fronts[j], x[j], gradient, n)
        return averaged(backs, parts)

    return play


def ssl(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
    """One front goes from client to client, one server model is with it; a client's memory is its own."""
    server = Bent(back, task.server_rule or task.rule)
    latest = front
    for p in parts.values():
        mine = Bent(latest, task.rule)
        for batch in p.steps:
            pair_step(mine, server, batch, n, None)
        latest = mine.module
    return {**latest.state_dict(), **server.module.state_dict()}


# ---- The Cycle family --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cycle:
    """E_s, the server's batch size (None: the clients'), how samples count, and BatchNorm in the frozen pass."""

    server_epochs: int = 1
    server_batch: int | None = None
    loss_weight: Literal["samples", "uniform"] = "samples"
    frozen_bn: Literal["train", "eval", "no_update"] = "train"


def server_phase(
    server: Bent, cycle: Cycle, sent: Sequence[tuple[Tensor, Tensor, int]], B: int, n: int, local: Local = None
) -> None:
    """Train the server on what was sent: (rows, labels, |D_j|) of each client, as one data set."""
    x = torch.cat([rows.detach() for rows, _, _ in sent])
    y = torch.cat([labels for _, labels, _ in sent])
    w = torch.cat([torch.full((len(rows),), float(size), dtype=x.dtype) for rows, _, size in sent])
    if cycle.loss_weight == "uniform":
        w = torch.ones_like(w)
    bs = cycle.server_batch or B
    for _ in range(cycle.server_epochs):
        for first in range(0, len(x), bs):
            some = slice(first, first + bs)
            if len(x[some]) == 1 and any(isinstance(m, nn.BatchNorm1d) for m in server.module.modules()):
                continue
            each = functional.cross_entropy(server.module(x[some]), y[some], reduction="none")
            loss = (w[some] * each).sum() / w[some].sum()
            bent_step([server], [torch.autograd.grad(loss, list(server.weights.values()))], n, local)


def frozen_gradient(server: Half, cycle: Cycle, x: Tensor, y: Tensor) -> Tensor:
    """Of the mean loss over a client's own rows, with the server as it has become; only its statistics may move."""
    before = {name: value.clone() for name, value in server.module.state_dict().items()}
    server.module.train(cycle.frozen_bn != "eval")
    leaf = x.detach().clone().requires_grad_()
    (gx,) = torch.autograd.grad(functional.cross_entropy(server.module(leaf), y), [leaf])
    server.module.train()
    if cycle.frozen_bn != "train":
        server.module.load_state_dict(before)
    return gx


def cycle_keep(cycle: Cycle, share: float | None = None, local: Local = None) -> KeepScheme:
    """CyclePSL, and with a share CycleSGLR: at each step the server first learns, then judges."""

    def play(task: Task, n: int, fronts: Mapping[int, Bent], back: nn.Sequential, parts: Parts) -> State:
        server = Bent(back, task.server_rule or task.rule, local)
        sizes = {j: p.size for j, p in parts.items()}
        for k in range(longest(parts)):
            active = active_at(k, parts)
            labels = {j: parts[j].steps[k][1] for j in active}
            x = {j: fronts[j].module(parts[j].steps[k][0]) for j in active}
            server_phase(server, cycle, [(x[j], labels[j], sizes[j]) for j in active], task.batch_size, n, local)
            gx = {j: frozen_gradient(server, cycle, x[j], labels[j]) for j in active}
            if share is not None:
                gx = common_gradient(gx, sizes, share, list(parts))
            for j in active:
                client_step(fronts[j], x[j], gx[j], n, local)
        return server.module.state_dict()

    return play


def cyclesfl(cycle: Cycle, local: Local = None) -> Scheme:
    """The same, with the fronts averaged at the end of the round."""

    def play(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
        fronts = {j: Bent(front, task.rule, local) for j in parts}
        server = cycle_keep(cycle, local=local)(task, n, fronts, back, parts)
        return {**averaged(fronts, parts), **server}

    return play


def cyclessl(cycle: Cycle, local: Local = None) -> Scheme:
    """SSL, where the server learns E_s times from each batch before it judges it."""

    def play(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
        server = Bent(back, task.server_rule or task.rule, local)
        latest = front
        for p in parts.values():
            mine = Bent(latest, task.rule, local)
            for inputs, y in p.steps:
                x = mine.module(inputs)
                server_phase(server, replace(cycle, server_batch=len(x)), [(x, y, p.size)], len(x), n, local)
                client_step(mine, x, frozen_gradient(server, cycle, x, y), n, local)
            latest = mine.module
        return {**latest.state_dict(), **server.module.state_dict()}

    return play


# ---- Clients that keep their fronts ------------------------------------------------------------------------------


def train_keep(task: Task, scheme: KeepScheme, local: Local = None) -> tuple[nn.Sequential, list[nn.Sequential]]:
    """Rounds in which clients keep their fronts; FedAvgM acts on the server's half. Mean and own models."""
    first, back = in_two(copied(task.model), task.cut)
    kept = [copied(first) for _ in task.clients]
    m_g = {name: torch.zeros_like(w) for name, w in back.named_parameters()}
    took_part: dict[int, Part] = {}
    for n in range(1, task.rounds + 1):
        parts = parts_of(task)
        took_part |= parts
        fronts = {j: Bent(kept[j], task.rule, local) for j in parts}
        start = {name: value.clone() for name, value in back.state_dict().items()}
        server = scheme(task, n, fronts, back, parts)
        if task.global_beta is not None:
            for name in m_g:
                m_g[name] = task.global_beta * m_g[name] + (start[name] - server[name])
                server[name] = start[name] - m_g[name]
        back.load_state_dict(server)
        for j, front in fronts.items():
            kept[j] = front.module
    average = copied(first)
    average.load_state_dict(mean((kept[j], p.size) for j, p in took_part.items()))
    return in_one(average, back), [in_one(front, back) for front in kept]
