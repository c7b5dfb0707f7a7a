"""Passes through the server half, forward and backward: client by client, in threads, or stacked in one graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.func import vmap

from cutlayer.clients.messages import Address, Attached, CutGrad, Smashed
from cutlayer.core.devices import onto
from cutlayer.core.randomness import forward_randomness, stacked_randomness
from cutlayer.core.threads import Workers
from cutlayer.nn.flat import Half, Rows, Views
from cutlayer.nn.gradients import differentiate
from cutlayer.nn.nested import Inputs, each, parted, tensors, unbound
from cutlayer.nn.stacked import Stack, Stacks, each_loss, together
from cutlayer.schemes.calibrate import Calibrated

Loss = Callable[[Tensor, Tensor], Tensor]
Message = Smashed | Attached


class Passes:
    """Passes through one half. `size`: how many rows at most go through one graph.

    `stacks`: whether torch.func.vmap supports this half. If not, rows go forward one after another, and share only the
    backward pass.
    """

    def __init__(
        self, half: Half, loss: Loss, seed: int, workers: Workers | None = None, size: int = 1, stacks: bool = True
    ) -> None:
        self.half, self.loss, self.seed = half, loss, seed
        self.calibrated: Calibrated | None = None
        self.workers, self.size, self.stacks = workers or Workers(), size, stacks
        self._made: Stacks
        self._writes = True  # whether the first block may write into its input

    def backward(self, rows: Rows, row: Mapping[int, int], smashed: Sequence[Message]) -> list[CutGrad]:
        """Write g_j of every client into its row, and return dL/dA_j (None if it went on into the front)."""
        which, groups = self.grouped(rows, row, smashed)
        done: dict[int, CutGrad] = {}

        def work(group: list[int]) -> list[CutGrad]:
            return self._group(rows, [which[i] for i in group], [smashed[i] for i in group])

        for group, replies in zip(groups, self.workers.map(work, groups), strict=True):
            done |= zip(group, replies, strict=True)
        return [done[i] for i in range(len(smashed))]

    def grouped(
        self, rows: Rows, row: Mapping[int, int], smashed: Sequence[Message]
    ) -> tuple[list[int], list[list[int]]]:
        """The rows of these clients, and the groups of clients that go through one graph."""
        if not hasattr(self, "_made") or self._made.rows is not rows:
            self._made = Stacks(rows)
        which = [row[s.address.client] for s in smashed]
        return which, together(which, [s.samples for s in smashed], self.size)

    def _group(self, rows: Rows, which: list[int], smashed: Sequence[Message]) -> list[CutGrad]:
        one = len(smashed) == 1
        a, y, more, parts, inputs = taken(smashed, self.half)
        assert y is not None, "labels that stay with the clients"
        with torch.enable_grad():
            out, stack = self.through(rows, which, smashed, self.half.inputs(a, more))
            if self.calibrated is not None:
                out = self.calibrated(out, y, [s.address.client for s in smashed])
            losses = self._loss(smashed[0].address, out, y) if one else each_loss(self.loss, out, y)
            total = losses if one else losses.sum()
        parts += [rows.views[r] for r in which] if stack is None else [stack.views]
        grads = differentiate(total, parts, inputs=inputs)
        losses = losses.detach()
        for s in smashed:
            if isinstance(s, Attached):
                s.nbytes = sum(t.nbytes for t in (a, y, *more)) // len(smashed)
        flowed = a.nbytes // len(smashed) if self.half.returns else 0
        if one:
            return [CutGrad(smashed[0].address, grads[0] if grads else None, losses, flowed=flowed)]
        back = grads[0].unbind() if grads else [None] * len(smashed)
        each_one = zip(smashed, back, losses.unbind(), strict=True)
        return [CutGrad(s.address, grad, loss, flowed=flowed) for s, grad, loss in each_one]

    def through(
        self, rows: Rows, which: list[int], smashed: Sequence[Message], x: Inputs
    ) -> tuple[Tensor, Stack | None]:
        """Return the output of one row, or of several in one graph, and the stack if vmap was used."""
        if len(smashed) == 1:
            return self.forward(rows, which[0], smashed[0].address, x), None
        if not self.stacks:
            inputs = zip(which, smashed, unbound(x), strict=True)
            return torch.stack([self.forward(rows, r, s.address, x_j) for r, s, x_j in inputs]), None
        stack = self._made.of(which)
        with self._each_randomness(smashed):
            return cast(Tensor, stack.forward(each(x, torch.clone) if self._writes else x)), stack

    def gradient(
        self, rows: Rows, row: int, where: Address, x: Inputs, y: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Write the gradient of one batch into rows.g[row]; return the gradient at the cut and the loss. `x`: what
        crosses the cut."""
        a, more = parted(x)
        leaf = a.detach().to(self.half.device).requires_grad_(self.half.returns)
        with torch.enable_grad():
            out = self.forward(rows, row, where, self.half.inputs(leaf, more))
            loss = self._loss(where, out, y, weight)
        (grad,) = differentiate(loss, [rows.views[row]], inputs=[leaf])
        return grad, loss.detach()

    def input_gradients(self, rows: Rows, row: int, smashed: Sequence[Smashed]) -> list[CutGrad]:
        """Return only the gradients at the cut; all clients pass through one row, whose weights are frozen.

        If the half has buffers, the clients pass one after another, so that the buffers change in order.
        """
        moves = any(self.half.sizes[1:])
        if moves:
            return [self._input_gradients(rows, row, [s])[0] for s in smashed]
        size = self.size if self.stacks else 1
        groups = together(range(len(smashed)), [s.samples for s in smashed], size)
        done: dict[int, CutGrad] = {}
        made = self.workers.map(lambda group: self._input_gradients(rows, row, [smashed[i] for i in group]), groups)
        for group, replies in zip(groups, made, strict=True):
            done |= zip(group, replies, strict=True)
        return [done[i] for i in range(len(smashed))]

    def _input_gradients(self, rows: Rows, row: int, smashed: Sequence[Smashed]) -> list[CutGrad]:
        a, y, more, _, (leaf,) = taken(smashed, self.half)
        x = self.half.inputs(a, more)
        assert y is not None, "labels that stay with the clients"
        with torch.enable_grad():
            if len(smashed) == 1:
                where = smashed[0].address
                losses = self._loss(where, self.forward(rows, row, where, x), y)[None]
            else:
                half = self.half.here()
                half.bind(rows.views[row])
                with self._each_randomness(smashed):
                    out = vmap(half.apply, randomness=half.style.in_vmap)(each(x, torch.clone))
                losses = each_loss(self.loss, cast(Tensor, out), y)
            (grad,) = torch.autograd.grad(losses.sum(), leaf, allow_unused=True) if leaf.requires_grad else (None,)
        grad = torch.zeros_like(leaf) if grad is None else grad
        parts = zip(smashed, grad[None] if len(smashed) == 1 else grad, losses.detach(), strict=True)
        return [CutGrad(s.address, part, loss) for s, part, loss in parts]

    def forward(self, rows: Rows, row: int, where: Address, x: Inputs) -> Tensor:
        given = each(x, torch.clone) if self._writes else x
        before = [tensor._version for tensor in tensors(given)]
        with self._randomness(where, "server"):
            out = rows.forward(row, given)
        self._writes = [tensor._version for tensor in tensors(given)] != before
        return parted(out)[0]

    def _randomness(self, where: Address, side: str) -> AbstractContextManager[object]:
        kind = self.half.style.randomness
        return forward_randomness(kind, self.seed, where.round, where.client, where.step, side)

    def _each_randomness(self, smashed: Sequence[Message]) -> AbstractContextManager[object]:
        steps = (s.address.at for s in smashed)
        return stacked_randomness(self.half.style.randomness, self.seed, steps, "server")

    def _loss(self, where: Address, out: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """The loss of one batch; it has randomness of its own, since a loss may draw random numbers too."""
        with self._randomness(where, "loss"):
            return self.loss(out, y) if weight is None else self._weighted(out, y, weight)

    def _weighted(self, out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """sum_s w_s*loss_s / sum_s w_s. The loss is a mean, so it is taken of all samples of one weight at a time. The
        weights are the host's: a GPU need not be waited for."""
        parts = []
        for w in torch.unique(weight):
            (here,) = torch.where(weight == w)
            at = onto(out.device, here)
            parts.append((w * len(here)) * self.loss(out[at], y[at]))
        return torch.stack(parts).sum() / weight.sum()


class Taken(NamedTuple):
    """What the server computes with: A_j, of one client or stacked for several; the labels, if they were sent; the
    tensors beside A_j; the fronts in the same graph; the leaves whose gradients must be returned."""

    a: Tensor
    y: Tensor | None
    more: tuple[Tensor, ...]
    fronts: list[Views]
    leaves: list[Tensor]


def taken(smashed: Sequence[Message], half: Half) -> Taken:
    """Take what clients sent, or compute it in one graph with the server's half."""
    first, device = smashed[0], half.device
    if isinstance(first, Attached):
        live = first.near.live([s.address.client for s in smashed])
        return Taken(live.a, live.y, live.more, [live.front], [])
    sent = [s for s in smashed if isinstance(s, Smashed)]
    labels = [s.y for s in sent if s.y is not None]
    a = first.a if len(sent) == 1 else torch.stack([s.a for s in sent])
    y = None if not labels else (labels[0] if len(labels) == 1 else torch.stack(labels)).to(device)
    more = first.more if len(sent) == 1 else tuple(map(torch.stack, zip(*(s.more for s in sent), strict=True)))
    leaf = a.detach().to(device).requires_grad_(half.returns)
    return Taken(leaf, y, tuple(t.to(device) for t in more), [], [leaf])


def joined(smashed: Sequence[Smashed], half: Half) -> Inputs:
    """Return what all these clients sent as one batch."""
    more = tuple(map(torch.cat, zip(*(s.more for s in smashed), strict=True)))
    return half.inputs(torch.cat([s.a for s in smashed]), more)
