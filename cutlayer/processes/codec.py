"""The round's messages as words and tensors, for processes that do not share memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from torch import Tensor

from cutlayer.clients.messages import Address, CutGrad, FeatureGrad, Features, Momentum, Report, Smashed, Square
from cutlayer.core.pack import pack, unpack
from cutlayer.nn.flat import Vectors
from cutlayer.optim.memory import Moments


@dataclass(frozen=True)
class Start:
    """Where a relayed front has come to: what its next client begins with."""

    address: Address
    at: Vectors


Message = Smashed | Features | FeatureGrad | CutGrad | Square | Momentum | Report | Start


def encode(messages: Sequence[Message], *words: Any) -> Tensor:
    """Messages, and any words before them, as bytes."""
    written = [_written(message) for message in messages]
    return pack([words, [line for line, _ in written]], [tensor for _, tensors in written for tensor in tensors])


def decode(blob: Tensor) -> tuple[list[Any], list[Any]]:
    """The words and the messages."""
    (words, lines), tensors = unpack(blob)
    rest = iter(tensors)
    return words, [_read(line, rest) for line in lines]


def _written(message: Message) -> tuple[list[Any], list[Tensor]]:
    kind, where = type(message).__name__, list(astuple(message.address))
    match message:
        case Smashed():
            y = _given(message.y)
            return [kind, where, len(y)], [message.a, *y]
        case Features():
            return [kind, where], [message.z]
        case FeatureGrad():
            return [kind, where], [message.grad]
        case CutGrad():
            assert message.grad is not None, "a gradient that has flowed on does not travel"
            loss, square = _given(message.loss), _given(message.square)
            return [kind, where, len(loss), len(square)], [message.grad, *loss, *square]
        case Square():
            return [kind, where], [message.value]
        case Momentum():
            return [kind, where, len(message.m)], list(message.m)
        case Start():
            return [kind, where], list(message.at)
        case Report():
            numbers = [message.samples, message.position, message.tried, message.clipped]
            flags = [message.keeps_half, message.shares_memory]
            memory, end = message.memory, message.end
            assert memory is not None and end is not None, "a rank hands in all there is"
            return [kind, where, len(memory.m), memory.t, *numbers, *flags], [*end, *memory.m]


def _given(tensor: Tensor | None) -> list[Tensor]:
    return [] if tensor is None else [tensor]


def _read(line: list[Any], tensors: Iterator[Tensor]) -> Message:
    kind, where, *rest = line
    address = Address(*where)
    match kind:
        case "Smashed":
            return Smashed(address, next(tensors), next(tensors) if rest[0] else None)
        case "Features":
            return Features(address, next(tensors))
        case "FeatureGrad":
            return FeatureGrad(address, next(tensors))
        case "CutGrad":
            grad, loss = next(tensors), next(tensors) if rest[0] else None
            return CutGrad(address, grad, loss, next(tensors) if rest[1] else None)
        case "Square":
            return Square(address, next(tensors))
        case "Momentum":
            return Momentum(address, tuple(next(tensors) for _ in range(rest[0])))
        case "Start":
            return Start(address, Vectors(next(tensors), next(tensors), next(tensors)))
        case _:
            moments, t, samples, position, tried, clipped, keeps_half, shares_memory = rest
            end = Vectors(next(tensors), next(tensors), next(tensors))
            memory = Moments(tuple(next(tensors) for _ in range(moments)), t)
            return Report(address, end, samples, memory, position, tried, clipped, keeps_half, shares_memory)
