"""Any model as blocks: the same output and gradients, its own class at the end, and clear refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.core.randomness import OwnRandomness
from cutlayer.errors import ContractError
from cutlayer.nn.blocks import Forward
from cutlayer.nn.cut import blocks_of, in_order
from cutlayer.nn.nested import each
from tests.nn import nets

IMAGE, CODES, ROW = torch.randn(4, 3, 8, 8), torch.randint(0, 11, (4, 7)), torch.randn(4, 4)
NETS: dict[str, tuple[Callable[[], nn.Module], Any, list[str]]] = {
    "resnet": (nets.ResNet, IMAGE, ["layer1", "layer2.0"]),
    "densenet": (nets.Dense, IMAGE, ["stem", "transition"]),
    "unet": (nets.UNet, IMAGE, ["inc", "merge"]),
    "lstm": (nets.Classifier, CODES, ["embed", "norm"]),
    "gru": (nets.Tagger, CODES, ["add", "head"]),
    "branching": (nets.Branching, ROW, ["first", "inner"]),
    "masked": (nets.Masked, {"x": ROW, "mask": torch.tensor([1.0, 0.0, 1.0, 1.0])}, ["middle"]),
    "one of two inputs": (nets.Masked, {"x": ROW}, ["first"]),
    "residual": (nets.Residual, ROW, ["middle"]),
    "moody": (nets.Moody, ROW, ["first", "extra"]),
}


def made(name: str, at: bool = False) -> tuple[nn.Module, Any, cl.Blocks]:
    build, x, places = NETS[name]
    torch.manual_seed(0)
    model = build()
    return model, x, cl.blocks(model, at=places if at else None, example=x)


def run(model: nn.Module, forward: Callable[[Any], Tensor], x: Any) -> tuple[Tensor, list[Tensor | None], list[Tensor]]:
    """The output, the gradients and the buffers after one step forward and back."""
    model.zero_grad()
    with OwnRandomness(3):
        out = forward(each(x, torch.clone))
    out.square().mean().backward()
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return out.detach(), grads, [b.clone() for b in model.buffers()]


@pytest.mark.parametrize("mode", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("at", [False, True], ids=["everywhere", "at"])
@pytest.mark.parametrize("name", NETS)
def test_blocks_are_the_model_to_the_bit(name: str, at: bool, mode: bool) -> None:
    model, x, blocks = made(name, at)
    whole = copy.deepcopy(blocks).train(mode)
    apart = copy.deepcopy(blocks).train(mode)
    out, grads, buffers = run(whole.model, whole, x)
    other, others, theirs = run(apart.model, apart.in_order, x)
    assert torch.equal(out, other)
    assert all(
        (a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in zip(grads, others, strict=True)
    )
    assert all(map(torch.equal, buffers, theirs))
    assert len(blocks.names) >= 2 and [type(p) for p in model.children()] == [type(p) for p in blocks.model.children()]


def test_a_tensor_that_does_not_stop_is_refused() -> None:
    """In the tagger the output of the GRU is a tuple, and both of its inputs' paths end in the sum before it."""
    model, x, blocks = made("gru")
    assert blocks.names[:1] == ["add"] and "head" in blocks.names
    with pytest.raises(ContractError, match=r"at = 'gru': gru \(tuple\) crosses it, and no floating tensor"):
        cl.blocks(model, at=["gru"], example=x)
    with pytest.raises(ContractError, match=r"at = 'embed': .*; the nearest places that work: add"):
        cl.blocks(model, at=["embed"], example=x)


@pytest.mark.parametrize(
    ("name", "at", "said"),
    [
        (
            "resnet",
            "layer1.0.conv1",
            "relu (4, 8, 8), layer1.0.conv1 (4, 8, 8) cross it, more than one of them",
        ),
        ("resnet", "layr1", "no place of this name; did you mean 'layer1'? places: conv1, bn1, relu"),
        (
            "unet",
            "down",
            "relu (4, 8, 8), down (8, 4, 4) cross it, more than one of them with a gradient; the nearest places that "
            "work: relu",
        ),
        ("densenet", "dense.1", "cross it, more than one of them with a gradient; the nearest places that work: stem"),
        ("residual", "first", "x (4,), first (4,) cross it: with x, the input itself would leave the client"),
        ("branching", "inner.one", "no place of this name; "),
    ],
)
def test_a_cut_that_is_none_says_what_crosses_it(name: str, at: str, said: str) -> None:
    build, x, _ = NETS[name]
    with pytest.raises(ContractError) as error:
        cl.blocks(build(), at=[at], example=x)
    assert f"at = {at!r}: " in str(error.value) and said in str(error.value)


