"""Clients spread over ranks, for schemes whose server halves are in one process: the root runs the scheme.

The other ranks serve: they have only clients, pass the root's messages to them, and pass the answers back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from cutlayer.clients import codec
from cutlayer.clients.codec import Message
from cutlayer.clients.cohort import Cohort
from cutlayer.clients.messages import Down, Loss, Plan, Up
from cutlayer.core.group import ProcessGroup
from cutlayer.core.pack import pack, unpack
from cutlayer.errors import CutlayerError, kinds
from cutlayer.optim.local import Local
from cutlayer.optim.optimizer import Optimizer


@dataclass(frozen=True)
class OwnParts(codec.Parts):
    """The code in a plan. It is not sent, since every rank of a run has made the same parts from the same arguments."""

    optimizer: Optimizer
    local: Local | None
    loss: Loss | None
    device: torch.device

    def words(self, field: str, part: Any) -> None:
        return None

    def part(self, field: str, words: None) -> Any:
        return getattr(self, field)


class RankCohort(Cohort):
    """The clients of all ranks, as the root sees them. `inner`: the root's own.

    `unit`: how many neighbouring clients go to a rank together.
    """

    def __init__(self, inner: Cohort, processes: ProcessGroup, parts: OwnParts, unit: int = 1) -> None:
        self.inner, self.processes, self.parts, self.unit = inner, processes, parts, unit
        self._ranks: dict[int, int] = {}  # client -> its rank

    def ask(self, messages: Sequence[Down]) -> list[Up]:
        if isinstance(messages[0], Plan):
            for plan in cast(Sequence[Plan], messages):
                self._ranks[plan.address.client] = plan.row // self.unit % self.processes.size
        shares: list[list[Down]] = [[] for _ in range(self.processes.size)]
        for message in messages:
            shares[self._ranks[message.address.client]].append(message)
        self.processes.deal([write(share, self.parts, "ask") for share in shares])
        failed: CutlayerError | None = None
        try:
            answers = list(self.inner.ask(shares[0])) if shares[0] else []
        except CutlayerError as error:  # raised below, after the others have answered
            failed = error
        for blob in self.processes.gather(write([], self.parts))[1:]:
            words, some = read(blob, self.parts)
            if words:
                failed = failed or kinds()[words[0]](words[1])
            answers = [*answers, *some] if failed is None else []
        if failed is not None:
            raise failed
        return answers


def serve(inner: Cohort, processes: ProcessGroup, parts: OwnParts) -> None:
    """Hand the root's messages to this rank's clients, and their answers to the root, until `dismiss`."""
    while True:
        (what,), messages = read(processes.deal([]), parts)
        if what == "over":
            return
        try:
            answers = write(inner.ask(messages) if messages else [], parts)
        except CutlayerError as error:
            answers = write([], parts, type(error).__name__, str(error))
        processes.gather(answers)


def dismiss(processes: ProcessGroup, parts: OwnParts) -> None:
    """End `serve` at the other ranks: the round is over, or cannot go on."""
    processes.deal([write([], parts, "over")] * processes.size)


def write(messages: Sequence[Down | Up], parts: OwnParts, *words: Any) -> Tensor:
    """Encode plain data and messages as bytes. A tensor that several messages share is written once."""
    lines: list[Any] = []
    tensors: list[Tensor] = []
    places: dict[int, int] = {}
    for message in messages:
        kind, said, some = codec.encode(cast(Message, message), parts, within=True)
        for tensor in some:
            if id(tensor) not in places:
                places[id(tensor)] = len(tensors)
                tensors.append(tensor)
        lines.append([kind, said, [places[id(tensor)] for tensor in some]])
    return pack([words, lines], tensors)


def read(blob: Tensor, parts: OwnParts) -> tuple[list[Any], list[Any]]:
    """Decode the plain data and the messages that `write` encoded."""
    (words, lines), tensors = unpack(blob)
    found = [codec.decode(kind, said, [tensors[i] for i in places], parts, within=True) for kind, said, places in lines]
    return words, [codec.moved(message, parts.device) for message in found]
