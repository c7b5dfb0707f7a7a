"""How samples of a user's dataset become a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cutlayer.core.devices import onto
from cutlayer.data.batch import as_tensor, check_finite, check_labels, labels, stacked
from cutlayer.data.columns import Columns, unnamed
from cutlayer.data.schedule import Indices
from cutlayer.errors import ContractError, expect
from cutlayer.nn.nested import Inputs, each, tensors

Collate = Callable[[list[Any]], Any]


class Samples:
    """Makes batches of (x, y) pairs, or of rows by name. `collate`: the user's own way of making a batch of samples."""

    def __init__(
        self, dtype: torch.dtype, name: str, columns: Columns | None = None, collate: Collate | None = None
    ) -> None:
        self.dtype, self.name, self.columns, self.collate = dtype, name, columns, collate
        self.classes: int | None = None

    def batch(self, samples: Sequence[Any], rows: Indices, device: torch.device) -> tuple[Inputs, Tensor]:
        """Return (x, y) of several samples."""
        if self.collate is not None:
            return self.whole(self.collate(list(samples)), rows, device)
        pairs = [self._pair(sample) for sample in samples]
        first = pairs[0][0]
        if isinstance(first, Mapping):
            x: Inputs = {str(key): self._stacked([pair[0][key] for pair in pairs], rows, key) for key in first}
        else:
            x = stacked([pair[0] for pair in pairs], rows, self.name)
        return self._checked(x, self._stacked([pair[1] for pair in pairs], rows, "label"), rows, device)

    def whole(self, batch: Any, rows: Indices, device: torch.device) -> tuple[Inputs, Tensor]:
        """Return (x, y) of a batch that somebody else made: a pair, or columns by name."""
        x, y = self._pair(batch)
        if isinstance(x, Mapping):
            found: Inputs = {str(key): self._column(x[key], rows, key) for key in x}
        else:
            found = self._column(x, rows, "input")
        return self._checked(found, self._column(y, rows, "label"), rows, device)

    @contextmanager
    def errors(self, rows: Indices) -> Iterator[None]:
        """Name the rows in every error: a user's dataset may raise anything."""
        try:
            yield
        except ContractError:
            raise
        except Exception as error:
            words = f"expected (x, y) of tensors or numbers, got {type(error).__name__}: {error}"
            raise ContractError(f"{self.name}, one of rows {rows[:4].tolist()}..: {words}") from error

    def _pair(self, sample: Any) -> tuple[Any, Any]:
        if self.columns is not None:
            return self.columns.of(sample, self.name)
        if isinstance(sample, Mapping):
            raise unnamed(self.name, sample)
        return sample[0], sample[1]

    def _stacked(self, values: Sequence[Any], rows: Indices, key: object) -> Tensor:
        return stacked(values, rows, f"{self.name}, {key!r}")

    def _column(self, values: Any, rows: Indices, key: object) -> Tensor:
        """Return one value for each row as a tensor."""
        if isinstance(values, Sequence) and values and not isinstance(values[0], int | float):
            found = self._stacked(values, rows, key)
        else:
            found = as_tensor(values, f"{self.name}, {key!r}")
        expect(found.ndim > 0, f"{self.name}, {key!r}: shape", tuple(found.shape), "one value for each row")
        expect(len(found) == len(rows), f"{self.name}, {key!r}: rows of a batch", len(found), str(len(rows)))
        return found

    def _checked(self, x: Inputs, y: Tensor, rows: Indices, device: torch.device) -> tuple[Inputs, Tensor]:
        for part in tensors(x):
            check_finite(part, f"{self.name}, one of rows {rows[0]}..")
        y = labels(y, self.dtype)
        if self.classes is not None:
            check_labels(y, self.classes, self.name)
        return each(x, lambda t: onto(device, t.to(self.dtype) if t.is_floating_point() else t)), onto(device, y)
