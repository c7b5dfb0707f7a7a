"""Step-wise momentum fusion for optimizers you already have (SMoFi, Algorithm 1 and Eq. 4 to 6).

k      the step of the round, from 0        A  the optimizers that stepped in it
k_j    the last step optimizer j took       H  those that stepped before and have finished
m      |A| + |H|                            s  (k - k_j + offset)^alpha, the weight of a stale momentum

mbar <- ( sum_A m_j + sum_H s_j * m_j ) / m                                                        Eq. 5, 6
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutlayer.errors import ContractError, expect, is_number
from cutlayer.optim.optimizer import LinearMoments, Optimizer

Weight = float | Tensor
"""The weight of a stale momentum; on a GPU it may be a tensor, so that the host need not wait for it."""


@dataclass(frozen=True)
class Staleness:
    """How much a finished client's last momentum still counts (docs/algorithms.md, SMoFi: 2, 4 and 8).

    `stale_offset` 1: the first reuse weighs 2^alpha (the poster); 0: it weighs 1 (the literal zero-based reading).
    `hist_norm` "count": divide by |A| + |H| (the paper); "weights": by |A| + sum of s.
    `rebias_history`: rescale Adam's stale moments by (1 - b^t) / (1 - b^t_j), t_j being their age in steps.
    `adaptive`: ours, not the paper's. s is not a power of the age but the cosine between the stale momentum and the
    average of the fresh ones (Adam: of the first moments), or 0 where the cosine is negative.
    `fade`: ours too. s is fade^(k - k_j) instead; with the optimizer's momentum beta, as a gradient fades inside it.
    """

    alpha: float = -0.1
    stale_offset: int = 1
    hist_norm: str = "count"
    rebias_history: bool = False
    adaptive: bool = False
    fade: float | None = None

    def __post_init__(self) -> None:
        expect(is_number(self.alpha) and self.alpha <= 0, "alpha", self.alpha, "a finite number, at most 0")
        expect(self.stale_offset in (0, 1), "stale_offset", self.stale_offset, "0 or 1")
        expect(self.hist_norm in ("count", "weights"), "hist_norm", self.hist_norm, "'count' or 'weights'")
        expect(isinstance(self.rebias_history, bool), "rebias_history", self.rebias_history, "true or false")
        expect(isinstance(self.adaptive, bool), "adaptive", self.adaptive, "true or false")
        share = self.fade is None or (is_number(self.fade) and 0 <= self.fade <= 1)
        expect(share, "fade", self.fade, "a number from 0 to 1")
        expect(not (self.adaptive and self.fade is not None), "fade", self.fade, "None, where adaptive is true")

    def weight(self, k: int, k_j: int) -> float:
        """s_j at step k of a momentum recorded at step k_j < k (Eq. 6)."""
        if self.fade is not None:
            return float(self.fade ** (k - k_j))
        return float((k - k_j + self.stale_offset) ** self.alpha)

    def total(self, active: float, weights: Sequence[Weight], counts: Sequence[float]) -> Weight:
        """The divisor of Eq. 5: what active clients count, and the weights of finished ones or what they count."""
        if self.hist_norm == "count":
            return active + math.fsum(counts)
        waits = any(isinstance(s, Tensor) for s in weights)
        return active + (sum(weights) if waits else math.fsum(map(float, weights)))

    def faded(self, k: int, k_j: int, m_j: Sequence[Tensor], fresh: Sequence[Tensor]) -> Weight:
        """The weight of a recorded momentum `m_j`; `fresh` is the sum of the fresh ones."""
        if not self.adaptive:
            return self.weight(k, k_j)
        alike = cosine(m_j[0], fresh[0])
        return alike.clamp(min=0) if isinstance(alike, Tensor) else max(0.0, alike)

    def rebias(self, beta: float, k: int, k_j: int) -> float:
        """The factor that fits a stale moment to Adam's bias correction at step k; 1 unless `rebias_history` is set."""
        if not self.rebias_history or beta == 0:
            return 1.0
        return float((1 - beta ** (k + 1)) / (1 - beta ** (k_j + 1)))


