"""Tables of everything that users choose by name. They can be read without importing torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutlayer.errors import unknown
from cutlayer.registry import data, models, optimizers, own, schemes
from cutlayer.registry.data import OWN, PROFILES, Task
from cutlayer.registry.part import Part, Takes, build
from cutlayer.registry.table import Table

SCHEMES = Table("scheme", schemes.SCHEMES, Part.own, ("traits", "open"))
LOCALS = Table("local", optimizers.LOCALS, Part.own, ("pull", "max_norm", "norm", "plain"))
UPDATES = Table("update", optimizers.UPDATES, Part.own, ("__call__",))
OPTIMIZERS = Table(
    "optimizer", optimizers.OPTIMIZERS, Part.own, ("lr", "decay", "moments", "remembers", "regularise", "update")
)
LR_SCHEDULES = Table("lr_schedule", optimizers.LR_SCHEDULES, Part.own, ("__call__",))
PARTITIONS = Table("partition", data.PARTITIONS, Part.own, ("__call__",))
MODELS = Table("model", models.MODELS, Part.own, hf=models.hugging_face)
PEFTS = Table("peft", models.PEFTS, Part.own, ("wrap",))
TASKS = Table("task", data.TASKS, Task.own)
KINDS: dict[str, Table[Any]] = {
    table.what: table
    for table in (SCHEMES, LOCALS, UPDATES, OPTIMIZERS, LR_SCHEDULES, PARTITIONS, MODELS, PEFTS, TASKS)
}


def register(kind: str, name: str, maker: Callable[..., Any], line: str = "your own") -> None:
    """Give a part of your own a name, for the command line and for configs: `cutlayer run --import MODULE` imports the
    module that calls this.

    kind    "scheme", "local", "update", "optimizer", "lr_schedule", "partition", "model", "peft" or "task"
    maker   a class or function that makes it; of a model, from any of `shape` and `classes` and its own parameters; of
            a task, a function without parameters that returns (x, y), or ((x, y), (x_test, y_test))
    line    what `cutlayer list` says of it
    """
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    KINDS[kind].register(name, maker, line)


__all__ = [
    "KINDS",
    "LOCALS",
    "LR_SCHEDULES",
    "MODELS",
    "OPTIMIZERS",
    "OWN",
    "PARTITIONS",
    "PEFTS",
    "PROFILES",
    "SCHEMES",
    "TASKS",
    "UPDATES",
    "Part",
    "Table",
    "Takes",
    "Task",
    "build",
    "own",
    "register",
]
