"""The models: right outputs at every size that fits, a clear word at others, blocks as documented, costs by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from cutlayer.errors import ContractError
from cutlayer.models import cnn, example, leaf_cnn, leaf_lstm, mlp, resnet, transformer, vgg11, vgg16
from cutlayer.models.resnet import ShortCut
from cutlayer.nn.cut import probe
from cutlayer.nn.macs import shape_of
from cutlayer.nn.state import channels_last_is_safe
from cutlayer.registry import MODELS

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (80,)]
BLOCKS = {
    **{"mlp": 4, "cnn": 4, "resnet": 5, "resnet18": 10, "resnet34": 18, "resnet9": 7, "vgg11": 9, "vgg16": 14},
    **{"mobilenetv2": 19, "densenet121": 9, "densenet169": 9},
    **{"leaf_cnn": 4, "celeba_cnn": 5, "leaf_lstm": 3, "transformer": 8},
}
LEAST = {"leaf_cnn": 4, "celeba_cnn": 16, "resnet9": 32, "vgg11": 32, "vgg16": 32, "densenet121": 29, "densenet169": 29}
TEXT = {"leaf_lstm", "transformer"}


def fits(name: str, shape: tuple[int, ...]) -> bool:
    if name == "mlp" or len(shape) == 1:
        return name == "mlp" or name in TEXT
    return name not in TEXT and shape[1] >= LEAST.get(name, 1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_output_and_blocks(name: str, shape: tuple[int, ...]) -> None:
    if not fits(name, shape):
        with pytest.raises(ContractError, match="shape = "):
            MODELS[name].make(shape, 7)
        return
    model = MODELS[name].make(shape, 7)
    assert probe(model, example(model, shape, rows=3), 0, len(model) - 2).out.shape == (3, 7)
    assert len(model) == BLOCKS[name]


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_a_finite_gradient(name: str) -> None:
    torch.manual_seed(0)
    shape = (80,) if name in TEXT else (3, 32, 32)
    model = MODELS[name].make(shape, 7)
    x = torch.randint(80, (2, *shape)) if name in TEXT else torch.rand(2, *shape)
    functional.cross_entropy(model(x), torch.tensor([1, 5])).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@pytest.mark.parametrize("name", LEAST)
def test_the_smallest_image_that_fits(name: str) -> None:
    least = LEAST[name]
    model = MODELS[name].make((1, least, least + 1), 3).eval()
    assert model(torch.rand(1, 1, least, least + 1)).shape == (1, 3)
    with pytest.raises(ContractError, match=f"at least {least}x{least}"):
        MODELS[name].make((1, least, least - 1), 3)


@pytest.mark.parametrize("name", ["resnet", "resnet18", "resnet34"])
def test_group_norm_replaces_every_batch_norm(name: str) -> None:
    with torch.device("meta"):
        models = {norm: MODELS[name].make((3, 32, 32), 10, norm=norm) for norm in ("bn", "gn")}
    kinds = {norm: [type(m) for m in model.modules()] for norm, model in models.items()}
    assert kinds["bn"].count(nn.BatchNorm2d) == kinds["gn"].count(nn.GroupNorm) > 0
    assert nn.BatchNorm2d not in kinds["gn"]
    with pytest.raises(ContractError, match="norm = 'ln'"):
        MODELS[name].make((3, 32, 32), 10, norm="ln")


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("celeba_cnn", {"width": 0}, "width = 0"),
        ("resnet18", {"stem": "tiny"}, "stem = 'tiny': expected 'imagenet' or 'cifar'"),
        ("vgg11", {"head": "big"}, "head = 'big': expected 'small' or 'original'"),
        ("vgg16", {"norm": "gn"}, "norm = 'gn': expected 'bn' or 'none'"),
        ("leaf_lstm", {"depth": 1.5}, "depth = 1.5"),
        ("transformer", {"heads": 0}, "heads = 0"),
        ("transformer", {"width": 130}, "width = 130: expected a multiple of heads = 4"),
        ("transformer", {"dropout": 1.0}, "dropout = 1.0"),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, options: dict[str, Any], word: str) -> None:
    with pytest.raises(ContractError, match=word):
        MODELS[name].make((80,) if name in TEXT else (3, 32, 32), 10, **options)


@pytest.mark.parametrize("inside", [3, 8, 16])
@pytest.mark.parametrize("size", [1, 7, 8])
def test_a_short_cut_is_a_strided_convolution(inside: int, size: int) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(inside, 5, 1, stride=2, bias=False)
    torch.manual_seed(0)
    ours = ShortCut(inside, 5, stride=2)
    assert torch.equal(plain.weight, ours.weight) and plain.state_dict().keys() == ours.state_dict().keys()
    x = torch.randn(4, inside, size, size, dtype=torch.float64)
    outputs = [module.double()(x.requires_grad_()) for module in (plain, ours)]
    assert torch.allclose(*outputs, rtol=1e-12, atol=1e-12)
    upward = torch.randn_like(outputs[0])
    for mine, its in zip(
        torch.autograd.grad(outputs[1], [x, ours.weight], upward),
        torch.autograd.grad(outputs[0], [x, plain.weight], upward),
        strict=True,
    ):
        assert torch.allclose(mine, its, rtol=1e-12, atol=1e-12)


def test_a_narrow_residual_network_computes_in_channels_last_order() -> None:
    assert channels_last_is_safe(list(resnet((3, 32, 32), 10, width=4)))


def test_the_leaf_network_is_the_published_one() -> None:
    model = leaf_cnn((1, 28, 28), 62)
    assert sum(p.numel() for p in model.parameters()) == 6_603_710
    assert model[:2](torch.rand(2, 1, 28, 28)).shape == (2, 64, 7, 7)
    assert leaf_cnn((3, 30, 21), 5, hidden=8)(torch.rand(2, 3, 30, 21)).shape == (2, 5)
    with pytest.raises(ContractError, match="at least 4x4"):
        leaf_cnn((1, 3, 28), 62)
    with pytest.raises(ContractError, match="hidden = 0"):
        leaf_cnn((1, 28, 28), 62, hidden=0)


def test_an_example_is_what_the_model_takes() -> None:
    x = example(leaf_lstm((5,), 80), (5,), rows=3)
    assert x.dtype == torch.int64 and x.shape == (3, 5)
    assert example(transformer((5,), 80, depth=1), (5,)).dtype == torch.int64
    assert example(mlp((1, 8, 8), 10).double(), (1, 8, 8)).dtype == torch.float64
    assert example(nn.Sequential(nn.Flatten(), nn.ReLU()), (4,)).dtype == torch.float32
    assert example(mlp((1, 8, 8), 10).to("meta"), (1, 8, 8)).is_meta


def test_symbols_and_positions_are_embedded() -> None:
    model, x = transformer((6,), 80, width=16, depth=1).eval(), torch.tensor([[3, 0, 7, 7]])
    first = model[0]
    assert torch.equal(first(x)[0, 3], first.symbols.weight[7] * 4 + first.positions.weight[3])
    out = model[1](first(x))
    assert out.mean(-1).abs().max() < 1e-5  # normalised last
    assert torch.equal(model[2](out), model[2](out[:, -1:]))


@pytest.mark.parametrize("make", [vgg11, vgg16])
def test_a_vgg_without_norm_does_not_fade(make: Any) -> None:
    torch.manual_seed(0)
    model = make((1, 32, 32), 35, norm="none")
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert model(torch.randn(8, 1, 32, 32)).std(0).mean() > 0.02


def test_macs_equal_counts_by_hand() -> None:
    assert shape_of(mlp((1, 8, 8), 10, width=64), torch.rand(2, 1, 8, 8)).macs == [64 * 64, 64 * 64, 64 * 64, 64 * 10]
    by_hand = [64 * 16 * 9, 64 * 32 * 16 * 9, 16 * 32 * 32 * 9, 32 * 2 * 2 * 10]
    assert shape_of(cnn((1, 8, 8), 10, width=16), torch.rand(2, 1, 8, 8)).macs == by_hand
    by_hand = [784 * 32 * 25, 196 * 64 * 32 * 25, 3136 * 2048, 2048 * 62]
    assert shape_of(leaf_cnn((1, 28, 28), 62), torch.rand(2, 1, 28, 28)).macs == by_hand


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_macs_of_recurrent_layers_come_from_the_formula(kind: type[nn.RNNBase], gates: int, dtype: torch.dtype) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(6, 8)
            self.layer = kind(8, 16, num_layers=2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.before(x))[0][:, -1]

    model = nn.Sequential(Last(), nn.Linear(16, 5)).to(dtype)
    per_position = 6 * 8 + gates * 16 * (8 + 16) + gates * 16 * (16 + 16)
    assert shape_of(model, torch.rand(3, 10, 6, dtype=dtype)).macs == [10 * per_position, 16 * 5]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_macs_of_attention_are_counted(dropout: float) -> None:
    T, d, f = 12, 16, 40
    model = transformer((T,), 7, width=d, heads=2, hidden=f, depth=2, dropout=dropout)
    layer = T * (4 * d * d + 2 * T * d + 2 * d * f)  # projections, scores and weighting, feed-forward
    assert shape_of(model, example(model, (T,))).macs == [0, layer, layer, d * 7]
