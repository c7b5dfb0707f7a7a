"""Rows of a map-style dataset."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cutlayer.core.randomness import OwnRandomness
from cutlayer.data.batch import Batches, Digest, Order, add_some, few
from cutlayer.data.samples import Samples
from cutlayer.data.schedule import Indices
from cutlayer.data.transform import Draw
from cutlayer.nn.nested import Inputs

SOME = 8  # rows of a dataset that are looked at to know it again


class Items:
    """Rows of a map-style dataset, fetched when they are taken: together where the dataset can do that, as those of
    the library `datasets` and those with PyTorch's `__getitems__` can, otherwise one by one."""

    order: Order = "any"
    batches: Batches | None = None

    def __init__(self, dataset: Any, samples: Samples) -> None:
        self.dataset, self.samples, self.name = dataset, samples, samples.name
        self._tabular = samples.columns is not None and samples.collate is None and names_of(dataset) is not None

    def __len__(self) -> int:
        return len(self.dataset)

    def expect_classes(self, classes: int) -> None:
        """From now on, refuse labels outside 0..classes-1 when they are taken."""
        self.samples.classes = classes

    def take(self, rows: Indices, device: torch.device, draw: Draw | None = None) -> tuple[Inputs, Tensor]:
        number = 0 if draw is None else int(draw().integers(2**63))
        with self.samples.errors(rows), OwnRandomness(number):  # a dataset may change rows at random
            return self._taken(rows, device)

    def _taken(self, rows: Indices, device: torch.device) -> tuple[Inputs, Tensor]:
        which = rows.tolist()
        if self._tabular:
            return self.samples.whole(self.dataset[which], rows, device)
        together = getattr(self.dataset, "__getitems__", None)
        found = together(which) if callable(together) else [self.dataset[row] for row in which]
        return self.samples.batch(found, rows, device)

    def add_to(self, digest: Digest) -> None:
        """Add the length and what the dataset says of itself (`fingerprint`, as in the `datasets` library); or, if it
        says nothing, a few rows."""
        said = getattr(self.dataset, "_fingerprint", None) or getattr(self.dataset, "fingerprint", None)
        digest.update(f"{len(self)} {said if isinstance(said, str) else ''}".encode())
        if self.samples.columns is not None:
            digest.update(str(self.samples.columns).encode())
        if not isinstance(said, str):
            add_some(digest, self, few(len(self), SOME))


def names_of(dataset: Any) -> list[str] | None:
    """Return the names of the columns of a dataset that says them, as those of the library `datasets` do."""
    names = getattr(dataset, "column_names", None)
    return names if isinstance(names, list) else None
