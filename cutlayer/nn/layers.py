"""Find the list of layers in a model, by watching one forward: each layer takes what the one before it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cutlayer.core.randomness import OwnRandomness
from cutlayer.errors import ContractError

HIDDEN = "hidden_states"  # what transformers call a layer's activations


@dataclass(frozen=True)
class Structure:
    """Where a model has its layers: their list, the modules around it, and the modules called before and after."""

    layers: str
    around: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    count: int
    tuples: bool  # whether a layer gives a tuple, the activations first


def find(model: nn.Module, inputs: Mapping[str, Tensor]) -> Structure:
    """Run a few rows through a model, and find the list of layers that pass the activations on to each other."""
    watched = _Watched(model)
    with OwnRandomness(), torch.no_grad():
        watched.run({name: tensor.clone() for name, tensor in inputs.items()})
    lists = [(path, m) for path, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m)]
    chains = [(path, m) for path, m in lists if watched.chain([f"{path}.{i}" for i in range(len(m))])]
    if not chains:
        raise ContractError(
            f"model = {type(model).__name__}: no list of layers, each of which takes what the one before it gives; "
            "expected such a model, an nn.Sequential, or a module with `blocks`"
        )
    path, found = max(chains, key=lambda chain: sum(p.numel() for p in chain[1].parameters()))
    steps = path.split(".")
    around = ("", *(".".join(steps[:depth]) for depth in range(1, len(steps))))
    first, last = watched.begins[f"{path}.0"][0], watched.ends[f"{path}.{len(found) - 1}"][0]
    before: list[str] = []
    after: list[str] = []
    for outer in around:
        for name, _ in model.get_submodule(outer).named_children():
            inside = f"{outer}.{name}".lstrip(".")
            if inside in (*around, path) or inside not in watched.begins:
                continue
            early = [at < first for at in watched.begins[inside]]
            between = any(first <= at <= last for at in watched.begins[inside])
            if between or len(set(early)) > 1:
                raise ContractError(f"model: {inside!r} is called between the layers; expected it before or after them")
            (before if early[0] else after).append(inside)
    tuples = isinstance(watched.given[f"{path}.0"], tuple)
    return Structure(path, around, tuple(before), tuple(after), len(found), tuples)


class _Watched:
    """The calls of a model's modules in one forward: when each begins and ends, what it is given and gives."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.time = model, 0
        self.begins: dict[str, list[int]] = {}
        self.ends: dict[str, list[int]] = {}
        self.taken: dict[str, Any] = {}
        self.given: dict[str, Any] = {}

    def run(self, inputs: Mapping[str, Any]) -> None:
        handles = []
        for path, module in self.model.named_modules():
            handles.append(module.register_forward_pre_hook(self._begin(path), with_kwargs=True))
            handles.append(module.register_forward_hook(self._end(path)))
        try:
            self.model(**inputs)
        finally:
            for handle in handles:
                handle.remove()

    def _begin(self, path: str) -> Any:
        def note(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.begins.setdefault(path, []).append(self._tick())
            self.taken[path] = kwargs[HIDDEN] if HIDDEN in kwargs else args[0] if args else None

        return note

    def _end(self, path: str) -> Any:
        def note(module: nn.Module, args: Any, out: Any) -> None:
            self.ends.setdefault(path, []).append(self._tick())
            self.given[path] = out

        return note

    def _tick(self) -> int:
        self.time += 1
        return self.time

    def chain(self, paths: Sequence[str]) -> bool:
        """Whether each of the modules is called once, in order, with what the one before it gave."""
        if any(len(self.begins.get(path, ())) != 1 for path in paths):
            return False
        return all(self._first(one) is self.taken[other] for one, other in pairwise(paths))

    def _first(self, path: str) -> Any:
        out = self.given[path]
        return out[0] if isinstance(out, tuple) else out
