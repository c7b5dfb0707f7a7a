"""Clients on other machines, given to a run in place of their data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutlayer.clients.cohort import Cohort


@dataclass(frozen=True)
class RemoteClients:
    """`example`: samples like theirs, to try the model on. `sizes`: how many each has, later clients included."""

    example: Any
    sizes: Sequence[int]
    cohort: Cohort