class Fusion:
    """Computes m_bar from all momenta of each step; a client that is missing from a step has finished. `counts`: what
    each client counts (None: 1)."""

    def __init__(self, staleness: Staleness, optimizer: Optimizer, counts: Mapping[int, float] | None = None) -> None:
        self.staleness, self.k, self.counts = staleness, -1, counts
        self.corrected = optimizer.betas if isinstance(optimizer, LinearMoments) else (0.0,) * optimizer.moments
        self.last: dict[int, tuple[int, list[Tensor]]] = {}  # j -> k_j, and its momentum at that step

    def __call__(self, momenta: Mapping[int, Sequence[Tensor]]) -> list[Tensor]:
        self.k += 1
        k, rule = self.k, self.staleness
        H = {j: self.last[j] for j in sorted(self.last) if j not in momenta}
        for j, m_j in momenta.items():
            self.last[j] = k, [m.clone() for m in m_j]
        n = {j: 1.0 if self.counts is None else self.counts[j] for j in self.last}
        fresh = [[m if n[j] == 1 else n[j] * m for m in m_j] for j, m_j in momenta.items()]
        total = [torch.stack(list(moments)).sum(dim=0) for moments in zip(*fresh, strict=True)]
        s = {j: n[j] * rule.faded(k, k_j, m_j, total) for j, (k_j, m_j) in H.items()}
        m = rule.total(math.fsum(n[j] for j in momenta), list(s.values()), [n[j] for j in H])
        for i, beta in enumerate(self.corrected):
            for j, (k_j, m_j) in H.items():
                total[i] = total[i] + s[j] * rule.rebias(beta, k, k_j) * m_j[i]
        return [moment / m for moment in total]  # Eq. 5


