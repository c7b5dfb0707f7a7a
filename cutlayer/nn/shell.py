"""Shells of a model: its own forward, with some of its modules replaced by others that only pass activations on.

A shell is a copy of the modules around a model's layers that shares their children. It owns no parameter.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from cutlayer.nn.layers import HIDDEN, Structure

CACHE = "past_key_values"


@dataclass
class Prepared:
    """What a forward prepared: the arguments of each layer besides the activations."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def call(self, layer: nn.Module, h: Tensor) -> Tensor:
        kwargs = {**self.kwargs, HIDDEN: h} if HIDDEN in self.kwargs else self.kwargs
        out = layer(*self.args, **kwargs) if HIDDEN in kwargs else layer(h, *self.args, **kwargs)
        found: Tensor = out[0] if isinstance(out, tuple) else out
        return found


class Carried(dict[str, Tensor]):
    """What goes from one block to the next: tensors by name, the activations first. Blocks of one half also pass on
    what a forward prepared; it does not cross a cut."""

    prepared: Sequence[Prepared] = ()

    def on(self, h: Tensor) -> Carried:
        """The same with new activations."""
        made = Carried({**self, HIDDEN: h})
        made.prepared = self.prepared
        return made


class _Reached(Exception):
    """Ends a forward at its last layer."""


class Passed:
    """What the replaced modules of one shell share while its forward runs."""

    def __init__(self) -> None:
        self.h: Tensor | None = None  # what stand-ins give; None: what they were given
        self.first: Tensor | None = None  # the activations that the first layer was given
        self.calls: list[Prepared] = []
        self.stops = True


class Note(nn.Module):
    """Stands in for a layer: it notes its arguments, and passes the activations on."""

    def __init__(self, layer: nn.Module, passed: Passed, last: bool, tuples: bool) -> None:
        super().__init__()
        self.passed, self.last, self.tuples = passed, last, tuples
        plain = {name: value for name, value in vars(layer).items() if not name.startswith("_")}
        self.__dict__ |= {name: value for name, value in plain.items() if name not in self.__dict__}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = kwargs[HIDDEN] if HIDDEN in kwargs else args[0]
        noted = Prepared(args, kwargs) if HIDDEN in kwargs else Prepared(args[1:], kwargs)
        if not self.passed.calls:
            self.passed.first = given
        self.passed.calls.append(noted)
        if self.last and self.passed.stops:
            raise _Reached
        h = given if self.passed.h is None else self.passed.h
        return (h,) if self.tuples else h


class StandIn(nn.Module):
    """Stands in for embeddings: it gives the activations, whatever it is given."""

    def __init__(self, module: nn.Module, passed: Passed) -> None:
        super().__init__()
        self.passed = passed
        for name, child in module.named_children():  # a forward may ask for the dtype of a weight inside
            self.add_module(name, StandIn(child, passed))
        for name, weight in module.named_parameters(recurse=False):
            self.register_parameter(name, nn.Parameter(weight.detach().to("meta"), requires_grad=False))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.passed.h

    def _apply(self, fn: Any, recurse: bool = True) -> StandIn:
        return self  # it has no values that could be moved


class Shell:
    """A model's forward with some of its modules replaced."""

    def __init__(self, model: nn.Module, s: Structure, replaced: Mapping[str, nn.Module], passed: Passed) -> None:
        self.model, self.passed = _outer(model, "", s.around, replaced), passed
        self.takes_cache = "use_cache" in inspect.signature(model.forward).parameters

    def __call__(self, inputs: Mapping[str, Any], h: Tensor | None, stops: bool) -> Any:
        """Run the forward; return its output, or None if it stops at the last layer."""
        self.passed.h, self.passed.stops, self.passed.calls = h, stops, []
        more = {"use_cache": inputs.get(CACHE) is not None} if self.takes_cache else {}
        try:
            return self.model(**inputs, **more)
        except _Reached:
            return None
        finally:
            self.passed.h = None

    def prepared(self) -> tuple[Tensor, list[Prepared]]:
        """Return the activations that the first layer was given, and the arguments of all; forget them here."""
        first, calls, self.passed.first, self.passed.calls = self.passed.first, self.passed.calls, None, []
        assert first is not None, "the forward has reached no layer"
        return first, calls

    def forget(self) -> None:
        self.passed.first, self.passed.calls = None, []

    def train(self, mode: bool) -> None:
        for module in self.model.modules():
            module.training = mode


def _outer(module: nn.Module, path: str, around: Sequence[str], replaced: Mapping[str, nn.Module]) -> nn.Module:
    """Return a copy of a module around the layers, with the same children, or those that replace them."""
    made = copy.copy(module)
    made.__dict__ |= {name: dict(getattr(module, name)) for name in ("_parameters", "_buffers", "_modules")}
    for name, child in module._modules.items():
        inner = f"{path}.{name}".lstrip(".")
        if inner in replaced:
            made._modules[name] = replaced[inner]
        elif inner in around and child is not None:
            made._modules[name] = _outer(child, inner, around, replaced)
    return made
