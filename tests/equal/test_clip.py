"""Gradient clipping is torch's: clip_grad_norm_ on each half, or on both together, then the optimizer's step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import TorchDispatchMode

import cutlayer as cl
from cutlayer.errors import ContractError

EXACT = 1e-9
MOST = 0.4
OPTIMIZERS: dict[str, tuple[Any, Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": (
        cl.SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "adam": (cl.Adam(lr=0.01, weight_decay=0.01), lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01)),
    "adamw": (cl.AdamW(lr=0.01, weight_decay=0.01), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.01)),
}


def net() -> nn.Sequential:
    torch.default_generator.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def rows(n: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(n)
    return 3 * torch.randn(n, 4, generator=g, dtype=torch.float64), torch.randint(0, 3, (n,), generator=g)


CLIENTS = [rows(12), rows(8), rows(16)]
CUT, BATCH = 1, 4


def clipped(front: list[nn.Parameter], back: list[nn.Parameter], norm: str) -> None:
    groups = [front, back] if norm == "half" else [front + back]
    for group in groups:
        clip_grad_norm_(group, MOST)


def naive(scheme: str, optimizer: str, norm: str, rounds: int) -> nn.Sequential:
    """FedAvg, or SMoFi by its plug-in around torch's optimizers; steps in order, no shuffling."""
    model = net()
    for _ in range(rounds):
        copies = [copy.deepcopy(model) for _ in CLIENTS]
        halves = [(list(m[: CUT + 1].parameters()), list(m[CUT + 1 :].parameters())) for m in copies]
        fronts = [OPTIMIZERS[optimizer][1](front) for front, _ in halves]
        backs = [OPTIMIZERS[optimizer][1](back) for _, back in halves]
        steps = [len(y) // BATCH for _, y in CLIENTS]
        fusion = cl.MomentumFusion(backs, alpha=-0.1) if scheme == "smofi" else None
        for k in range(max(steps)):
            active = [j for j in range(len(CLIENTS)) if k < steps[j]]
            for j in active:
                x, y = (t[k * BATCH : (k + 1) * BATCH] for t in CLIENTS[j])
                fronts[j].zero_grad()
                backs[j].zero_grad()
                functional.cross_entropy(copies[j](x), y).backward()
                clipped(*halves[j], norm)
                fronts[j].step()
                if fusion is None:
                    backs[j].step()
            if fusion is not None:
                fusion.step(active)
        total = sum(len(y) for _, y in CLIENTS)
        with torch.no_grad():
            for name, p in model.named_parameters():
                shares = [
                    len(y) / total * dict(m.named_parameters())[name] for m, (_, y) in zip(copies, CLIENTS, strict=True)
                ]
                p.copy_(torch.stack(shares).sum(0))
    return model


@pytest.mark.parametrize("norm", ["half", "joint"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scheme", ["fedavg", "smofi"])
def test_clipping_is_torchs(scheme: str, optimizer: str, norm: Any) -> None:
    expected = naive(scheme, optimizer, norm, 2)
    for backend in ("loop", "stacked"):
        result = cl.train(
            net(), CLIENTS, cut=CUT, scheme=scheme, optimizer=OPTIMIZERS[optimizer][0], clip=cl.Clip(MOST, norm),
            rounds=2, batch_size=BATCH, local_epochs=1, shuffle=False, backend=backend,
        )  # fmt: skip
        for one, other in zip(result.model.parameters(), expected.parameters(), strict=True):
            assert torch.allclose(one, other, rtol=0, atol=EXACT)
        rate = result.history[0].clip_rate
        assert rate is not None and 0 < rate <= 1
    more: dict[str, Any] = {"cut": CUT, "scheme": scheme, "optimizer": OPTIMIZERS[optimizer][0], "shuffle": False}
    free = cl.train(net(), CLIENTS, rounds=2, batch_size=BATCH, local_epochs=1, **more).model
    assert not torch.allclose(next(free.parameters()), next(expected.parameters()), rtol=0, atol=1e-4)


@pytest.mark.parametrize("scheme", ["sflv1", "sflv2", "mergesfl", "psl", "ssl", "cyclesfl", "cyclessl"])
def test_one_client_alone_is_plain_training(scheme: str) -> None:
    """Schemes in which one client's round is that of a plain model; CycleSL's clients see a server that has stepped."""
    x, y = rows(12)
    options: dict[str, Any] = {"rounds": 1, "batch_size": BATCH, "local_epochs": 1, "shuffle": False, "cut": CUT}
    sgd = cl.SGD(lr=0.1, momentum=0.0, weight_decay=0.01)
    result = cl.train(net(), [(x, y)], scheme=scheme, optimizer=sgd, clip=MOST, **options)
    model = net()
    front, back = list(model[: CUT + 1].parameters()), list(model[CUT + 1 :].parameters())
    sides = [torch.optim.SGD(half, lr=0.1, weight_decay=0.01) for half in (front, back)]
    for k in range(3):
        part = slice(k * BATCH, (k + 1) * BATCH)
        if scheme.startswith("cycle"):
            a = model[: CUT + 1](x[part]).detach()
            model.zero_grad()
            functional.cross_entropy(model[CUT + 1 :](a), y[part]).backward()
            clip_grad_norm_(back, MOST)
            sides[1].step()
        model.zero_grad()
        functional.cross_entropy(model(x[part]), y[part]).backward()
        clipped(front, back, "half")
        sides[0].step()
        if not scheme.startswith("cycle"):
            sides[1].step()
    for one, other in zip(result.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=EXACT)


def test_with_fedprox_the_plain_gradient_is_clipped() -> None:
    """c*g, then + mu*(w - w0): the proximal term is not clipped."""
    x, y = rows(8)
    sgd = cl.SGD(lr=0.1, momentum=0.0, weight_decay=0.0)
    options: dict[str, Any] = {"rounds": 1, "batch_size": 4, "local_epochs": 1, "shuffle": False, "optimizer": sgd}
    result = cl.train(net(), [(x, y)], scheme="fedavg", clip=MOST, local=cl.FedProx(0.5), cut=CUT, **options)
    model, start = net(), net()
    front, back = list(model[: CUT + 1].parameters()), list(model[CUT + 1 :].parameters())
    for k in range(2):
        model.zero_grad()
        functional.cross_entropy(model(x[4 * k : 4 * k + 4]), y[4 * k : 4 * k + 4]).backward()
        clipped(front, back, "half")
        with torch.no_grad():
            for p, p0 in zip(model.parameters(), start.parameters(), strict=True):
                assert p.grad is not None
                p -= 0.1 * (p.grad + 0.5 * (p - p0))
    for one, other in zip(result.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=EXACT)


def test_what_cannot_be_is_refused() -> None:
    for clip, said in ((0, "clip = 0: expected a norm above 0"), ("x", "clip = 'x'"), (float("nan"), "clip = nan")):
        with pytest.raises(ContractError, match=said):
            cl.train(net(), CLIENTS, clip=clip, rounds=1, batch_size=4)  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="one rule that clips, at most"):
        cl.train(net(), CLIENTS, clip=1.0, local=cl.FedNAR(), rounds=1, batch_size=4)
    with pytest.raises(ContractError, match="a joint norm needs a server gradient that belongs to one client"):
        cl.train(net(), CLIENTS, clip=cl.Clip(1.0, "joint"), scheme="mergesfl", rounds=1, batch_size=4)


class Read(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the values that the host reads of tensors, as it would have to wait for a GPU's."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.times = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.times += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("scheme", "norm"),
    [(scheme, "half") for scheme in ("smofi", "mergesfl", "cyclesfl", "sflv2")]
    + [("smofi", "joint"), ("psl", "joint")],
)
def test_what_was_clipped_is_read_once_a_round_not_once_a_step(scheme: str, norm: Any) -> None:
    times, rates = [], []
    for epochs in (1, 4):
        options: dict[str, Any] = {"local_epochs": epochs, "batch_size": BATCH, "cut": CUT, "threads": 1}
        run = cl.rounds(net(), CLIENTS, scheme=scheme, clip=cl.Clip(MOST, norm), rounds=1, backend="loop", **options)
        with Read() as read:
            rates += [round.clip_rate for round in run]
        times.append(read.times)
    assert times[0] == times[1]
    assert all(rate is not None and 0 < rate <= 1 for rate in rates)
