"""Copies of modules, faster than `copy.deepcopy` alone makes them.

A module holds about a dozen dictionaries of hooks, nearly always empty, and `copy.deepcopy` takes most of its time over
those. Here it finds them copied already; whatever else a module holds is copied as always.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def twin(module: M) -> M:
    """A copy that shares nothing with the module."""
    return copy.deepcopy(module, _copied([module]))


def twins(modules: Sequence[nn.Module], shared: Iterable[Tensor] = ()) -> list[nn.Module]:
    """Copies of modules that may share tensors with each other; those in `shared` they share with the originals."""
    return copy.deepcopy(list(modules), {**_copied(modules), **{id(tensor): tensor for tensor in shared}})


def _copied(modules: Iterable[nn.Module]) -> dict[int, object]:
    """The memo of `copy.deepcopy`, with every empty dictionary and set of the modules in it."""
    memo: dict[int, object] = {}
    for module in modules:
        for part in module.modules() if isinstance(module, nn.Module) else ():  # whatever else: for others to refuse
            for held in part.__dict__.values():
                if type(held) in (dict, OrderedDict, set) and not held:
                    memo[id(held)] = type(held)()
    return memo