def test_a_unet_can_be_cut_outside_its_skips_alone() -> None:
    _, _, blocks = made("unet")
    assert blocks.names == ["inc.0", "inc", "stem", "relu", "cat", "merge", "relu_2", "out"]


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        while float(x.norm()) > 100:
            x = self.a(x)
        return self.b(self.a(x))  # type: ignore[no-any-return]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.a(x)
        return self.b(h), h


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.spare = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))  # type: ignore[no-any-return]


class Straight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        (Loop(), {}, "model = Loop: torch.fx cannot follow its forward: TypeError"),
        (Loop(), {"at": ["a"]}, "model = Loop: torch.fx cannot follow its forward"),
        (Pair(), {}, "its output is a dict; expected one tensor|its output is a tuple; expected one tensor"),
        (Unused(), {}, "its forward does not use spare.weight, spare.bias"),
        (Straight(), {}, "no place where one tensor passes, between two blocks; expected an nn.Sequential"),
        (nets.ResNet(), {"example": None}, "example = None: expected a few rows of inputs"),
        (nets.ResNet(), {"at": "layer1", "example": IMAGE}, "at = 'layer1': expected a list of names of submodules"),
        (nets.ResNet(), {"at": [], "example": IMAGE}, "at = []: expected a list"),
    ],
)
def test_what_cannot_be_is_refused(model: nn.Module, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ContractError) as error:
        cl.blocks(model, **{"example": ROW, **more})
    assert any(part in str(error.value) for part in said.split("|")), str(error.value)


def test_unused_parameters_may_be_frozen() -> None:
    model = Unused()
    model.spare.requires_grad_(False)
    blocks = cl.blocks(model, example=ROW)
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    result = cl.train(blocks, [(x, y)], rounds=1, batch_size=10)
    assert torch.equal(result.model.spare.weight, model.spare.weight)  # type: ignore[union-attr, arg-type]


def rows(net: str) -> list[tuple[Any, Tensor]]:
    _, x, _ = NETS[net]
    g = torch.Generator().manual_seed(1)
    n = 24
    y = torch.randint(0, 2 if net == "unet" else 3, (n, 8, 8) if net == "unet" else (n,), generator=g)

    def many(t: Tensor) -> Tensor:
        shape = (n, *t.shape[1:])
        return torch.randn(shape, generator=g) if t.is_floating_point() else torch.randint(0, 11, shape, generator=g)

    return [(each(x, many), y), (each(x, many), y)]


@pytest.mark.parametrize("scheme", ["smofi", "sflv2", "cyclesfl"])
@pytest.mark.parametrize("net", ["resnet", "unet", "lstm", "masked", "branching"])
def test_training_is_that_of_the_same_blocks_in_a_sequential(net: str, scheme: str) -> None:
    _, x, blocks = made(net, at=True)
    if net == "masked":
        blocks = cl.blocks(blocks.model, at=["middle"], example=x)
    plain = nn.Sequential(*copy.deepcopy(blocks).blocks)
    options: dict[str, Any] = {"scheme": scheme, "rounds": 2, "batch_size": 6, "local_epochs": 1, "cut": 0}
    result = cl.train(blocks, rows(net), test=rows(net)[0], **options)
    other = cl.train(plain, rows(net), test=rows(net)[0], **options)
    assert type(result.model) is type(blocks.model)
    assert list(result.model.state_dict()) == list(blocks.model.state_dict())
    assert [r.loss for r in result.history] == [r.loss for r in other.history]
    mine = cl.halves(copy.deepcopy(blocks), 0)
    back = nn.Sequential(*(block for half in mine for block in half))
    assert len(back) == len(plain)


def test_a_model_without_blocks_is_cut_by_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, data = nets.ResNet(), rows("resnet")
    options: dict[str, Any] = {"test": data[0], "rounds": 2, "batch_size": 6, "local_epochs": 1, "backend": "loop"}
    by_name = cl.train(net, data, cut="layer1", **options)
    blocks = cl.blocks(net, at=["layer1"], example=IMAGE)
    at = cl.train(blocks, data, cut=0, **options)
    assert [r.loss for r in by_name.history] == [r.loss for r in at.history]
    assert type(by_name.model) is nets.ResNet
    for key, tensor in by_name.model.state_dict().items():
        assert torch.equal(tensor, at.model.state_dict()[key])
    with pytest.raises(ContractError, match="unknown cut 'layer9': did you mean 'layer"):
        cl.train(net, data, cut="layer9", **options)
    durable = cl.train(net, data, cut="layer1", out=tmp_path / "x", **options)
    again = cl.open(tmp_path / "x").model(nets.ResNet)
    assert type(again) is nets.ResNet
    assert all(map(torch.equal, again.state_dict().values(), durable.model.state_dict().values()))
    front = cl.load(tmp_path / "x" / "front.safetensors", cl.blocks(nets.ResNet(), example=IMAGE))
    back = cl.load(tmp_path / "x" / "back.safetensors", cl.blocks(nets.ResNet(), example=IMAGE))
    assert torch.equal(back(front(IMAGE)), again(IMAGE))


