"""The algorithms once more, as plainly as they can be said, to hold the library against.

Whole modules copied per client, Python loops, momentum in dictionaries of tensors by parameter name. Nothing here is
shared with the library, and nothing here is meant to be fast.

j        a client             D_j   its samples           T_j   its steps in this round
n        a round, from 1      k     a step, from 0        p_j   |D_j| / sum |D_i| over the clients averaged
W        the whole model      Wbar  the weighted mean     eta   the learning rate of the round
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

State = dict[str, Tensor]
Moments = dict[str, State]  # "m" and, for Adam, "v"; each by parameter name
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Rule:
    """An optimizer's formula; it holds no state."""

    kind: Literal["sgd", "nag", "adam", "adamw", "lion"]
    lr: float
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay: float | Callable[[int], float] = 1.0
    factor: Callable[[int, int], float] = lambda n, k: 1.0  # of round n, and of step k in it
    micro: int | None = None  # samples of a micro-batch; None: a step is one batch

    def eta(self, n: int, k: int = 0) -> float:
        """The learning rate of step k of round n."""
        return self.lr * (self.decay(n) if callable(self.decay) else self.decay ** (n - 1)) * self.factor(n, k)


M = TypeVar("M", bound=nn.Module)


def copied(module: M, made: dict[int, nn.Parameter] | None = None) -> M:
    """A copy with blocks, parameters and buffers of its own. All else in a module stays as it is, and is not copied:
    that is quicker. `made`: the parameters copied so far, which another block may share."""
    made, other = {} if made is None else made, copy.copy(module)
    for w in module._parameters.values():
        if w is not None and id(w) not in made:
            made[id(w)] = nn.Parameter(w.detach().clone(), w.requires_grad)
    vars(other).update(
        _parameters={name: None if w is None else made[id(w)] for name, w in module._parameters.items()},
        _buffers={name: None if b is None else b.clone() for name, b in module._buffers.items()},
        _modules={name: None if one is None else copied(one, made) for name, one in module._modules.items()},
    )
    return other


class Half:
    """A copy of one half of the model, and the optimizer memory that belongs to it."""

    def __init__(self, module: nn.Sequential, rule: Rule) -> None:
        self.module, self.rule = copied(module), rule
        self.module.train()
        self.weights = dict(self.module.named_parameters())
        self.steps = 0  # in this round, for a half that lives for one
        self.forget()

    def forget(self) -> None:
        """Reset the optimizer: moments zero, step counter zero."""
        zeros = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        self.moments: Moments = {"m": dict(zeros), "v": dict(zeros)}
        self.t = 0

    def step(self, gradients: Sequence[Tensor], n: int, k: int | None = None) -> None:
        """One optimizer step, parameter by parameter. `k`: the step in this round; None: its own count of them."""
        eta = self.rule.eta(n, self.steps if k is None else k)
        self.t, self.steps = self.t + 1, self.steps + 1
        with torch.no_grad():
            for (name, w), gradient in zip(self.weights.items(), gradients, strict=True):
                if self.rule.kind in ("sgd", "nag"):
                    self._sgd(name, w, gradient, eta)
                elif self.rule.kind == "lion":
                    self._lion(name, w, gradient, eta)
                else:
                    self._adam(name, w, gradient, eta)

    def _sgd(self, name: str, w: Tensor, gradient: Tensor, eta: float) -> None:
        beta = self.rule.momentum
        g = gradient + self.rule.weight_decay * w
        m = beta * self.moments["m"][name] + g
        self.moments["m"][name] = m
        w.copy_(w - eta * (g + beta * m) if self.rule.kind == "nag" else w - eta * m)

    def _lion(self, name: str, w: Tensor, g: Tensor, eta: float) -> None:
        (b1, b2), lam, m = self.rule.betas, self.rule.weight_decay, self.moments["m"][name]
        c = b1 * m + (1 - b1) * g
        w.copy_(w * (1 - eta * lam) - eta * torch.sign(c))
        self.moments["m"][name] = b2 * m + (1 - b2) * g

    def _adam(self, name: str, w: Tensor, gradient: Tensor, eta: float) -> None:
        (b1, b2), lam = self.rule.betas, self.rule.weight_decay
        if self.rule.kind == "adamw":
            w.copy_(w * (1 - eta * lam))
            g = gradient
        else:
            g = gradient + lam * w
        m = b1 * self.moments["m"][name] + (1 - b1) * g
        v = b2 * self.moments["v"][name] + (1 - b2) * g**2
        self.moments["m"][name], self.moments["v"][name] = m, v
        w.copy_(w - eta * (m / (1 - b1**self.t)) / ((v / (1 - b2**self.t)).sqrt() + self.rule.eps))


