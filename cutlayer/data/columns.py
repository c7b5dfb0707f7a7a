"""Rows by name: which of their columns the model takes, and which it is to predict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cutlayer.errors import ContractError, expect, is_whole

TARGETS = ("label", "labels", "target", "y")  # what the target is usually called, for suggestions


@dataclass(frozen=True)
class Columns:
    """The names of the inputs (one, or several: the model takes a dictionary of tensors) and of the target."""

    inputs: str | tuple[str, ...]
    target: str

    def of(self, row: Any, name: str) -> tuple[Any, Any]:
        """Return (x, y) of a row, or of a batch of columns."""
        if not isinstance(row, Mapping):
            raise ContractError(f"{name}: a row is {type(row).__name__}: expected a dictionary, to take {self} from")
        several = (self.inputs,) if isinstance(self.inputs, str) else self.inputs
        for key in (*several, self.target):
            if key not in row:
                raise ContractError(f"{name}: no {key!r} in its rows: expected one of {', '.join(map(str, row))}")
        x = row[self.inputs] if isinstance(self.inputs, str) else {key: row[key] for key in several}
        return x, row[self.target]

    def of_frame(self, frame: Any, name: str) -> tuple[Any, Any]:
        """Return (x, y) of a frame: several inputs are the columns of a matrix."""
        self.of(dict.fromkeys(frame.columns), name)
        try:
            if isinstance(self.inputs, str):
                return frame[self.inputs].to_numpy(), frame[self.target].to_numpy()
            x = np.asarray(frame[list(self.inputs)].to_numpy(), dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ContractError(f"{name}: expected columns of numbers for {self}: {error}") from error
        return x, frame[self.target].to_numpy()

    def __str__(self) -> str:
        return f"inputs={self.inputs!r} and target={self.target!r}"


@dataclass(frozen=True)
class Rows:
    """Data, with what is to be known of them besides."""

    data: Any = field(repr=False)
    columns: Columns | None = None
    length: int | None = None


def rows(
    data: Any, inputs: str | Sequence[str] | None = None, target: str | None = None, length: int | None = None
) -> Rows:
    """Say what of `data` a model takes, for `clients` and `test` of `train`, and for `join`.

    data       rows by name: a dataset of dictionaries, map-style or iterable (such as those of the library `datasets`),
               a frame of pandas, or a dictionary of columns; or, without names, any form that `train` takes
    inputs     one name: the model takes a tensor. Several: it takes a dictionary of tensors; from a frame, a matrix
    target     the name of the labels
    length     the number of rows of an iterable that has no len()

    >>> import cutlayer as cl
    >>> some = [{"size": [1.0, 2.0], "kind": 0}, {"size": [3.0, 4.0], "kind": 1}]
    >>> cl.rows(some, inputs="size", target="kind")
    Rows(columns=Columns(inputs='size', target='kind'), length=None)
    """
    expect(length is None or (is_whole(length) and length >= 0), "length", length, "a number of rows")
    if inputs is None and target is None:
        return Rows(data, None, length)
    names = (inputs,) if isinstance(inputs, str) else tuple(inputs or ())
    good = bool(names) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    expect(good, "inputs", inputs, "a name, or a list of different names")
    expect(isinstance(target, str), "target", target, "a name")
    return Rows(data, Columns(inputs if isinstance(inputs, str) else names, str(target)), length)


def unnamed(name: str, keys: Iterable[Any]) -> ContractError:
    """Return the error for rows by name of which nobody said what the model takes; it suggests what to say."""
    known = [str(key) for key in keys]
    target = next((key for key in TARGETS if key in known), known[-1] if known else "label")
    inputs = [key for key in known if key != target]
    call = f"cl.rows(data, inputs={(inputs[0] if len(inputs) == 1 else inputs)!r}, target={target!r})"
    return ContractError(f"{name}: its rows have names ({', '.join(known)}): say what the model takes, such as {call}")
