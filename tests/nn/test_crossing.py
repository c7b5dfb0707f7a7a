"""Several tensors at the cut: activations with their gradient, and others that travel beside them without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cutlayer as cl
from cutlayer.clients.messages import Smashed
from cutlayer.errors import ContractError
from cutlayer.nn.cut import blocks_of
from tests.network.harness import play
from tests.nn import nets

SCHEMES = [
    *("fedavg", "sflv1", "smofi", "sflv2", "mergesfl", "psl", "sglr", "ssl"),
    *("cyclepsl", "cyclesfl", "cyclesglr", "cyclessl"),
]
OPTIONS: dict[str, Any] = {"rounds": 2, "batch_size": 4, "local_epochs": 1}


class First(nn.Module):
    """A user's own block that gives several tensors by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)

    def forward(self, codes: Tensor) -> dict[str, Tensor]:
        return {"hidden": self.embed(codes), "mask": codes > 2, "n": (codes > 2).sum(1)}


class Second(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**x, "hidden": torch.tanh(self.linear(x["hidden"]))}


class Pool(nn.Module):
    def forward(self, x: dict[str, Tensor]) -> Tensor:
        kept = x["hidden"] * x["mask"][:, :, None]
        return kept.sum(1) / x["n"].clamp(min=1)[:, None]


class Whole(nn.Module):
    """The same model in one piece, for a loop in plain torch."""

    def __init__(self, parts: nn.Sequential) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, codes: Tensor) -> Tensor:
        first, second, _, last = self.parts
        mask = codes > 2
        hidden = torch.tanh(second.linear(first.embed(codes)))  # type: ignore[union-attr, operator]
        kept = hidden * mask[:, :, None]
        return last(kept.sum(1) / mask.sum(1).clamp(min=1)[:, None])  # type: ignore[no-any-return]


def by_hand() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(First(), Second(), Pool(), nn.Linear(6, 3))


def rows(n: int = 12) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(n)
    return torch.randint(0, 11, (n, 5), generator=g), torch.randint(0, 3, (n,), generator=g)


CLIENTS = [rows(12), rows(9), rows(16)]


