"""Encode messages as plain data and tensors, and decode them: one table, for processes of one run and the network.

The type of a field says how it is encoded (`CODECS`), so a new field is written only in its message's class and where
it is used. `Parts` encodes the parts of a plan that are code, such as its optimizer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, fields, replace
from typing import Any, Literal, NamedTuple, Protocol, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from cutlayer.clients import messages
from cutlayer.clients.messages import Address, Loss, Plan
from cutlayer.clients.state import ClientState
from cutlayer.core.devices import onto
from cutlayer.data.schedule import BatchSchedule
from cutlayer.errors import ContractError, FrameError
from cutlayer.nn.flat import Vectors
from cutlayer.optim.local import Local
from cutlayer.optim.memory import Moments
from cutlayer.optim.optimizer import Optimizer

Message = (
    Plan
    | messages.Smashed
    | messages.Features
    | messages.FeatureGrad
    | messages.CutGrad
    | messages.Square
    | messages.Momentum
    | messages.Adopt
    | messages.NextStep
    | messages.Finish
    | messages.Report
)
KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}
MOST = 2**53  # every count is below this
NONE = torch.empty(0)
Take = Callable[[int], tuple[Tensor, ...]]
"""Returns the next n tensors of a message."""


class Encoded(NamedTuple):
    """A message as plain data (`words`) and tensors."""

    kind: str
    words: dict[str, Any]
    tensors: list[Tensor]


class Parts(Protocol):
    """Encodes the parts of a plan that are code as plain data, and decodes them."""

    def words(self, field: str, part: Any) -> Any:
        """Return plain data that stands for the part."""

    def part(self, field: str, words: Any) -> Any:
        """Return the part again; raise a FrameError or ContractError where there is no such part."""


class Codec(NamedTuple):
    """How values of one type are encoded as plain data and tensors, and decoded."""

    encode: Callable[[Any], tuple[Any, Sequence[Tensor]]]
    decode: Callable[[Any, Take], Any]


def encode(message: Message, parts: Parts, within: bool = False) -> Encoded:
    """Encode a message. `within`: for another process of the same run, which may see what a client keeps."""
    said: dict[str, Any] = {}
    tensors: list[Tensor] = []
    for name, kind in _fields(type(message).__name__, within):
        value = getattr(message, name)
        if kind in PARTS:
            said[name] = parts.words(name, value)
            continue
        if name in _optional(type(message).__name__) and (value is None or value == ()):
            continue
        word, some = CODECS[kind].encode(value)
        tensors += some
        if kind is not Tensor:
            said[name] = word
    return Encoded(type(message).__name__, said, tensors)


def decode(kind: str, words: Mapping[str, Any], tensors: Sequence[Tensor], parts: Parts, within: bool = False) -> Any:
    """Decode a message, or raise a FrameError. Shapes and values of the tensors are not checked here."""
    if kind not in KINDS:
        raise FrameError(f"a {kind[:20]!r}, which nobody sends")
    values: dict[str, Any] = {"address": address_of(kind, words)}
    named = dict(_fields(kind, within))
    said = {name for name, type_ in named.items() if type_ is not Tensor}
    missing = said - words.keys() - _optional(kind)
    for odd, what in ((missing, "without"), (words.keys() - said, "with an unknown")):
        if odd:
            raise FrameError(f"a {kind} {what} {min(map(str, odd))[:40]}")
    wanted = 0

    def take(n: int) -> tuple[Tensor, ...]:
        nonlocal wanted
        wanted += n
        return tuple(tensors[wanted - n : wanted]) if wanted <= len(tensors) else (NONE,) * min(n, 3)

    for name, type_ in named.items():
        if name in values or (name not in words and name in _optional(kind)):
            continue
        given = words.get(name)
        try:
            values[name] = parts.part(name, given) if type_ in PARTS else CODECS[type_].decode(given, take)
        except FrameError:
            raise
        except (ContractError, TypeError, ValueError) as error:
            raise FrameError(f"a {kind} with {name} = {repr(given)[:200]}: {error}") from error
    if wanted != len(tensors):
        raise FrameError(f"a {kind} of {len(tensors)} tensors, expected {wanted}")
    return KINDS[kind](**values)


def address_of(kind: str, words: Mapping[str, Any]) -> Address:
    """Return the address that a message states, or raise a FrameError."""
    at = words.get("address")
    if not (isinstance(at, list) and len(at) == 4 and all(type(n) is int and -1 <= n < MOST for n in at)):
        raise FrameError(f"a {kind[:20]!r} without an address")
    return Address(*at)


def moved(message: Message, device: torch.device) -> Message:
    """Return a message with its tensors on a device. A plan stays as it is: the client moves what it needs."""
    if device.type == "cpu" or isinstance(message, Plan):
        return message
    return replace(message, **{f.name: _moved(getattr(message, f.name), device) for f in fields(message)})


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return onto(device, value)
    if not isinstance(value, tuple):
        return value
    parts = [_moved(one, device) for one in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


@functools.cache
def _fields(kind: str, within: bool) -> tuple[tuple[str, Any], ...]:
    """The names and types of a message's fields that are sent."""
    hints = get_type_hints(KINDS[kind])
    ways = ("", messages.WITHIN) if within else ("",)
    return tuple((f.name, hints[f.name]) for f in fields(KINDS[kind]) if f.metadata.get("travels", "") in ways)


