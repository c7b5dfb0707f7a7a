"""Encode and decode messages between machines. A plan's optimizer and local rules travel as their names in the registry
and their parameters; the client builds them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from cutlayer.clients import codec
from cutlayer.clients.codec import Encoded, Message
from cutlayer.clients.messages import Loss
from cutlayer.errors import ContractError, FrameError
from cutlayer.network.transport.frames import Frame
from cutlayer.optim.local import Local, combined, parts_of
from cutlayer.optim.optimizer import Optimizer
from cutlayer.registry import LOCALS, OPTIMIZERS, Part, own


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An optimizer or a local rule: its name in the registry, and its parameters."""

    name: str
    numbers: dict[str, float | str | bool | tuple[float, ...]]


@dataclass(frozen=True)
class NamedParts(codec.Parts):
    """Writes parts as their names in the registry. `loss`: the client's own, used where labels stay with it."""

    loss: Loss | None = None

    def words(self, field: str, part: Any) -> Any:
        match field:
            case "optimizer":
                return msgspec.to_builtins(_spec(part, OPTIMIZERS, field))
            case "local":
                return [msgspec.to_builtins(_spec(rule, LOCALS, field)) for rule in parts_of(part)]
        return part is not None

    def part(self, field: str, words: Any) -> Any:
        try:
            return self._part(field, words)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error

    def _part(self, field: str, words: Any) -> Any:
        match field:
            case "optimizer":
                return _built(msgspec.convert(words, Spec), OPTIMIZERS, field)
            case "local":
                return combined([_built(rule, LOCALS, field) for rule in msgspec.convert(words, tuple[Spec, ...])])
        return self.loss if msgspec.convert(words, bool) else None


def encode(message: Message) -> Encoded:
    """Encode a message for another machine."""
    return codec.encode(message, NamedParts())


def decode(frame: Frame, loss: Loss | None = None) -> Any:
    """Decode the message in a frame; raise a FrameError if it holds none."""
    return codec.decode(frame.kind, frame.words, frame.tensors, NamedParts(loss))


def sendable(optimizer: Optimizer, local: Local | None) -> None:
    """Refuse parts that a client cannot build from their names."""
    NamedParts().words("optimizer", optimizer)
    NamedParts().words("local", local)


def _spec(part: Any, table: Mapping[str, Part], field: str) -> Spec:
    name = next((name for name, known in table.items() if known.make is type(part)), None)
    if name is None:
        raise ContractError(f"{field} = {part}: a client elsewhere cannot build it; expected one of {', '.join(table)}")
    numbers = {f.name: getattr(part, f.name) for f in fields(part) if f.name != "decay"}  # the plan's eta includes it
    return Spec(name, numbers)


def _built(spec: Spec, table: Mapping[str, Part], field: str) -> Any:
    if own.is_path(spec.name) or spec.name not in table:  # a server names no module for us to import
        raise FrameError(f"a plan whose {field} is {spec.name!r}; expected one of {', '.join(table)}")
    return table[spec.name].make(**spec.numbers)
