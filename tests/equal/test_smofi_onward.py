"""SMoFi whose fused momentum lives on from round to round, restated with plain tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cutlayer as cl
from cutlayer.optim import sgd
from tests.equal.naive import copied, difference

ETA, BETA, DECAY, B, STEPS = 0.1, 0.9, 0.01, 4, 2
SIZES = (16, 24, 20)


def model() -> nn.Sequential:
    torch.default_generator.manual_seed(0)
    return nn.Sequential(nn.Sequential(nn.Linear(5, 6), nn.Tanh()), nn.Linear(6, 3)).double()


def data(rows: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 5, generator=draw, dtype=torch.float64), torch.randint(0, 3, (rows,), generator=draw)


def restated(rounds: int, nesterov: bool) -> nn.Sequential:
    """Each client goes on in its data and with its own momentum; m_bar is everybody's mean, and is never reset."""
    whole = model()
    clients, total = [data(rows) for rows in SIZES], sum(SIZES)
    fronts = [[torch.zeros_like(w) for w in whole[0].parameters()] for _ in SIZES]  # the clients' own momenta
    m_bar = [torch.zeros_like(w) for w in whole[1].parameters()]
    for n in range(rounds):
        copies = [copied(whole) for _ in SIZES]
        for k in range(n * STEPS, (n + 1) * STEPS):
            fresh = []
            for mine, (x, y), own in zip(copies, clients, fronts, strict=True):
                at = slice(k * B, (k + 1) * B)
                gradients = torch.autograd.grad(functional.cross_entropy(mine(x[at]), y[at]), list(mine.parameters()))
                moments = [*own, *m_bar]
                with torch.no_grad():
                    for i, (w, g) in enumerate(zip(mine.parameters(), gradients, strict=True)):
                        h = g + DECAY * w
                        moments[i] = BETA * moments[i] + h
                        w -= ETA * (h + BETA * moments[i] if nesterov else moments[i])
                own[:] = moments[: len(own)]
                fresh.append(moments[len(own) :])
            m_bar = [torch.stack(each).mean(dim=0) for each in zip(*fresh, strict=True)]
        with torch.no_grad():
            for w, *each in zip(whole.parameters(), *(mine.parameters() for mine in copies), strict=True):
                w.copy_(sum(rows / total * one for rows, one in zip(SIZES, each, strict=True)))
    return whole


def trained(kind: type[cl.SGD], backend: str) -> nn.Module:
    result = cl.train(
        model(),
        [data(rows) for rows in SIZES],
        cut=0,
        scheme="smofi",
        protocol="cyclesl",
        optimizer=kind(lr=ETA, momentum=BETA, weight_decay=DECAY),
        rounds=2,
        batch_size=B,
        local_steps=STEPS,
        shuffle=False,
        backend=backend,
    )
    return result.model


@pytest.mark.parametrize("backend", ["loop", "stacked"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_the_fused_momentum_lives_on(nesterov: bool, backend: str) -> None:
    assert difference(trained(cl.NAG if nesterov else cl.SGD, backend), restated(2, nesterov)) <= 1e-9


@pytest.mark.parametrize("backend", ["loop", "stacked"])
def test_long_rows_decay_and_step_in_one_pass(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    calls, real = list[int](), sgd._in_one_pass

    def listening(w: Tensor, *more: Any) -> None:
        calls.append(len(w))
        real(w, *more)

    monkeypatch.setattr(sgd, "LONG", 1)
    monkeypatch.setattr(sgd, "_in_one_pass", listening)
    assert difference(trained(cl.SGD, backend), restated(2, False)) <= 1e-9
    assert sum(calls) == 2 * STEPS * len(SIZES)


class OwnStep(cl.SGD):
    """Inherits a way to take weight decay along that does not belong to its step."""

    def fused(self, w: Tensor, g: Tensor, past: Tensor, eta: float, t: int) -> None:
        w.add_(g, alpha=-eta).add_(g.add_(past), alpha=-eta * self.momentum)


def test_a_step_of_ones_own_is_taken() -> None:
    from_nag = cl.train(model(), [data(8)], cut=0, scheme="smofi", server_optimizer=cl.NAG(), rounds=1, batch_size=4)
    own = cl.train(model(), [data(8)], cut=0, scheme="smofi", server_optimizer=OwnStep(), rounds=1, batch_size=4)
    assert difference(own.model, from_nag.model) == 0
