"""Tables of everything that users choose by name. They can be read without importing torch."""

from __future__ import annotations

from cutlayer.registry.data import OWN, PARTITIONS, PROFILES, TASKS, Task
from cutlayer.registry.models import MODELS
from cutlayer.registry.optimizers import LOCALS, OPTIMIZERS, UPDATES
from cutlayer.registry.part import Part, Takes, build
from cutlayer.registry.schemes import SCHEMES

__all__ = [
    "LOCALS",
    "MODELS",
    "OPTIMIZERS",
    "OWN",
    "PARTITIONS",
    "PROFILES",
    "SCHEMES",
    "TASKS",
    "UPDATES",
    "Part",
    "Takes",
    "Task",
    "build",
]