@pytest.mark.parametrize("labels", ["send", "stay"])
def test_personal_models_are_of_the_callers_class(labels: str) -> None:
    torch.manual_seed(0)
    result = cl.train(
        nets.ResNet(), rows("resnet"), cut="layer1", scheme="psl", rounds=1, batch_size=6, local_epochs=1, labels=labels
    )
    assert [type(model) for model in result.clients] == [nets.ResNet] * 2


def test_cuts_and_leakage_of_a_model_without_blocks() -> None:
    costs = cl.cuts(nets.UNet(), IMAGE)
    assert [cut.name for cut in costs] == ["inc.0", "inc", "stem", "relu", "cat", "merge", "relu_2"]
    assert len(cl.leakage(nets.ResNet(), IMAGE)) == len(cl.cuts(nets.ResNet(), IMAGE)) + 1


Step = tuple[str, int, int]


class Graph(nn.Module):
    """A random small graph: each step takes one or two of the values before it."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in steps)

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for (kind, one, other), layer in zip(self.steps, self.layers, strict=True):
            a, b = values[one % len(values)], values[other % len(values)]
            if kind == "layer":
                values.append(layer(a))
            elif kind == "skip":
                values.append(torch.tanh(layer(a)) + b)
            elif kind == "dropout":
                values.append(nn.functional.dropout(layer(a), 0.4, self.training))
            else:
                values.append(torch.cat([layer(a), b], 1)[:, 2:6])
        return values[-1]


steps = st.lists(
    st.tuples(st.sampled_from(["layer", "skip", "dropout", "cat"]), st.integers(0, 7), st.integers(0, 7)),
    min_size=2,
    max_size=7,
)


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(steps)
def test_random_graphs(plan: list[Step]) -> None:
    """Blocks equal the model, or the refusal says why; every single place that is refused names what crosses it."""
    torch.manual_seed(len(plan))
    model = Graph(plan)
    used = _used(plan)
    for i, layer in enumerate(model.layers):
        layer.requires_grad_(i in used)
    blocks, why = tried(model, None)
    if blocks is None:
        assert "no place where one tensor passes" in why
        return
    for mode in (True, False):
        whole, apart = copy.deepcopy(blocks).train(mode), copy.deepcopy(blocks).train(mode)
        out, grads, _ = run(whole.model, whole, ROW)
        other, others, _ = run(apart.model, apart.in_order, ROW)
        assert torch.equal(out, other)
        pairs = zip(grads, others, strict=True)
        assert all(a is None if b is None else a is not None and torch.equal(a, b) for a, b in pairs)
    for i in used:
        one, why = tried(model, [f"layers.{i}"])
        if one is None:
            assert f"at = 'layers.{i}': " in why and ("cross" in why or "no place" in why)
            continue
        assert len(blocks_of(one)) == 2
        with OwnRandomness(1), torch.no_grad():
            expected = copy.deepcopy(one).train()(ROW)
        with OwnRandomness(1), torch.no_grad():
            assert torch.equal(in_order(blocks_of(copy.deepcopy(one).train()), ROW), expected)


def tried(model: nn.Module, at: list[str] | None) -> tuple[cl.Blocks | None, str]:
    try:
        return cl.blocks(model, at=at, example=ROW), ""
    except ContractError as error:
        return None, str(error)


def _used(plan: list[Step]) -> set[int]:
    """The layers that the output depends on."""
    needed, todo = set(), [len(plan)]
    while todo:
        value = todo.pop()
        if value == 0 or value - 1 in needed:
            continue
        needed.add(value - 1)
        kind, one, other = plan[value - 1]
        todo += [one % value, *([other % value] if kind in ("skip", "cat") else [])]
    return needed


def test_a_wrong_trace_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.fx gets wrong, the comparison with the model finds."""
    real = Forward.part

    def shortened(self: Forward, start: int, stop: int) -> Any:
        part = real(self, start, stop)
        wrong = [
            o if o.name != "relu" else type(o)(o.name, o.kind, torch.tanh, o.args, o.kwargs) for o in part.operations
        ]
        return type(part).of(wrong, part.takes, part.gives)

    monkeypatch.setattr(Forward, "part", shortened)
    with pytest.raises(ContractError, match="it computes something else in training mode"):
        cl.blocks(Unused2(), example=ROW)


class Unused2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))  # type: ignore[no-any-return]
