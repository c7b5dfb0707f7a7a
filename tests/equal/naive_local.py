"""The local rules once more, as plainly as they can be said: FedProx and FedNAR under four schemes.

FedProx  g = grad + mu (w - w0), w0 the weights at the start of the round; weight decay and momentum come after it.
FedNAR   h = grad + lam w, c = min(1, A / (||h|| + 1e-6)), and c h takes the place of the gradient: the optimizer's own
         weight decay is lam, and it is used up here. The norm is over a client's two halves, or over each by itself.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.equal.naive import Batch, Half, Moments, Parts, Rule, Scheme, State, Task, mean


@dataclass(frozen=True)
class FedProx:
    """A pull towards the weights the round began with."""

    mu: float


@dataclass(frozen=True)
class FedNAR:
    """Gradient and weight decay are clipped together."""

    max_norm: float = 10.0
    norm: Literal["joint", "half"] = "joint"


Local = FedProx | FedNAR | None
Clips = list[bool]  # for every norm that was taken, whether it was above the limit


class Bent(Half):
    """A half that remembers where it began; under FedNAR its weight decay is a matter of the rule."""

    def __init__(self, module: nn.Sequential, rule: Rule, local: Local = None) -> None:
        nar = isinstance(local, FedNAR)
        super().__init__(module, replace(rule, weight_decay=0.0) if nar else rule)
        self.lam = rule.weight_decay if nar else 0.0
        self.start = {name: w.detach().clone() for name, w in self.weights.items()}


def bent_step(
    halves: Sequence[Bent], gradients: Sequence[Sequence[Tensor]], n: int, local: Local, clips: Clips | None = None
) -> None:
    """One step of the halves that one client trains; both gradients were taken before either half moves."""
    bent: list[list[Tensor]] = []
    with torch.no_grad():
        for half, of_half in zip(halves, gradients, strict=True):
            named = list(zip(half.weights.items(), of_half, strict=True))
            if isinstance(local, FedProx):
                bent.append([g + local.mu * (w - half.start[name]) for (name, w), g in named])
            else:
                bent.append([g + half.lam * w for (_, w), g in named])
        if isinstance(local, FedNAR):
            for group in [bent] if local.norm == "joint" else [[of_half] for of_half in bent]:
                norm = math.sqrt(sum(float((h**2).sum()) for of_half in group for h in of_half))
                c = min(1.0, local.max_norm / (norm + 1e-6))
                if clips is not None:
                    clips.append(c < 1)
                for of_half in group:
                    of_half[:] = [c * h for h in of_half]
    for half, of_half in zip(halves, bent, strict=True):
        half.step(of_half, n)


def pair_step(front: Bent, back: Bent, batch: Batch, n: int, local: Local, clips: Clips | None = None) -> None:
    """One split step of a pair."""
    x, y = batch
    a = front.module(x)
    leaf = a.detach().clone().requires_grad_()
    gx, *of_back = torch.autograd.grad(functional.cross_entropy(back.module(leaf), y), [leaf, *back.weights.values()])
    of_front = torch.autograd.grad(a, list(front.weights.values()), grad_outputs=gx)
    bent_step([front, back], [of_front, of_back], n, local, clips)


def in_two(model: nn.Sequential, cut: int) -> tuple[nn.Sequential, nn.Sequential]:
    """The blocks up to and with the cut, and the rest, under their own names; nothing is copied."""
    blocks = list(model.named_children())
    return nn.Sequential(OrderedDict(blocks[: cut + 1])), nn.Sequential(OrderedDict(blocks[cut + 1 :]))


def in_one(front: nn.Sequential, back: nn.Sequential) -> nn.Sequential:
    """The whole of two halves."""
    return nn.Sequential(OrderedDict([*front.named_children(), *back.named_children()]))


def opened(
    task: Task, front: nn.Sequential, back: nn.Sequential, parts: Parts, local: Local
) -> tuple[dict[int, Bent], dict[int, Bent]]:
    """Every client's own front and surrogate, with fresh optimizers."""
    server_rule = task.server_rule or task.rule
    return {j: Bent(front, task.rule, local) for j in parts}, {j: Bent(back, server_rule, local) for j in parts}


