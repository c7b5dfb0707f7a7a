"""`cutlayer sweep`: one method at every value of a parameter."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from typing import Any

from cutlayer.cli import flags
from cutlayer.cli.commands import plan
from cutlayer.cli.commands.train import begin
from cutlayer.cli.flags import Axis
from cutlayer.cli.parser import PLACE
from cutlayer.core.files import as_path
from cutlayer.errors import ContractError
from cutlayer.experiment import config as text
from cutlayer.experiment.comparison import Comparison
from cutlayer.experiment.config import TABLES
from cutlayer.experiment.methods import Method, method
from cutlayer.registry import own

MOST = 200


def run(args: argparse.Namespace) -> int:
    values, axes = flags.swept_values(args)
    if not axes:
        raise ContractError("sweep: expected a flag with several values, such as --scheme.alpha -1 -0.1 0")
    if "seed" in values or any(name == "seed" for name, _ in axes):
        raise ContractError("--seed: a sweep takes --seeds")
    points = len(list(product(*(given for _, given in axes))))
    if points > MOST:
        raise ContractError(f"sweep: {points} combinations of values: expected at most {MOST}")
    base = text.merge(plan.base_of(args), values)
    others = [_against(name) for name in args.against or ()]
    both = Comparison(base, [*others, *_points(axes)], flags.seeds(args.seeds) if args.seeds else [0, 1, 2])
    task = both.config(both.methods[0], both.seeds[0]).task
    out = as_path("out", args.out or f"runs/sweep-{task.replace(own.COLON, '-')}")
    return begin(both, values, out, args)


def _points(axes: Sequence[Axis]) -> list[Method]:
    """Return a method for every combination of values."""
    found = []
    for values in product(*(given for _, given in axes)):
        changes: dict[str, Any] = {}
        said, at = [], {}
        for (name, _), value in zip(axes, values, strict=True):
            field, _, parameter = name.partition(PLACE)
            if parameter:
                changes[field] = {**_part(changes, field), parameter: value}
            else:
                changes[field] = {**_part(changes, field), "name": value} if field in TABLES else value
            said.append(f"{(parameter or field).replace('_', ' ')} {plan.spelled(value)}")
            if isinstance(value, int | float):
                at[name] = float(value)
        found.append(Method(", ".join(said), changes, at=at))
    return found


def _part(changes: dict[str, Any], field: str) -> dict[str, Any]:
    return dict(changes.get(field, {}))


def _against(name: str) -> Method:
    """Return a method beside the sweep: its update is its own, and not the swept method's."""
    found = method(name)
    return Method(found.label, {"update": "fedavg", **found.changes})
