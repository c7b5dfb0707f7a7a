"""The papers' models, number by number: parameters, sizes at the cut, shares of the work. Nothing is computed."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import nn

from cutlayer.models import example
from cutlayer.nn.macs import shape_of
from cutlayer.registry import MODELS


def build(name: str, shape: tuple[int, ...], classes: int, **options: Any) -> nn.Sequential:
    with torch.device("meta"):  # shapes without numbers
        model: nn.Sequential = MODELS[name].make(shape, classes, **options)
    return model


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("resnet18", (3, 32, 32), 10, 11_181_642),
        ("resnet18", (3, 32, 32), 100, 11_227_812),
        ("resnet34", (3, 64, 64), 200, 21_387_272),
        ("leaf_cnn", (1, 28, 28), 62, 6_603_710),
        ("celeba_cnn", (3, 84, 84), 2, 30_498),
        ("leaf_lstm", (80,), 80, 819_920),
        ("resnet9", (3, 32, 32), 100, 6_621_540),
        ("transformer", (80,), 80, 2 * 80 * 128 + 6 * (4 * 128 * 129 + 513 * 128 + 129 * 512 + 4 * 128) + 129 * 80),
    ],
)
def test_parameters(name: str, shape: tuple[int, ...], classes: int, count: int) -> None:
    assert parameters(build(name, shape, classes)) == count


@pytest.mark.parametrize(
    ("name", "options", "count", "gmacs"),
    [
        ("resnet18", {}, 11_689_512, 1.814),
        ("resnet34", {}, 21_797_672, 3.664),
        ("vgg11", {"head": "original"}, 132_868_840, 7.609),
        ("vgg11", {"head": "original", "norm": "none"}, 132_863_336, 7.609),
        ("vgg16", {"head": "original"}, 138_365_992, 15.470),
        ("mobilenetv2", {}, 3_504_872, 0.301),
        ("densenet121", {}, 7_978_856, 2.834),
        ("densenet169", {}, 14_149_480, 3.360),
    ],
)
def test_imagenet_models_are_those_of_torchvision(name: str, options: dict[str, Any], count: int, gmacs: float) -> None:
    model = build(name, (3, 224, 224), 1000, **options)
    assert parameters(model) == count
    assert round(sum(shape_of(model, example(model, (3, 224, 224))).macs) / 1e9, 3) == gmacs


# cut, elements, kilobits, the client's share of the work, its parameters
RESNET18 = """
    0  4096 131.1 0.065 9536
    1  4096 131.1 0.193 83520
    2  4096 131.1 0.320 157504
    3  2048  65.5 0.419 387648
    4  2048  65.5 0.547 683072
    5  1024  32.8 0.646 1602112
    6  1024  32.8 0.773 2782784
    7   512  16.4 0.872 6455872
    8   512  16.4 1.000 11176512
"""
RESNET34 = """
     0 16384 524.3 0.032 9536
     1 16384 524.3 0.095 83520
     2 16384 524.3 0.158 157504
     3 16384 524.3 0.221 231488
     4  8192 262.1 0.271 461632
     7  8192 262.1 0.460 1347904
     8  4096 131.1 0.509 2266944
    13  4096 131.1 0.824 8170304
    14  2048  65.5 0.873 11843392
    16  2048  65.5 1.000 21284672
"""


@pytest.mark.parametrize(
    ("name", "size", "classes", "stem", "mmacs", "table"),
    [
        ("resnet18", 32, 10, "imagenet", "37.0", RESNET18),
        ("resnet18", 32, 10, "cifar", "555", "2 65536 2097 0.275 149824"),
        ("resnet34", 64, 200, "imagenet", "299", RESNET34),
        ("resnet34", 64, 200, "cifar", "4638", "2 262144 8389 0.132 149824"),
    ],
)
def test_cuts_of_the_resnets(name: str, size: int, classes: int, stem: str, mmacs: str, table: str) -> None:
    model = build(name, (3, size, size), classes, stem=stem)
    macs, elements = shape_of(model, example(model, (3, size, size)))
    work, held = list(accumulate(macs)), list(accumulate(parameters(block) for block in model))
    assert printed(sum(macs) / 1e6, mmacs) == mmacs
    for row in table.strip().splitlines():
        cut, *expected = row.split()
        L = int(cut)
        found = (elements[L], 32 * elements[L] / 1000, work[L] / work[-1], held[L])
        assert [printed(value, like) for value, like in zip(found, expected, strict=True)] == expected, f"cut {L}"


def printed(value: float, like: str) -> str:
    """The value with as many decimals as `like` has."""
    return f"{value:.{len(like.partition('.')[2])}f}"


@pytest.mark.parametrize(
    ("name", "shape", "classes", "outputs"),
    [
        ("leaf_cnn", (1, 28, 28), 62, {1: (64, 7, 7), 2: (2048,)}),
        ("celeba_cnn", (3, 84, 84), 2, {0: (32, 42, 42), 1: (32, 21, 21), 2: (32, 10, 10), 3: (32, 5, 5)}),
        ("leaf_lstm", (80,), 80, {0: (80, 8), 1: (256,)}),
        (
            "resnet9",
            (3, 32, 32),
            100,
            {
                **{0: (64, 32, 32), 1: (128, 16, 16), 2: (128, 16, 16)},
                **{3: (256, 8, 8), 4: (512, 4, 4), 5: (512, 4, 4)},
            },
        ),
        ("transformer", (80,), 80, {0: (80, 128), 2: (80, 128), 6: (80, 128)}),
        ("vgg11", (1, 32, 32), 35, {0: (64, 16, 16), 1: (128, 8, 8), 2: (256, 8, 8), 7: (512, 1, 1)}),
        ("vgg16", (3, 64, 64), 200, {0: (64, 64, 64), 1: (64, 32, 32), 2: (128, 32, 32), 12: (512, 2, 2)}),
        ("mobilenetv2", (3, 64, 64), 200, {0: (32, 32, 32), 1: (16, 32, 32), 2: (24, 16, 16), 17: (320, 2, 2)}),
        ("densenet121", (3, 64, 64), 200, {0: (64, 16, 16), 1: (256, 16, 16), 2: (128, 8, 8), 7: (1024, 2, 2)}),
        ("densenet169", (3, 64, 64), 200, {0: (64, 16, 16), 1: (256, 16, 16), 2: (128, 8, 8), 7: (1664, 2, 2)}),
    ],
)
def test_outputs_of_the_blocks(
    name: str, shape: tuple[int, ...], classes: int, outputs: dict[int, tuple[int, ...]]
) -> None:
    model = build(name, shape, classes)
    x, found = example(model, shape), {}
    for index, block in enumerate(model):
        x = block(x)
        found[index] = tuple(x.shape[1:])
    assert {index: found[index] for index in outputs} == outputs
    assert found[len(model) - 1] == (classes,)


def test_macs_of_the_text_models() -> None:
    lstm, transformer = build("leaf_lstm", (80,), 80), build("transformer", (80,), 80)
    assert shape_of(lstm, example(lstm, (80,))).macs == [0, 80 * 4 * 256 * (8 + 256 + 256 + 256), 256 * 80]
    layer = 80 * (4 * 128**2 + 2 * 80 * 128 + 2 * 128 * 512)
    assert shape_of(transformer, example(transformer, (80,))).macs == [0, *[layer] * 6, 128 * 80]


def test_celeba_pools_between_norm_and_relu() -> None:
    kinds = [type(m) for m in build("celeba_cnn", (3, 84, 84), 2)[0]]
    assert kinds == [nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.ReLU]
