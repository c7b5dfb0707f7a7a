"""Adam and AdamW; they compute the same as torch.optim.Adam and torch.optim.AdamW."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cutlayer.errors import expect, is_number
from cutlayer.optim.optimizer import Decay, check_betas, check_rates


@dataclass(frozen=True)
class Adam:
    """Adam: M <- b1*M + (1-b1)*g; V <- b2*V + (1-b2)*g^2; both divided by 1 - b^t."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay: Decay = 1.0
    moments: ClassVar[int] = 2
    decoupled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_rates(self.lr, self.weight_decay, self.decay)
        expect(is_number(self.eps) and self.eps > 0, "eps", self.eps, "a number above 0")
        object.__setattr__(self, "betas", check_betas(self.betas))

    @property
    def remembers(self) -> bool:
        return any(self.betas)

    def regularise(self, g: Tensor, w: Tensor) -> None:
        if self.weight_decay:
            g.add_(w, alpha=self.weight_decay)

    def update(self, w: Tensor, g: Tensor, m: Sequence[Tensor], eta: float, t: int) -> None:
        for moment, beta in zip(m, self.betas, strict=True):
            moment.mul_(beta)
        self.accumulate(m, g)
        self.apply(w, m, eta, t)

    def accumulate(self, m: Sequence[Tensor], g: Tensor) -> None:
        m[0].add_(g, alpha=1 - self.betas[0])
        m[1].addcmul_(g, g, value=1 - self.betas[1])

    def apply(self, w: Tensor, m: Sequence[Tensor], eta: float, t: int) -> None:
        """w <- w - eta*direction, in place."""
        c1, c2 = (1 - b**t for b in self.betas)
        M, V = m
        scale = V.sqrt().div_(math.sqrt(c2)).add_(self.eps)
        w.addcdiv_(M, scale, value=-eta / c1)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled decay: w <- w*(1 - eta*lam) before the step."""

    decoupled: ClassVar[bool] = True

    def regularise(self, g: Tensor, w: Tensor) -> None:
        pass

    def apply(self, w: Tensor, m: Sequence[Tensor], eta: float, t: int) -> None:
        w.mul_(1 - eta * self.weight_decay)
        super().apply(w, m, eta, t)