def averaged(halves: Mapping[int, Half], parts: Parts) -> State:
    """The mean by sample counts over the clients of the round."""
    return mean((halves[j].module, part.size) for j, part in parts.items())


def fedavg(local: Local, clips: Clips) -> Scheme:
    """The uncut model with the rule on all of it; a norm per half is a matter of two halves, so then there are two."""

    def uncut(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
        models = {j: Bent(in_one(front, back), task.rule, local) for j in parts}
        for j, part in parts.items():
            for x, y in part.steps:
                loss = functional.cross_entropy(models[j].module(x), y)
                gradients = torch.autograd.grad(loss, list(models[j].weights.values()))
                bent_step([models[j]], [gradients], n, local, clips)
        return averaged(models, parts)

    def halved(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
        fronts, backs = opened(task, front, back, parts, local)
        for j, part in parts.items():
            for batch in part.steps:
                pair_step(fronts[j], backs[j], batch, n, local, clips)
        return {**averaged(fronts, parts), **averaged(backs, parts)}

    return halved if isinstance(local, FedNAR) and local.norm == "half" else uncut


def sflv1_epoch(local: Local, clips: Clips) -> Scheme:
    """Surrogates averaged and their optimizers reset after every local epoch; w0 stays what the round began with."""

    def play(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
        fronts, backs = opened(task, front, back, parts, local)
        for e in range(task.local_epochs):
            for j, part in parts.items():
                for batch in part.epochs[e]:
                    pair_step(fronts[j], backs[j], batch, n, local, clips)
            average = averaged(backs, parts)
            for back_j in backs.values():
                back_j.module.load_state_dict(average)
                back_j.forget()
        return {**averaged(fronts, parts), **averaged(backs, parts)}

    return play


def sflv2(local: Local, clips: Clips, order: Literal["client", "step"], reset: Literal["step", "round"]) -> Scheme:
    """One server model, which takes the clients' batches one after another."""

    def play(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
        fronts, _ = opened(task, front, back, parts, local)
        server = Bent(back, task.server_rule or task.rule, local)
        turns = [(k, j) for j, part in parts.items() for k in range(len(part.steps))]
        for k, j in turns if order == "client" else sorted(turns):
            if reset == "step":
                server.forget()
            pair_step(fronts[j], server, parts[j].steps[k], n, local, clips)
        return {**averaged(fronts, parts), **server.module.state_dict()}

    return play


def smofi(local: Local, clips: Clips, alpha: float = -0.1) -> Scheme:
    """Momenta, already made of what the rule has left of the gradients, are replaced by their mean after every step."""

    def play(task: Task, n: int, front: nn.Sequential, back: nn.Sequential, parts: Parts) -> State:
        fronts, backs = opened(task, front, back, parts, local)
        finished: dict[int, tuple[int, Moments]] = {}  # k_j and the buffer of a client's last step
        for k in range(max(len(part.steps) for part in parts.values())):
            active = [j for j, part in parts.items() if k < len(part.steps)]
            for j in active:
                pair_step(fronts[j], backs[j], parts[j].steps[k], n, local, clips)
            fused: Moments = {"m": {}, "v": {}}
            for which, of in fused.items():
                for name, w in backs[active[0]].weights.items():
                    total = torch.zeros_like(w)
                    for j in active:
                        total = total + backs[j].moments[which][name]
                    for k_j, final in finished.values():
                        total = total + (k - k_j + 1) ** alpha * final[which][name]
                    of[name] = (total / len(parts)).detach()
            for j in active:
                if len(parts[j].steps) == k + 1:
                    finished[j] = (k, backs[j].moments)
                backs[j].moments = {which: dict(of) for which, of in fused.items()}
        return {**averaged(fronts, parts), **averaged(backs, parts)}

    return play
