"""One gradient at the cut for a share of the clients (SGLR, Pal et al. 2021; docs/algorithms.md).

G_ib   the gradient of client i's mean loss with respect to its sample b       w_i   |D_i|
g_bar  sum_i sum_b w_i*G_ib / sum_i sum_b w_i, of the shape of one sample: what every sample of these clients gets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cutlayer.clients.messages import CutGrad, Smashed
from cutlayer.clients.waves import Wave
from cutlayer.errors import expect, is_number
from cutlayer.schemes.base import Closed, Server, Session


class Averaged:
    """Wraps a session, and averages the gradients at the cut of max(1, floor(share*m)) of its m clients."""

    def __init__(self, inner: Session, server: Server, clients: Sequence[int], share: float) -> None:
        self.inner, self.samples = inner, server.samples
        first = server.permutation(len(clients))[: max(1, int(share * len(clients) + 1e-9))]
        self.active = {clients[place] for place in first}

    def step(self, wave: Wave, smashed: Sequence[Smashed]) -> list[CutGrad]:
        return averaged(self.inner.step(wave, smashed), self.active, self.samples)

    def close(self) -> Closed:
        return self.inner.close()


def averaged(replies: Sequence[CutGrad], active: set[int], samples: Mapping[int, int]) -> list[CutGrad]:
    """The replies, with the gradients of active clients replaced by g_bar."""
    theirs = [reply for reply in replies if reply.address.client in active]
    if not theirs:
        return list(replies)
    w = [samples[reply.address.client] for reply in theirs]
    G = [_own(reply) for reply in theirs]
    total = sum(w_i * len(G_i) for w_i, G_i in zip(w, G, strict=True))
    g_bar = torch.stack([w_i * G_i.sum(dim=0) for w_i, G_i in zip(w, G, strict=True)]).sum(dim=0) / total
    return [
        replace(reply, grad=g_bar.expand_as(_own(reply))) if reply.address.client in active else reply
        for reply in replies
    ]


def _own(reply: CutGrad) -> Tensor:
    assert reply.grad is not None, "a scheme that changes gradients at the cut does not let them flow on by themselves"
    return reply.grad


def check_share(share: float) -> None:
    expect(is_number(share) and 0 < share <= 1, "share", share, "a number in (0, 1]")
