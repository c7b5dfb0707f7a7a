"""The names that a pickle of plain data may contain, and what replaces them. None of them is imported or called."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

ORDERS = ("<", ">", "|", "=")
DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|c8|c16|[SU][1-9][0-9]{0,5})")
SCALARS = (str, bytes, int, float, type(None), np.generic)


class RefusedPickle(Exception):
    """A pickle holds more than plain data."""


@dataclass(frozen=True)
class Name:
    """A function or class that a pickle names."""

    name: str


@dataclass(eq=False)
class Unbuilt:
    """An array, or (with `letters`) a dtype, whose content comes later; `slots`: its places in the memo."""

    letters: str | None = None
    slots: list[int] = field(default_factory=list)


class Arguments(tuple[Any, ...]):
    """A tuple that is not data, because it contains a name or something not yet built."""


def bracket(items: Sequence[Any]) -> tuple[Any, ...]:
    """Return the items as a tuple, of type Arguments if it is not data."""
    return Arguments(items) if any(isinstance(item, Name | Unbuilt | Arguments) for item in items) else tuple(items)


def whole(items: Sequence[Any]) -> Sequence[Any]:
    """Return the items; refuse them if one is not data."""
    if isinstance(bracket(items), Arguments):
        raise RefusedPickle("a name where data are expected")
    return items


def known(module: str, name: str) -> Name:
    """Return a name with its present module; refuse one that is not understood."""
    now = module.replace("numpy.core.", "numpy._core.").replace("__builtin__", "builtins")
    full = f"{now}.{name}"
    if full != "numpy.ndarray" and full not in CALLS:
        raise RefusedPickle(f"it names {module}.{name}")
    return Name(full)


def scalar(value: Any) -> Any:
    """Return a member of a set or a key of a dict. Refuse tuples: hashing nested ones may take forever."""
    if not isinstance(value, SCALARS):
        raise RefusedPickle(f"a {type(value).__name__} as a key")
    return value


def build(unbuilt: Unbuilt, state: Any) -> Any:
    """Return the array or dtype whose content is `state`."""
    if unbuilt.letters is None:
        shape, dtype, columns_first, data = state[-4:]  # a version may precede them
        return _array(data, dtype, shape, "F" if columns_first else "C")
    _, order, *inside = state[:5]
    if _text(order) not in ORDERS or any(part is not None for part in inside):
        raise RefusedPickle("a dtype of several parts")
    return np.dtype(_text(order) + unbuilt.letters)


def _array(data: Any, dtype: Any, shape: Any, order: str) -> NDArray[Any]:
    if not isinstance(data, bytes) or not isinstance(dtype, np.dtype):
        raise RefusedPickle("an array of objects")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"an array of shape {shape} and {dtype} in {len(data)} bytes")
    return np.ndarray(shape, dtype, buffer=data, order="F" if order == "F" else "C")


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> NDArray[Any]:
    array = _array(data, dtype, shape, _text(order))
    return array if axes is None else array.transpose(axes)


def _scalar(dtype: Any, data: Any) -> Any:
    return _array(data, dtype, (), "C")[()]


def _reconstruct(kind: Any, shape: Any, letter: Any) -> Unbuilt:
    if kind != Name("numpy.ndarray"):
        raise RefusedPickle("an array of another kind")
    return Unbuilt()


def _dtype(letters: Any, *options: Any) -> Unbuilt:
    if not (plain := DTYPE.fullmatch(_text(letters))):
        raise RefusedPickle(f"dtype {letters!r}")
    return Unbuilt(plain[1])


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or _text(encoding) not in ("latin1", "latin-1"):
        raise RefusedPickle(f"text encoded as {encoding!r}")
    return text.encode("latin-1")


def _text(given: Any) -> str:
    return given.decode("latin-1") if isinstance(given, bytes) else str(given)


CALLS: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _encode,  # how Python 3 writes bytes for Python 2
    "builtins.bytes": lambda: b"",
    "builtins.frozenset": lambda members=(): frozenset(scalar(member) for member in members),
    "builtins.set": lambda members=(): {scalar(member) for member in members},
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy._core.numeric._frombuffer": _frombuffer,
    "numpy.dtype": _dtype,
}
