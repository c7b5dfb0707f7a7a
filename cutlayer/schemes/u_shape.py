"""Passes through the server's blocks where labels stay with clients: forward, on to the clients' last blocks, and back.

Z_j   the output of the server's blocks for A_j        dZ_j   dL_j/dZ_j, which client j computes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.clients.messages import Address, CutGrad, Features, Smashed
from cutlayer.nn.flat import Rows, Views
from cutlayer.nn.gradients import differentiate
from cutlayer.nn.nested import each, parted
from cutlayer.schemes.autograd import Passes, joined, taken

TailStep = Callable[[Sequence[Features]], Mapping[int, Tensor]]


@dataclass
class Under:
    """Clients that went forward in one graph; `z` is [batch, ...] of one, [n, batch, ...] of several."""

    smashed: Sequence[Smashed]
    which: Sequence[int]
    z: Tensor
    leaf: Tensor
    views: list[Views]

    def each(self) -> Sequence[Tensor]:
        z = self.z.detach()
        return [z] if len(self.smashed) == 1 else z.contiguous().unbind()


def backward(
    passes: Passes, tail: TailStep, rows: Rows, row: Mapping[int, int], smashed: Sequence[Smashed]
) -> list[CutGrad]:
    """For every client that answered, write g_j into its row and return dL/dA_j."""
    which, groups = passes.grouped(rows, row, smashed)
    under = passes.workers.map(lambda g: _forward(passes, rows, [which[i] for i in g], [smashed[i] for i in g]), groups)
    out = [Features(s.address, z) for u in under for s, z in zip(u.smashed, u.each(), strict=True)]
    dZ = tail(sorted(out, key=lambda features: [s.address for s in smashed].index(features.address)))
    done: dict[int, CutGrad] = {}
    for replies in passes.workers.map(lambda u: _backward(rows, u, dZ), under):
        done |= {reply.address.client: reply for reply in replies}
    return [done[s.address.client] for s in smashed if s.address.client in done]


def _forward(passes: Passes, rows: Rows, which: list[int], smashed: Sequence[Smashed]) -> Under:
    a, _, more, _, (leaf,) = taken(smashed, passes.half)
    with torch.enable_grad():
        z, stack = passes.through(rows, which, smashed, passes.half.inputs(a, more))
    views = [rows.views[r] for r in which] if stack is None else [stack.views]
    return Under(smashed, which, z, leaf, views)


def _backward(rows: Rows, u: Under, dZ: Mapping[int, Tensor]) -> list[CutGrad]:
    heard = [dZ.get(s.address.client) for s in u.smashed]
    if all(grad is None for grad in heard):
        return []
    before = {r: rows.g[r].clone() for r, grad in zip(u.which, heard, strict=True) if grad is None}
    each = zip(heard, u.each(), strict=True)
    grads = [torch.zeros_like(z) if grad is None else grad.to(z.device) for grad, z in each]
    (back,) = differentiate(u.z, u.views, grads[0] if len(grads) == 1 else torch.stack(grads), inputs=[u.leaf])
    for r, g in before.items():
        rows.g[r] = g  # a client that did not answer takes no step
    parts = zip(u.smashed, heard, [back] if len(grads) == 1 else back.unbind(), strict=True)
    return [CutGrad(s.address, part, None) for s, grad, part in parts if grad is not None]


def merged(
    passes: Passes, tail: TailStep, rows: Rows, row: int, where: Address, smashed: Sequence[Smashed]
) -> list[CutGrad]:
    """Write into a row the gradient of the mean loss over the samples of all clients that answered. Return each
    client's part of the gradient at the cut, times all samples over its own."""
    d = [s.samples for s in smashed]
    a, more = parted(each(joined(smashed, passes.half), lambda t: t.to(passes.half.device)))
    leaf = a.requires_grad_(passes.half.returns)
    with torch.enable_grad():
        z = passes.forward(rows, row, where, passes.half.inputs(leaf, more))
    parts = torch.split(z.detach(), d)
    dZ = tail([Features(s.address, part) for s, part in zip(smashed, parts, strict=True)])
    heard = [s.samples for s in smashed if s.address.client in dZ]
    if not heard:
        return []
    grads = torch.zeros_like(z)
    for s, place in zip(smashed, torch.split(grads, d), strict=True):
        if s.address.client in dZ:
            place.copy_(dZ[s.address.client]).mul_(s.samples / sum(heard))
    (back,) = differentiate(z, [rows.views[row]], grads, inputs=[leaf])
    shares = zip(smashed, torch.split(back, d), strict=True)
    return [CutGrad(s.address, share * (sum(heard) / s.samples), None) for s, share in shares if s.address.client in dZ]
