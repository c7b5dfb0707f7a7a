"""Clients on other machines, in place of what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutlayer.clients.cohort import Cohort


@dataclass(frozen=True)
class RemoteClients:
    """`example`: rows like theirs, to try the model on; `sizes`: how many they have, also those who come later."""

    example: Any
    sizes: Sequence[int]
    cohort: Cohort