def split_step(front: Half, back: Half, batch: Batch, n: int) -> None:
    """One step of a pair: activations go up, the gradient of the back as it was before its own step comes down."""
    of_front, of_back = split_gradients(front, back, batch)
    back.step(of_back, n, front.steps)
    front.step(of_front, n)


def split_gradients(front: Half, back: Half, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients of both halves: of the mean over the batch, taken in micro-batches where the rule says so."""
    if front.rule.micro is None:
        return gradients_of(front, back, *batch)
    sums: list[list[Tensor]] = []
    for x, y in zip(*(part.split(front.rule.micro) for part in batch), strict=True):
        of_front, of_back = gradients_of(front, back, x, y)
        sums.append([len(y) / len(batch[1]) * g for g in (*of_front, *of_back)])
    total = [torch.stack(same).sum(dim=0) for same in zip(*sums, strict=True)]
    return total[: len(front.weights)], total[len(front.weights) :]


def gradients_of(front: Half, back: Half, x: Tensor, y: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients of both halves for one batch."""
    a = front.module(x)
    leaf = a.detach().clone().requires_grad_()
    loss = functional.cross_entropy(back.module(leaf), y)
    gx, *of_back = torch.autograd.grad(loss, [leaf, *back.weights.values()])
    return list(torch.autograd.grad(a, list(front.weights.values()), grad_outputs=gx)), of_back


def mean(weighted: Iterable[tuple[nn.Module, int]]) -> State:
    """The average of parameters and running statistics by sample counts; of counters, the largest."""
    states, sizes = zip(*((module.state_dict(), size) for module, size in weighted), strict=True)
    average: State = {}
    for name, like in states[0].items():
        values = [state[name] for state in states]
        if like.is_floating_point():
            p = [size / sum(sizes) for size in sizes]
            average[name] = sum((p_j * value for p_j, value in zip(p, values, strict=True)), torch.zeros_like(like))
        else:
            average[name] = torch.stack(values).max(dim=0).values
    return average


@dataclass(frozen=True)
class Task:
    """What is trained, on what and how; `lost` maps (round, client) to the first step that does not arrive.

    A client lost at step T_j has delivered every step, but not its report.
    """

    model: nn.Sequential
    clients: Sequence[Batch]
    cut: int
    rule: Rule
    server_rule: Rule | None = None
    rounds: int = 3
    batch_size: int = 4
    local_epochs: int = 2
    local_steps: int | None = None
    last_batch: Literal["drop", "keep"] = "drop"
    small_client: Literal["skip", "one_batch"] = "skip"
    global_beta: float | None = None
    lost: Mapping[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """What one client contributes to a round: the batches that arrive, by local epoch."""

    size: int
    epochs: list[list[Batch]]
    silent: float  # the first epoch which it does not finish; infinity where it finishes them all
    reported: bool

    @property
    def steps(self) -> list[Batch]:
        return [batch for epoch in self.epochs for batch in epoch]


def one_pass(task: Task, data: Batch) -> list[Batch]:
    """A client's samples in order, cut into batches."""
    (x, y), B = data, task.batch_size
    ends = list(range(B, len(x) + 1, B))
    if len(x) % B and (task.last_batch == "keep" or (len(x) < B and task.small_client == "one_batch")):
        ends.append(len(x))
    return [(x[start:end], y[start:end]) for start, end in pairwise([0, *ends])]


def part(task: Task, j: int, lost: int | None) -> Part:
    """Client j's part of a round in which it goes silent at step `lost`."""
    batches = one_pass(task, task.clients[j])
    epochs = [list(batches) for _ in range(task.local_epochs)]
    if task.local_steps is not None and batches:
        wrapped = [batches[k % len(batches)] for k in range(task.local_steps)]
        epochs = [wrapped[k : k + len(batches)] for k in range(0, len(wrapped), len(batches))]
    size, arrived, silent, done = len(task.clients[j][0]), [], math.inf, 0
    for e, epoch in enumerate(epochs):
        arrived.append(epoch if lost is None else epoch[: max(0, lost - done)])
        done += len(epoch)
        if lost is not None and lost < done:
            silent = min(silent, e)
    return Part(size, arrived, silent, lost is None and done > 0)


Parts = dict[int, Part]
Scheme = Callable[[Task, int, nn.Sequential, nn.Sequential, Parts], State]


def train(task: Task, scheme: Scheme) -> nn.Sequential:
    """Rounds of `scheme`, then the global update: FedAvgM where `global_beta` is given, on parameters only."""
    model = copied(task.model)
    m_g = {name: torch.zeros_like(w) for name, w in model.named_parameters()}
    for n in range(1, task.rounds + 1):
        parts = {j: part(task, j, task.lost.get((n, j))) for j in range(len(task.clients))}
        parts = {j: p for j, p in parts.items() if p.steps}
        start = {name: value.clone() for name, value in model.state_dict().items()}
        blocks = list(model.named_children())
        front, back = (nn.Sequential(OrderedDict(side)) for side in (blocks[: task.cut + 1], blocks[task.cut + 1 :]))
        W = scheme(task, n, front, back, parts)
        if task.global_beta is not None:
            for name in m_g:
                m_g[name] = task.global_beta * m_g[name] + (start[name] - W[name])
                W[name] = start[name] - m_g[name]
        model.load_state_dict(W)
    return model


def _open(task: Task, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> tuple[dict[int, Half], ...]:
    """Every client's own front and surrogate, with fresh optimizers."""
    server_rule = task.server_rule or task.rule
    return {j: Half(front, task.rule) for j in parts}, {j: Half(back, server_rule) for j in parts}


def _reported(halves: Mapping[int, Half], parts: Parts) -> State:
    return mean((halves[j].module, p.size) for j, p in parts.items() if p.reported)


def fedavg(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
    """Plain federated averaging: the model is not cut at all."""
    whole = nn.Sequential(OrderedDict([*front.named_children(), *back.named_children()]))
    models = {j: Half(whole, task.rule) for j in parts}
    for j, p in parts.items():
        for x, y in p.steps:
            loss = functional.cross_entropy(models[j].module(x), y)
            models[j].step(torch.autograd.grad(loss, list(models[j].weights.values())), n)
    return _reported(models, parts)


def sflv1(every: Literal["step", "epoch", "round"]) -> Scheme:
    """One surrogate per client; surrogates are averaged, copied back and their optimizers reset `every` so often."""

    def share(backs: dict[int, Half], parts: Parts, among: Sequence[int]) -> State:
        average = mean((backs[j].module, parts[j].size) for j in among)
        for j in among:
            backs[j].module.load_state_dict(average)
            backs[j].forget()
        return average

    def play(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
        fronts, backs = _open(task, front, back, parts)
        server: State = {}
        if every == "step":
            for k in range(max(len(p.steps) for p in parts.values())):
                active = [j for j, p in parts.items() if k < len(p.steps)]
                for j in active:
                    split_step(fronts[j], backs[j], parts[j].steps[k], n)
                server = share(backs, parts, active)
        else:
            epochs = max(len(p.epochs) for p in parts.values())
            for e in range(epochs):
                for j, p in parts.items():
                    for batch in p.epochs[e] if e < len(p.epochs) else []:
                        split_step(fronts[j], backs[j], batch, n)
                if every == "epoch" and e < epochs - 1:
                    share(backs, parts, [j for j, p in parts.items() if e < p.silent])
            server = _reported(backs, parts)  # the last epoch ends with the round
        return {**_reported(fronts, parts), **server}

    return play


def sflv2(order: Literal["client", "step"], reset: Literal["step", "client", "round", "never"]) -> Scheme:
    """One server model, which takes the clients' batches one after another."""
    kept: list[Half] = []  # the server's half of the last round, for its optimizer memory

    def play(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
        fronts, _ = _open(task, front, back, parts)
        server = Half(back, task.server_rule or task.rule)
        if reset == "never" and kept:
            server.moments, server.t = kept[-1].moments, kept[-1].t
        if order == "client":
            turns = [(j, batch) for j, p in parts.items() for batch in p.steps]
        else:
            longest = max(len(p.steps) for p in parts.values())
            turns = [(j, p.steps[k]) for k in range(longest) for j, p in parts.items() if k < len(p.steps)]
        last = -1
        for j, batch in turns:
            if reset == "step" or (reset == "client" and j != last):
                server.forget()
            split_step(fronts[j], server, batch, n)
            last = j
        kept.append(server)
        return {**_reported(fronts, parts), **server.module.state_dict()}

    return play


def smofi(
    alpha: float = -0.1,
    stale_offset: int = 1,
    hist_norm: Literal["count", "weights"] = "count",
    rebias_history: bool = False,
) -> Scheme:
    """Surrogates whose momenta are replaced by their mean after every step; a finished client's ages in the mean."""

    def fused(backs: dict[int, Half], active: list[int], history: dict[int, tuple[int, Moments]], k: int) -> Moments:
        rule = next(iter(backs.values())).rule
        s = {j: float(k - k_j + stale_offset) ** alpha for j, (k_j, _) in history.items()}
        total = len(active) + (sum(s.values()) if hist_norm == "weights" else len(history))
        result: Moments = {}
        for which, beta in (("m", rule.betas[0]), ("v", rule.betas[1])):
            result[which] = {}
            for name in backs[active[0]].moments[which]:
                accumulated = sum(backs[j].moments[which][name] for j in active)
                for j, (k_j, final) in history.items():
                    rebias = (1 - beta ** (k + 1)) / (1 - beta ** (k_j + 1)) if rebias_history else 1.0
                    accumulated = accumulated + s[j] * rebias * final[which][name]
                result[which][name] = torch.as_tensor(accumulated) / total
        return result

    def play(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
        fronts, backs = _open(task, front, back, parts)
        history: dict[int, tuple[int, Moments]] = {}
        for k in range(max(len(p.steps) for p in parts.values())):
            active = [j for j, p in parts.items() if k < len(p.steps)]
            for j in active:
                split_step(fronts[j], backs[j], parts[j].steps[k], n)
            mbar = fused(backs, active, history, k)
            for j in active:
                if k == len(parts[j].steps) - 1:
                    history[j] = (k, backs[j].moments)
                backs[j].moments = {which: dict(state) for which, state in mbar.items()}
        return {**_reported(fronts, parts), **_reported(backs, parts)}

    return play


def small_model(dtype: torch.dtype = torch.float64, bn_momentum: float | None = 0.1) -> nn.Sequential:
    """Four blocks with BatchNorm in the first and the third; no bias stands right before a BatchNorm."""
    torch.default_generator.manual_seed(3)
    return nn.Sequential(
        nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6, momentum=bn_momentum), nn.ReLU()),
        nn.Sequential(nn.Linear(6, 5), nn.Tanh()),
        nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6, momentum=bn_momentum), nn.ReLU()),
        nn.Linear(6, 3),
    ).to(dtype)


def small_clients(sizes: Sequence[int] = (5, 9, 13, 22, 3), dtype: torch.dtype = torch.float64) -> list[Batch]:
    """Clients of unequal size and unlike distribution."""
    torch.default_generator.manual_seed(4)
    clients = []
    for j, size in enumerate(sizes):
        y = torch.randint(0, 3, (size,)) if j % 2 else torch.arange(size) % 2 + j % 3 // 2
        clients.append(((torch.randn(size, 5) + y[:, None] + 0.3 * j).to(dtype), y))
    return clients


def difference(one: nn.Module, other: nn.Module) -> float:
    """The largest absolute difference over parameters and buffers."""
    a, b = one.state_dict(), other.state_dict()
    assert list(a) == list(b)
    return float(torch.stack([(a[name].double() - b[name].double()).abs().max() for name in a]).max())  # NaN stays NaN