class MomentumFusion:
    """One momentum for many optimizers: after every step, each buffer becomes the staleness-aware mean of all.

    `optimizers`: one `torch.optim` SGD (momentum, nesterov or not), Adam or AdamW per surrogate model, all with
    parameters of the same shapes in the same order. Call `step` instead of each optimizer's own:

    >>> import torch, cutlayer as cl
    >>> models = [torch.nn.Linear(3, 2) for _ in range(4)]
    >>> fusion = cl.MomentumFusion([torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models])
    >>> for model in models:
    ...     model(torch.ones(5, 3)).sum().backward()
    >>> fusion.step()              # every optimizer steps, then all buffers are fused
    >>> fusion.step(active=[0, 2]) # 1 and 3 have finished this round; their last momentum fades as k^alpha
    >>> fusion.reset()             # a new round
    """

    def __init__(
        self,
        optimizers: Iterable[torch.optim.Optimizer],
        alpha: float = -0.1,
        stale_offset: int = 1,
        hist_norm: str = "count",
        rebias_history: bool = False,
    ) -> None:
        self.staleness = Staleness(alpha, stale_offset, hist_norm, rebias_history)
        self.optimizers = list(optimizers)
        expect(len(self.optimizers) > 0, "optimizers", [], "at least one")
        self._names = _moment_names(self.optimizers)
        self._parameters = [[p for group in o.param_groups for p in group["params"]] for o in self.optimizers]
        _check_alike(self.optimizers, self._parameters)
        self._place = [{id(p): i for i, p in enumerate(ps)} for ps in self._parameters]
        self._k = -1  # the last step taken
        self._last: dict[int, int] = {}  # j -> k_j, for every j that has stepped since reset
        # What each optimizer contributed at k_j, before the fusion overwrote its buffers.
        self._contribution: dict[int, list[list[Tensor]]] = {}
        self._m_bar = [[torch.zeros_like(p) for p in self._parameters[0]] for _ in self._names]

    @torch.no_grad()
    def step(self, active: Iterable[int] | None = None) -> None:
        """Step the optimizers in `active` (None: all), then fuse. One that is left out after a step has finished."""
        A = self._admit(range(len(self.optimizers)) if active is None else active)
        for j in A:
            if self._k >= 0 and j not in self._last:  # a late joiner starts with the fused momentum
                self._give(j)
            self.optimizers[j].step()
        self._k += 1
        k = self._k
        for j in A:
            self._last[j] = k
            self._record(j)
        H = [j for j in sorted(self._last) if self._last[j] < k]
        s = {j: self.staleness.weight(k, self._last[j]) for j in H}
        total = self.staleness.total(len(A), list(s.values()), [1.0] * len(H))
        for which, fused in enumerate(self._m_bar):
            for i, m_bar in enumerate(fused):
                m_bar.zero_()
                for j in A:
                    m_bar += self._contribution[j][which][i]
                for j in H:
                    rebias = self.staleness.rebias(self._beta(j, i, which), k, self._last[j])
                    m_bar.add_(self._contribution[j][which][i], alpha=s[j] * rebias)
                m_bar /= total  # Eq. 5
        for j in A:
            self._give(j)

    @torch.no_grad()
    def reset(self) -> None:
        """Start a new round: momentum zero, history empty, Adam's step counters zero."""
        self._k, self._last = -1, {}
        self._contribution.clear()
        for j, optimizer in enumerate(self.optimizers):
            for parameter in self._parameters[j]:
                for value in optimizer.state.get(parameter, {}).values():
                    if isinstance(value, Tensor):
                        value.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the fusion; save the optimizers' own state_dicts separately."""
        return {
            "k": self._k,
            "last": dict(self._last),
            "contribution": {j: _copy(named) for j, named in self._contribution.items()},
            "m_bar": _copy(self._m_bar),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        keys = {"k", "last", "contribution", "m_bar"}
        expect(set(state) == keys, "state", sorted(state), f"the keys {', '.join(sorted(keys))}")
        known = range(len(self.optimizers))
        last = {int(j): int(k) for j, k in state["last"].items()}
        contribution = {int(j): _copy(named) for j, named in state["contribution"].items()}
        m_bar = _copy(state["m_bar"])
        expect(all(j in known for j in last), "state['last']", sorted(last), f"indices below {len(self.optimizers)}")
        expect(
            set(last) == set(contribution), "state['contribution']", sorted(contribution), f"those of {sorted(last)}"
        )
        shapes = _shapes(self._m_bar)
        for what, named in (("m_bar", m_bar), *((f"contribution[{j}]", c) for j, c in contribution.items())):
            expect(_shapes(named) == shapes, f"state['{what}']: shapes", _shapes(named), f"{shapes}")
        self._k, self._last, self._contribution, self._m_bar = int(state["k"]), last, contribution, m_bar

    def _admit(self, active: Iterable[int]) -> list[int]:
        active = list(active)
        expect(not any(isinstance(j, bool) for j in active), "active", active, "indices, not a mask")
        try:
            A = sorted(operator.index(j) for j in active)
        except TypeError as error:
            raise ContractError(f"active = {active!r}: expected indices of optimizers") from error
        expect(len(A) > 0, "active", A, "at least one index")
        expect(len(set(A)) == len(A), "active", A, "each index once")
        for j in A:
            expect(0 <= j < len(self.optimizers), "active", j, f"0 to {len(self.optimizers) - 1}")
            if j in self._last and self._last[j] < self._k:
                raise ContractError(
                    f"active = {j}: it finished after step {self._last[j]}; call reset() for a new round"
                )
        return A

    def _record(self, j: int) -> None:
        """Copy optimizer j's buffers as they are now, into storage that is allocated once."""
        if j not in self._contribution:
            self._contribution[j] = [[torch.zeros_like(p) for p in self._parameters[j]] for _ in self._names]
        for name, kept in zip(self._names, self._contribution[j], strict=True):
            for i, tensor in enumerate(kept):
                buffer = self._buffer(j, i, name)
                tensor.zero_() if buffer is None else tensor.copy_(buffer)

    def _give(self, j: int) -> None:
        """Write m_bar into optimizer j's buffers, creating missing ones, and set Adam's step counter to the round's."""
        for group in self.optimizers[j].param_groups:
            for parameter in group["params"]:
                state = self.optimizers[j].state[parameter]
                i = self._place[j][id(parameter)]
                for name, fused in zip(self._names, self._m_bar, strict=True):
                    if isinstance(state.get(name), Tensor):
                        state[name].copy_(fused[i])
                    else:
                        state[name] = fused[i].clone()
                if "betas" in group:
                    on = parameter.device if group.get("fused") or group.get("capturable") else torch.device("cpu")
                    state["step"] = torch.tensor(float(self._k + 1), device=on)

    def _buffer(self, j: int, i: int, name: str) -> Tensor | None:
        state = self.optimizers[j].state.get(self._parameters[j][i], {})
        buffer = state.get(name)
        return buffer if isinstance(buffer, Tensor) else None

    def _beta(self, j: int, i: int, name_index: int) -> float:
        """The beta of Adam's moment; 0 for SGD, whose momentum has no bias correction."""
        for group in self.optimizers[j].param_groups:
            if any(p is self._parameters[j][i] for p in group["params"]):
                return float(group["betas"][name_index]) if "betas" in group else 0.0
        raise AssertionError("every parameter is in a group")


def cosine(one: Tensor, other: Tensor) -> Weight:
    """The cosine of the angle between two vectors; 0 where one of them is zero. A GPU's is not waited for."""
    if one.device.type != "cpu":
        lengths = one.norm() * other.norm()
        return torch.where(lengths > 0, (one @ other) / lengths, 0.0)
    length = float(one.norm()) * float(other.norm())
    return float(one @ other) / length if length > 0 else 0.0


def _copy(tensors: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    return [[t.clone() for t in ts] for ts in tensors]


def _shapes(tensors: Sequence[Sequence[Tensor]]) -> list[list[tuple[int, ...]]]:
    return [[tuple(t.shape) for t in ts] for ts in tensors]


def _moment_names(optimizers: Sequence[torch.optim.Optimizer]) -> tuple[str, ...]:
    kinds = {type(o) for o in optimizers}
    names = sorted(kind.__name__ for kind in kinds)
    expect(len(kinds) == 1, "optimizers", names, "all of one kind")
    kind = kinds.pop()
    if issubclass(kind, torch.optim.SGD):
        moments: tuple[str, ...] = ("momentum_buffer",)
    elif issubclass(kind, torch.optim.Adam):  # AdamW is a subclass
        moments = ("exp_avg", "exp_avg_sq")
    else:
        raise ContractError(f"optimizers = {kind.__name__}: expected torch.optim SGD, Adam or AdamW")
    for group in (g for o in optimizers for g in o.param_groups):
        expect(group.get("momentum", 1) > 0, "momentum", group.get("momentum"), "above 0: there is nothing to fuse")
        expect(group.get("dampening", 0) == 0, "dampening", group.get("dampening"), "0")
        expect(not group.get("amsgrad", False), "amsgrad", True, "False: a running maximum cannot be averaged")
    return moments


def _check_alike(optimizers: Sequence[torch.optim.Optimizer], parameters: Sequence[Sequence[Tensor]]) -> None:
    groups = [[len(g["params"]) for g in o.param_groups] for o in optimizers]
    shapes = [[(tuple(p.shape), str(p.dtype)) for p in ps] for ps in parameters]
    for j in range(1, len(optimizers)):
        expect(groups[j] == groups[0], f"optimizers[{j}]: group sizes", groups[j], f"{groups[0]}, as in optimizers[0]")
        expect(shapes[j] == shapes[0], f"optimizers[{j}]: shapes", shapes[j], f"{shapes[0]}, as in optimizers[0]")
        for key in ("momentum", "nesterov", "betas"):
            theirs, ours = ([g.get(key) for g in optimizers[o].param_groups] for o in (0, j))
            expect(ours == theirs, f"optimizers[{j}]: {key}", ours, f"{theirs}, as in optimizers[0]")
    seen: set[int] = set()
    for j, ps in enumerate(parameters):
        expect(not seen & {id(p) for p in ps}, f"optimizers[{j}]", "a shared parameter", "parameters of its own")
        seen |= {id(p) for p in ps}