def alone(model: nn.Module, x: Tensor, y: Tensor, steps: list[slice]) -> nn.Module:
    """Plain SGD in one piece."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for part in steps:
        optimizer.zero_grad()
        functional.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
    return model


ALONE = [(scheme, "loop", 0) for scheme in ("fedavg", "smofi", "sflv2", "mergesfl", "psl", "ssl")]


@pytest.mark.parametrize(("scheme", "backend", "cut"), [*ALONE, ("smofi", "stacked", 0), ("smofi", "loop", 1)])
def test_one_client_is_plain_training(scheme: str, backend: str, cut: int) -> None:
    x, y = rows(12)
    x, y = x[:12], y[:12]
    whole = Whole(by_hand().double())
    expected = alone(whole, x, y, [slice(0, 4), slice(4, 8), slice(8, 12)])
    result = cl.train(
        by_hand().double(), [(x, y)], cut=cut, scheme=scheme, backend=backend, shuffle=False, rounds=1, batch_size=4,
        local_epochs=1, optimizer=cl.SGD(lr=0.1, momentum=0.0, weight_decay=0.0),
    )  # fmt: skip
    for one, other in zip(result.model.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize(
    ("scheme", "labels"),
    [*((scheme, "send") for scheme in SCHEMES), *((s, "stay") for s in ("smofi", "sflv2", "mergesfl"))],
)
def test_every_scheme_in_every_runtime(tmp_path: Path, scheme: str, labels: str) -> None:
    """Loop, network in memory: the same bits; stacked: the same numbers."""
    options = {**OPTIONS, "scheme": scheme, "labels": labels, "cut": 0}
    looped = cl.train(by_hand(), CLIENTS, test=CLIENTS[0], backend="loop", **options)
    stacked = cl.train(by_hand(), CLIENTS, test=CLIENTS[0], backend="stacked", **options)
    for one, other in zip(looped.model.parameters(), stacked.model.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    if scheme in ("smofi", "sflv2", "mergesfl", "cyclesfl"):
        played = play(tmp_path, CLIENTS, model=by_hand(), memory=scheme != "smofi", **options)
        assert same(played.result.model, looped.model)
        assert [r.bytes_up for r in played.result.history] == [r.bytes_up for r in looped.history]


def test_bytes_are_counted_with_what_travels_beside() -> None:
    result = cl.train(by_hand(), [rows(12)], scheme="sflv2", **OPTIONS)
    record = result.history[0]
    a, y, mask, n = 4 * 5 * 6 * 4, 4 * 8, 4 * 5, 4 * 8
    front = sum(p.numel() * 4 for p in by_hand()[0].parameters())
    assert record.bytes_up == 3 * (a + y + mask + n) + front
    assert record.bytes_down == 3 * a + front
    costs = cl.cuts(by_hand(), rows(4)[0])
    assert [cut.output for cut in costs] == [(5, 6), (5, 6), (6,)]
    assert costs[0].kbit == pytest.approx(32 * (30 + (5 + 8) // 8) / 1000)


BREAKS: dict[str, tuple[Any, str]] = {
    "no tensor": (lambda x: {"hidden": x.float(), "n": 3}, "'n', beside the activations = 'int': expected a tensor"),
    "no rows": (lambda x: {"hidden": x.float(), "n": torch.zeros(7)}, "'n', beside the activations"),
    "not floating": (lambda x: {"hidden": x, "n": x}, "gives torch.int64, expected one floating tensor first"),
}


class Function(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize("case", BREAKS)
def test_what_cannot_travel_is_refused(case: str) -> None:
    give, said = BREAKS[case]
    back = nn.Sequential(Function(lambda x: x["hidden"].float()), nn.Linear(5, 3))
    with pytest.raises(ContractError) as error:
        cl.train(nn.Sequential(Function(give), back), [rows(12)], cut=0, **OPTIONS)
    assert said in str(error.value)


def test_two_gradients_are_refused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 6)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            h = self.embed(x)
            return {"hidden": h, "again": h * 2}

    model = nn.Sequential(Two(), Function(lambda x: (x["hidden"] + x["again"]).sum(1)), nn.Linear(6, 3))
    with pytest.raises(ContractError, match="cut = 0: 'again' crosses it with a gradient, and so do the activations"):
        cl.train(model, [rows(12)], cut=0, **OPTIONS)


NETS: dict[str, tuple[Any, Any, list[str]]] = {
    "attention": (
        nets.Attention,
        {"codes": rows(4)[0], "mask": torch.ones(4, 5, dtype=torch.bool)},
        ["embed", "layers.0", "layers.1"],
    ),
    "lengths": (nets.Lengths, rows(4)[0], ["embed", "middle"]),
}


def masked(n: int, model: str) -> tuple[Any, Tensor]:
    codes, y = rows(n)
    if model == "lengths":
        return codes, y
    mask = torch.arange(5)[None] < 1 + torch.arange(n)[:, None] % 5
    return {"codes": codes, "mask": mask}, y


@pytest.mark.parametrize("backend", ["loop", "stacked"])
@pytest.mark.parametrize("scheme", ["smofi", "mergesfl", "cyclesfl"])
@pytest.mark.parametrize("model", NETS)
def test_models_whose_masks_cross_every_cut(model: str, scheme: str, backend: str) -> None:
    build, x, at = NETS[model]
    torch.manual_seed(0)
    net = build()
    blocks = cl.blocks(net, at=at, example=x)
    assert blocks.names[:-1] == at
    clients = [masked(12, model), masked(8, model)]
    results = [
        cl.train(blocks, clients, test=clients[0], cut=cut, scheme=scheme, backend=backend, **OPTIONS)
        for cut in ([0, len(at) - 1] if scheme == "smofi" else [0])
    ]
    assert all(type(result.model) is build for result in results)
    out = blocks_of(blocks)[0](x)
    assert isinstance(out, dict) and len(out) == 2 and next(iter(out.values())).is_floating_point()
    whole = results[0].model.eval()
    again = cl.blocks(whole, at=at, example=x).eval()
    given = x if isinstance(x, Tensor) else dict(x)
    assert torch.equal(again.in_order(given), again(given))


def test_a_mask_over_the_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    blocks = cl.blocks(nets.Attention(), at=NETS["attention"][2], example=NETS["attention"][1])
    clients = [masked(12, "attention"), masked(8, "attention")]
    looped = cl.train(blocks, clients, test=clients[0], backend="loop", cut=1, **OPTIONS)
    played = play(tmp_path, clients, model=blocks, cut=1, **OPTIONS)  # type: ignore[arg-type]
    assert same(played.result.model, looped.model)


def test_a_frame_without_its_mask_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that leaves out, or bends, what travels beside its activations is dropped from the round."""
    from cutlayer.clients.client import Client

    real = Client.sent

    def sent(self: Client, a: Tensor, y: Tensor, more: tuple[Tensor, ...] = ()) -> Smashed:
        whole = real(self, a, y, more)
        return whole if self.id else Smashed(whole.address, whole.a, whole.y, whole.more[:1])

    monkeypatch.setattr(Client, "sent", sent)
    played = play(tmp_path, CLIENTS, model=by_hand(), memory=True, cut=0, **OPTIONS)
    assert played.result.history[0].faults == ("ward-0: it sent smashed data with 1 tensors beside them, expected 2",)
