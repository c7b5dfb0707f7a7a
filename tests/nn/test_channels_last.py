"""Convolutions compute in channels_last order, unless a model has one that torch gets wrong in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.nn.flat import half
from cutlayer.nn.state import channels_last_is_safe
from tests.equal.naive import difference

CPU = torch.device("cpu")
SAFE: dict[str, nn.Module] = {
    "3x3": nn.Conv2d(3, 4, 3),
    "3x3, stride 2": nn.Conv2d(3, 4, 3, stride=2),
    "1x1": nn.Conv2d(3, 4, 1),
    "1x1, stride 2, many channels": nn.Conv2d(16, 4, 1, stride=2),
    "one dimension": nn.Conv1d(3, 4, 1, stride=2),
    "no convolution": nn.Linear(3, 4),
}
UNSAFE: dict[str, nn.Module] = {
    **{f"{n} channels": nn.Conv2d(n, 4, 1, stride=2) for n in range(2, 8)},
    "stride in one direction": nn.Conv2d(3, 4, 1, stride=(1, 2)),
    "few channels in each group": nn.Conv2d(32, 8, 1, stride=2, groups=8),
    "deep inside": nn.Sequential(nn.ReLU(), nn.Sequential(nn.Conv2d(3, 4, 1, stride=3))),
}


@pytest.mark.parametrize("name", [*SAFE, *UNSAFE])
def test_a_model_with_such_a_convolution_keeps_the_plain_order(name: str) -> None:
    """Wherever it stands, both halves do: images cross the cut in one order."""
    module = {**SAFE, **UNSAFE}[name]
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Sequential(nn.Conv2d(6, 6, 3), module))
    assert channels_last_is_safe(list(model)) is (name in SAFE)
    for lo, hi in ((0, 1), (1, 2), (0, 2)):
        part = half(model, range(lo, hi), CPU)
        assert part.images is (name in SAFE)
        kernels = [slot for slot in part.slots[0] if isinstance(slot.places[0][0], nn.Conv2d) and len(slot.shape) == 4]
        assert len(kernels) >= hi - lo and all(slot.last is (name in SAFE) for slot in kernels)


class Seen(nn.Module):
    """Writes down how the images that come by lie in memory."""

    last: ClassVar[set[bool]] = set()

    def forward(self, x: Tensor) -> Tensor:
        Seen.last.add(x.stride(1) == 1)
        return x


class Harmless(nn.Conv2d):
    """A strided 1x1 convolution without torch's kernel for it, which would write where it must not."""

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride[0], :: self.stride[1]]
        return torch.einsum("nchw,oc->nohw", x, self.weight[:, :, 0, 0])


def model(channels: int, stride: int) -> nn.Sequential:
    """The short cut of a residual network, on both sides of the cut."""
    torch.manual_seed(1)
    front = nn.Sequential(Seen(), nn.Conv2d(channels, channels, 1, stride=stride), Seen(), nn.Tanh())
    back = nn.Sequential(nn.Conv2d(channels, 5, 1, stride=stride), nn.Tanh(), Seen())
    return nn.Sequential(front, back, nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(20, 3))).double()


def clients(channels: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    images = [torch.randn(n, channels, 9, 9, generator=draw, dtype=torch.float64) for n in (8, 12, 6)]
    return [(x, torch.arange(len(x)) % 3) for x in images]


def trained(mine: nn.Module, given: list[tuple[Tensor, Tensor]], backend: str) -> nn.Module:
    run = cl.rounds(mine, given, given[0], rounds=2, batch_size=4, local_epochs=2, backend=backend, threads=2)
    assert run.setup.backend.name == backend
    Seen.last.clear()
    list(run)
    return run.model


@pytest.mark.parametrize(("channels", "stride"), [(2, 2), (7, 2), (3, 1)])
def test_it_trains_in_that_order_on_either_backend(channels: int, stride: int) -> None:
    mine = model(channels, stride)
    stacked = trained(mine, clients(channels), "stacked")
    loop = trained(mine, clients(channels), "loop")
    assert Seen.last == {stride == 1}
    assert difference(loop, mine) > 1e-3 and difference(loop, stacked) <= 1e-9


@pytest.mark.parametrize("stride", [1, 2])
def test_whatever_order_the_caller_has(stride: int) -> None:
    """Images that come in channels_last order are no way around it, in training or in testing."""
    first = nn.Sequential(Seen(), Harmless(3, 4, 1, stride=stride))
    mine = nn.Sequential(first, nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))).double()
    turned = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in clients(3)]
    done = trained(mine, turned, "loop")
    assert Seen.last == {stride == 1}
    assert difference(done, trained(mine, clients(3), "loop")) <= 1e-9
    assert Seen.last == {stride == 1}


FIRST: dict[str, Callable[[], nn.Module]] = {
    "client": lambda: nn.Sequential(nn.Sequential(nn.GroupNorm(1, 3), nn.Conv2d(3, 8, 3)), last(nn.ReLU())),
    "server": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), last(nn.GroupNorm(2, 8))),
}


def last(first: nn.Module) -> nn.Sequential:
    return nn.Sequential(first, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3))


@pytest.mark.parametrize("side", FIRST)
def test_group_norm_first_in_its_half(side: str) -> None:
    """Torch's channels_last kernel for it breaks where its input needs no gradient: such a model has plain order."""
    mine = FIRST[side]().double()
    assert not channels_last_is_safe(list(mine))
    assert difference(trained(mine, clients(3), "loop"), trained(mine, clients(3), "stacked")) <= 1e-9


def test_group_norm_behind_a_convolution_is_no_trouble_for_frozen_passes() -> None:
    """One server half for all clients' batches at once: found out beforehand, or done."""
    torch.manual_seed(1)
    back = nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(100, 3))
    mine = nn.Sequential(nn.Conv2d(3, 4, 3), back).double()
    run = cl.rounds(mine, clients(3), scheme="cyclesfl", rounds=1, batch_size=4, local_epochs=1, backend="auto")
    assert next(run).steps == 6
