"""A data set ready to be divided: its rows, and how a model sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from cutlayer.data.rows import Labels, Owners, StoredRows, together
from cutlayer.data.transform import Transform


@dataclass(frozen=True)
class Dataset:
    """Training and test rows. `plain` turns them into a model's inputs; `changed` does so with augmentation."""

    train: StoredRows
    test: StoredRows
    classes: int
    plain: Transform
    changed: Transform
    gap: int | None = None  # if rows overlap: how many between training and test rows belong to neither
    class_names: Sequence[str] = ()

    @cached_property
    def everything(self) -> StoredRows:
        """Training and test rows together, joined once."""
        return together(self.train, self.test)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return tuple(self.train.x.shape[1:])

    @property
    def x(self) -> Tensor:
        """The training inputs as a model sees them, all in memory."""
        return self._seen(self.train)

    @property
    def y(self) -> Tensor:
        return torch.from_numpy(self.train.y)

    @property
    def x_test(self) -> Tensor:
        return self._seen(self.test)

    @property
    def y_test(self) -> Tensor:
        return torch.from_numpy(self.test.y)

    def _seen(self, rows: StoredRows) -> Tensor:
        return self.plain(torch.from_numpy(np.array(rows.x)), torch.float32, None)

    @property
    def labels(self) -> Labels:
        return self.train.y

    @property
    def owners(self) -> Owners | None:
        return self.train.owners
