"""Calibrated logits: the loss of a client's batch is taken of z + tau*log pi_j (docs/algorithms.md).

pi_j(c) = (n_j(c) + 1/C) / (N_j + 1)     n_j(c): labels c of client j in this round, so far; N_j: their sum
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cutlayer.errors import ContractError


class Calibrated:
    """Counts the labels of each client in a round, and shifts its logits."""

    def __init__(self, tau: float) -> None:
        self.tau = tau
        self.counts: dict[int, Tensor] = {}

    def begin(self) -> None:
        """Forget the labels of the last round."""
        self.counts = {}

    def __call__(self, z: Tensor, y: Tensor, clients: Sequence[int]) -> Tensor:
        """Return z + tau*log pi_j; for several clients, z and y are stacked."""
        if y.is_floating_point() or z.ndim != y.ndim + 1:
            raise ContractError(
                f"calibrate = {self.tau:g}: outputs {tuple(z.shape)} and targets {tuple(y.shape)} of type {y.dtype}; "
                "expected class labels, and a logit for each class"
            )
        if len(clients) == 1 and z.ndim == 2:
            return z + self.tau * self._log_pi(clients[0], y, z)
        return z + self.tau * torch.stack([self._log_pi(*one, z) for one in zip(clients, y, strict=True)])[:, None]

    def _log_pi(self, j: int, y: Tensor, z: Tensor) -> Tensor:
        C = z.shape[-1]
        n_j = self.counts.setdefault(j, torch.zeros(C, dtype=z.dtype, device=z.device))
        n_j.index_add_(0, y.reshape(-1), torch.ones(y.numel(), dtype=z.dtype, device=z.device))
        return torch.log((n_j + 1 / C) / (n_j.sum() + 1))
