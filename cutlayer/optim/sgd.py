"""SGD with Polyak's or Nesterov's momentum; it computes the same as torch.optim.SGD with dampening 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cutlayer.errors import expect, is_number
from cutlayer.optim.optimizer import Decay, check_rates

KERNELS = ("cpu", "cuda", "mps")  # devices with a kernel for a whole step of SGD
LONG = 2**14
"""Numbers in a row that are worth a call of that kernel, which takes one row at a time."""


@dataclass(frozen=True)
class SGD:
    """SGD with momentum: m <- beta*m + g; w <- w - eta*m."""

    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay: Decay = 1.0
    moments: ClassVar[int] = 1
    decoupled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_rates(self.lr, self.weight_decay, self.decay)
        expect(is_number(self.momentum) and 0 <= self.momentum < 1, "momentum", self.momentum, "a number in [0, 1)")

    @property
    def remembers(self) -> bool:
        return self.momentum > 0

    def regularise(self, g: Tensor, w: Tensor) -> None:
        if self.weight_decay:
            g.add_(w, alpha=self.weight_decay)

    def update(self, w: Tensor, g: Tensor, m: Sequence[Tensor], eta: float, t: int) -> None:
        torch.add(g, m[0], alpha=self.momentum, out=m[0])
        w.add_(m[0], alpha=-eta)

    def past(self, m_bar: Tensor) -> Tensor:
        return m_bar * self.momentum

    def fused(self, w: Tensor, g: Tensor, past: Tensor, eta: float, t: int) -> None:
        w.add_(g.add_(past), alpha=-eta)

    def fused_with_decay(self, w: Tensor, g: Tensor, past: Tensor, eta: float, t: int) -> None:
        """g <- g + (past + lam*w); w <- w - eta*g."""
        lam = self.weight_decay
        long = g.device.type in KERNELS and g.dtype in (torch.float32, torch.float64) and g.shape[-1] >= LONG
        if long:
            _in_one_pass(w, g, past, eta, lam)
        else:
            w.add_(g.add_(torch.add(past, w, alpha=lam) if lam else past), alpha=-eta)


def _in_one_pass(w: Tensor, g: Tensor, past: Tensor, eta: float, lam: float) -> None:
    """The same (on a CPU to the bit) by torch's kernel for a step of SGD: g is its momentum, `past` its gradient."""
    torch._fused_sgd_(
        w.unbind(),
        [past] * len(g),
        g.unbind(),
        weight_decay=lam,
        momentum=1.0,
        lr=eta,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


@dataclass(frozen=True)
class NAG(SGD):
    """Nesterov's accelerated gradient, PyTorch's form: m <- beta*m + g; w <- w - eta*(g + beta*m)."""

    def update(self, w: Tensor, g: Tensor, m: Sequence[Tensor], eta: float, t: int) -> None:
        torch.add(g, m[0], alpha=self.momentum, out=m[0])
        w.add_(g, alpha=-eta).add_(m[0], alpha=-eta * self.momentum)

    def fused(self, w: Tensor, g: Tensor, past: Tensor, eta: float, t: int) -> None:
        w.add_(g, alpha=-eta).add_(g.add_(past), alpha=-eta * self.momentum)
