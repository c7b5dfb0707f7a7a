"""Lion (Chen et al., NeurIPS 2023): the sign of an interpolated momentum is the step.

The step uses one interpolation of the *old* moment and the gradient; the new moment is another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cutlayer.optim.optimizer import Decay, check_betas, check_rates


@dataclass(frozen=True)
class Lion:
    """Lion: c = b1*m + (1-b1)*g; w <- w*(1 - eta*lam) - eta*sign(c); m <- b2*m + (1-b2)*g."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    decay: Decay = 1.0
    moments: ClassVar[int] = 1
    decoupled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rates(self.lr, self.weight_decay, self.decay)
        object.__setattr__(self, "betas", check_betas(self.betas))

    @property
    def remembers(self) -> bool:
        return any(self.betas)

    def regularise(self, g: Tensor, w: Tensor) -> None:
        pass

    def update(self, w: Tensor, g: Tensor, m: Sequence[Tensor], eta: float, t: int) -> None:
        self._step(w, g, m[0], eta)
        m[0].lerp_(g, 1 - self.betas[1])

    def past(self, m_bar: Tensor) -> Tensor:
        return m_bar

    def fused(self, w: Tensor, g: Tensor, past: Tensor, eta: float, t: int) -> None:
        self._step(w, g, past, eta)
        g.mul_(1 - self.betas[1]).add_(past, alpha=self.betas[1])

    def _step(self, w: Tensor, g: Tensor, m: Tensor, eta: float) -> None:
        c = torch.add((1 - self.betas[0]) * g, m, alpha=self.betas[0])
        w.mul_(1 - eta * self.weight_decay).sub_(c.sign_(), alpha=eta)