@functools.cache
def _optional(kind: str) -> frozenset[str]:
    """The fields of a message that are left out where they are empty."""
    return frozenset(f.name for f in fields(KINDS[kind]) if "optional" in f.metadata)


def _count(words: Any, _: Take | None = None) -> int:
    if type(words) is not int or not 0 <= words < MOST:
        raise ValueError("expected a count")
    return words


def _flag(words: Any, _: Take) -> bool:
    if type(words) is not bool:
        raise ValueError("expected true or false")
    return words


def _number(words: Any, _: Take) -> float:
    if type(words) not in (int, float):
        raise ValueError("expected a number")
    return float(words)


def _said(schedule: BatchSchedule) -> dict[str, Any]:
    """A schedule as plain data, without what older versions do not know, where it has its default."""
    newer = {f.name for f in fields(schedule) if "optional" in f.metadata and getattr(schedule, f.name) == f.default}
    return {name: value for name, value in asdict(schedule).items() if name not in newer}


def _schedule(words: Any, _: Take) -> BatchSchedule:
    if not isinstance(words, dict):
        raise ValueError("expected a batch schedule")
    for name, kind in get_type_hints(BatchSchedule).items():
        if name in words and not _is(words[name], kind):
            raise ValueError(f"{name} = {str(words[name])[:40]!r}: expected {kind}")
    return BatchSchedule(**words)


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is exactly of this type: a class, a literal, or a union of them."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    return any(_is(value, one) for one in get_args(kind)) if get_args(kind) else type(value) is kind


def _all_or_none(n: int) -> Callable[[Any, Take], tuple[Tensor, ...]]:
    """Return a decoder that takes the next n tensors or none, as the encoded count says."""

    def read(words: Any, take: Take) -> tuple[Tensor, ...]:
        if _count(words) not in (0, n):
            raise ValueError(f"expected 0 or {n} tensors")
        return take(words)

    return read


def _moments(words: Any, take: Take) -> Moments | None:
    if words == []:
        return None
    if not isinstance(words, list) or len(words) != 2:
        raise ValueError("expected the number of moments and of steps, or nothing")
    return Moments(take(_count(words[0])), _count(words[1]))


def _state(words: Any, take: Take) -> ClientState:
    return ClientState.read(dict(zip(words, take(len(words)), strict=True)))


PARTS = (Optimizer, Local | None, Loss | None)
"""The types of fields that `Parts` encodes."""

CODECS: dict[Any, Codec] = {
    int: Codec(lambda n: (n, ()), _count),
    bool: Codec(lambda b: (b, ()), _flag),
    float: Codec(lambda x: (x, ()), _number),
    Address: Codec(lambda at: (list(astuple(at)), ()), lambda at, _: Address(*at)),
    BatchSchedule: Codec(lambda schedule: (_said(schedule), ()), _schedule),
    Tensor: Codec(lambda x: (None, (x,)), lambda _, take: take(1)[0]),
    Tensor | None: Codec(
        lambda x: (0, ()) if x is None else (1, (x,)), lambda n, take: next(iter(_all_or_none(1)(n, take)), None)
    ),
    tuple[Tensor, ...]: Codec(lambda m: (len(m), m), lambda n, take: take(_count(n))),
    Vectors | None: Codec(
        lambda v: (0, ()) if v is None else (3, v),
        lambda n, take: Vectors(*v) if (v := _all_or_none(3)(n, take)) else None,
    ),
    Moments | None: Codec(lambda m: ([], ()) if m is None else ([len(m.m), m.t], m.m), _moments),
    ClientState: Codec(lambda own: (list(own.named()), list(own.named().values())), _state),
}
"""How a field is encoded, by its type."""
