"""How much work a sample is for a model: multiply-accumulates, numbers written, random numbers drawn.

Counting all models of the papers takes two minutes, so sizes.json has them; `python -m cutlayer.reproduce.sizes` prints
that file anew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cutlayer.core.randomness import OwnRandomness
from cutlayer.models import example
from cutlayer.nn.macs import shape_of
from cutlayer.registry import MODELS

SHAPES: dict[str, tuple[tuple[int, ...], int]] = {  # a row's shape and the classes of each task
    "digits": ((1, 8, 8), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "tiny_imagenet": ((3, 64, 64), 200),
    "femnist": ((1, 28, 28), 62),
    "celeba": ((3, 84, 84), 2),
    "shakespeare": ((80,), 80),
    "speech_commands": ((1, 32, 32), 35),
}


class Size(NamedTuple):
    """A model's multiply-accumulates for one sample, forward, and its layers; the numbers that all operators write for
    one sample in a training step, and the random numbers among them."""

    macs: int
    layers: int
    numbers: int
    draws: int


@cache
def _known() -> dict[str, list[int]]:
    text = resources.files("cutlayer.reproduce").joinpath("sizes.json").read_text("utf-8")
    found: dict[str, list[int]] = json.loads(text)
    return found


def name_of(model: Mapping[str, Any], task: str) -> str:
    """Return a model's name in the file of sizes."""
    return " ".join([task, *(str(v) if k == "name" else f"{k}={v}" for k, v in sorted(model.items()))])


def size(model: Mapping[str, Any], task: str) -> Size:
    """Return the size of a task's model."""
    name = name_of(model, task)
    return Size(*_known()[name]) if name in _known() else count(model, task)


def count(model: Mapping[str, Any], task: str) -> Size:
    """Count the size of a task's model."""
    shape, classes = SHAPES[task]
    parameters = {key: value for key, value in model.items() if key != "name"}
    with OwnRandomness():
        built = MODELS[model["name"]].build(parameters, {"shape": shape, "classes": classes})
        return counted(built, example(built, shape))


def counted(model: nn.Module, x: Tensor) -> Size:
    """Count the size of a model on two rows; what does not depend on their number, such as the weights' gradients, is
    left out."""
    layers = sum(not list(one.children()) for one in model.modules())
    once, twice = (_written(model, torch.cat([x] * times)) for times in (1, 2))
    numbers, draws = ((b - a) // len(x) for a, b in zip(once, twice, strict=True))
    return Size(sum(shape_of(model, x).macs), layers, numbers, draws)


def _written(model: nn.Module, x: Tensor) -> tuple[int, int]:
    """The numbers that a training step writes, and those it draws."""
    with _Writes() as seen:
        out = model(x)
        torch.autograd.grad(out.sum(), [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    return seen.numbers, seen.draws


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the elements of what operators return, views aside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = self.draws = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch loads its whole compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            many = sum(one.numel() for one in tree_leaves(out) if isinstance(one, Tensor))
            self.numbers += many
            self.draws += many if torch.Tag.nondeterministic_seeded in func.tags else 0
        return out


def main() -> None:
    lines = (f" {json.dumps(name)}: {json.dumps(list(found))}" for name, found in _everyone())
    print("{\n" + ",\n".join(lines) + "\n}")


def _everyone() -> list[tuple[str, Size]]:
    """The models of all tables and figures, at the papers' scale and at a laptop's."""
    from cutlayer.reproduce.catalogue import PAPERS
    from cutlayer.reproduce.scales import SCALES, scaled

    cells = (cell.values for items in PAPERS.values() for item in items.values() for cell in item.cells)
    needed = [(v["model"], str(v["task"])) for values in cells for v in (scaled(values, scale) for scale in SCALES)]
    return [(name, count(*one)) for name, one in sorted({name_of(*one): one for one in needed}.items())]


if __name__ == "__main__":
    main()
