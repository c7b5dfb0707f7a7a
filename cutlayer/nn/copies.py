"""Copy modules, faster than `copy.deepcopy` alone does, and without their frozen parameters.

A module holds about a dozen dictionaries of hooks, nearly always empty, and `copy.deepcopy` spends most of its time on
them. Here its memo already contains their copies. A frozen parameter is a constant: all copies share its values, so
that a large base model under small adapters exists once. Everything else in a module is copied as usual.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def twin(module: M) -> M:
    """Return a copy that shares nothing with the module but the values of frozen parameters."""
    return copy.deepcopy(module, _copied([module]))


def apart(module: M) -> M:
    """Return a copy that shares nothing with the module, not even frozen parameters."""
    return copy.deepcopy(module, _copied([module], frozen=False))


def sharing(module: M) -> M:
    """Return a copy that shares the values of all parameters with the module, frozen, and nothing else."""
    aliases = {id(weight): nn.Parameter(weight.data, requires_grad=False) for weight in module.parameters()}
    return copy.deepcopy(module, {**_copied([module]), **aliases})


def twins(modules: Sequence[nn.Module], shared: Iterable[Tensor] = ()) -> list[nn.Module]:
    """Return copies of modules that may share tensors with each other; the tensors in `shared` are not copied, nor the
    values of frozen parameters."""
    return copy.deepcopy(list(modules), {**_copied(modules), **{id(tensor): tensor for tensor in shared}})


def _copied(modules: Iterable[nn.Module], frozen: bool = True) -> dict[int, object]:
    """Return a memo for `copy.deepcopy` that contains copies of all empty dictionaries and sets of the modules, and
    their `frozen` parameters."""
    memo: dict[int, object] = {}
    for module in modules:
        for part in module.modules() if isinstance(module, nn.Module) else ():  # anything else is refused later
            for held in part.__dict__.values():
                if type(held) in (dict, OrderedDict, set) and not held:
                    memo[id(held)] = type(held)()
            for weight in part._parameters.values():
                if frozen and weight is not None and not weight.requires_grad:
                    memo[id(weight)] = _alias(weight)
    return memo


def _alias(weight: nn.Parameter) -> nn.Parameter:
    """Return a frozen parameter with the same values: moving the copy to a device leaves the original where it is."""
    return nn.Parameter(weight.data, requires_grad=False) if type(weight) is nn.Parameter else weight
