"""Rows of a map-style dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutlayer.core.randomness import OwnRandomness
from cutlayer.data.batch import Digest, add_rows, check_finite, check_labels, labels, onto, stacked
from cutlayer.data.schedule import Indices
from cutlayer.data.transform import Draw
from cutlayer.errors import ContractError
from cutlayer.nn.nested import Inputs, each, tensors

SOME = 8  # rows of a dataset that are looked at to know it again


class Items:
    """Rows of a map-style dataset, fetched one by one."""

    def __init__(self, dataset: Any, dtype: torch.dtype, name: str) -> None:
        self.dataset, self.dtype, self.name = dataset, dtype, name
        self.classes: int | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def expect_classes(self, classes: int) -> None:
        """From now on, refuse labels outside 0..classes-1 when they are taken."""
        self.classes = classes

    def take(self, rows: Indices, device: torch.device, draw: Draw | None = None) -> tuple[Inputs, Tensor]:
        try:
            with OwnRandomness(
                0 if draw is None else int(draw().integers(2**63))
            ):  # a dataset may change rows at random
                pairs = [self.dataset[int(row)] for row in rows]
            x = stacked([pair[0] for pair in pairs])
            found = torch.stack([torch.as_tensor(pair[1]) for pair in pairs])
        except Exception as error:  # a user's dataset may raise anything
            words = f"expected (x, y) of tensors or numbers, got {type(error).__name__}: {error}"
            raise ContractError(f"{self.name}, one of rows {rows[:4].tolist()}..: {words}") from error
        for part in tensors(x):
            check_finite(part, f"{self.name}, one of rows {rows[0]}..")
        y = labels(found, self.dtype)
        if self.classes is not None:
            check_labels(y, self.classes, self.name)
        return each(x, lambda t: onto(device, t.to(self.dtype) if t.is_floating_point() else t)), onto(device, y)

    def add_to(self, digest: Digest) -> None:
        """Add the length and what the dataset says of itself (`fingerprint`, as in the `datasets` library); or, if it
        says nothing, a few rows, unless it changes rows at random in a way that we cannot repeat."""
        said = getattr(self.dataset, "_fingerprint", None) or getattr(self.dataset, "fingerprint", None)
        digest.update(f"{len(self)} {said if isinstance(said, str) else ''}".encode())
        if isinstance(said, str) or not len(self):
            return
        rows = np.unique(np.linspace(0, len(self) - 1, SOME).astype(np.int64))
        (x, y), (x2, y2) = (self.take(rows, torch.device("cpu")) for _ in range(2))
        first, again = (*tensors(x), y), (*tensors(x2), y2)
        for part in first if all(map(torch.equal, first, again)) else ():
            add_rows(digest, part)
