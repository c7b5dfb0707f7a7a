"""Copies of modules are those of `copy.deepcopy`, whatever a module holds."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from cutlayer.nn.copies import sharing, twin, twins


class Odd(nn.Module):
    """Holds empty and full dictionaries, one of them shared, a hook, and a tensor that is no parameter."""

    def __init__(self, shared: dict[str, int]) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.layer.weight = nn.Parameter(torch.randn(3, 3))
        self.empty, self.full, self.shared = OrderedDict[str, int](), {"a": [1, {}]}, shared
        self.plain = torch.ones(2)
        self.register_forward_hook(add_one)

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.layer(x))


def add_one(module: nn.Module, given: Any, out: torch.Tensor) -> torch.Tensor:
    return out + 1


def model() -> nn.Sequential:
    shared: dict[str, int] = {}
    first, second = Odd(shared), Odd(shared)
    second.layer.weight = first.layer.weight
    return nn.Sequential(first, nn.ReLU(), second)


def test_a_twin_shares_nothing() -> None:
    one = model()
    x = torch.randn(4, 3)
    for other in (twin(one), copy.deepcopy(one)):
        assert torch.equal(other.eval()(x), one.eval()(x)), "with its hook"
        mine, theirs = one[0], other[0]
        assert isinstance(mine, Odd) and isinstance(theirs, Odd) and isinstance(other[2], Odd)
        for name in ("empty", "full", "shared", "_buffers", "_forward_pre_hooks", "_non_persistent_buffers_set"):
            held = getattr(theirs, name)
            assert held is not getattr(mine, name) and type(held) is type(getattr(mine, name)), name
        assert theirs.full["a"][1] is not mine.full["a"][1] and theirs.plain is not mine.plain
        assert theirs.shared is other[2].shared and theirs.layer.weight is other[2].layer.weight
        addresses = {tensor.data_ptr() for tensor in one.state_dict().values()}
        assert not addresses & {tensor.data_ptr() for tensor in other.state_dict().values()}


def test_twins_share_what_they_are_told_to() -> None:
    one = list(model())
    weights = [tensor for block in one for tensor in block.parameters()]
    other = twins(one, shared=weights)
    assert all(a is b for a, b in zip(weights, (t for block in other for t in block.parameters()), strict=True))
    assert all(a is not b for a, b in zip(one, other, strict=True))
    buffers = [[t for block in blocks for t in block.buffers()] for blocks in (one, other)]
    assert all(a is not b and torch.equal(a, b) for a, b in zip(*buffers, strict=True))


def test_frozen_parameters_are_shared() -> None:
    """Their values, not the parameters themselves: moving or replacing the copy's leaves the original as it is."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).requires_grad_(False)
    model[1].weight = model[0].weight
    model[1].bias.requires_grad_(True)
    copy = twin(model)
    assert copy[0].weight is not model[0].weight and copy[0].weight.data_ptr() == model[0].weight.data_ptr()
    assert copy[1].weight is copy[0].weight  # still one parameter
    assert copy[1].bias.data_ptr() != model[1].bias.data_ptr()
    copy.double()
    assert model[0].weight.dtype == torch.float32
    whole = sharing(nn.Linear(3, 3))
    assert not any(p.requires_grad for p in whole.parameters())
