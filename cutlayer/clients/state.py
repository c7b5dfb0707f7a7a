"""State that lives on between rounds, and its owners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

import torch
from torch import Tensor

from cutlayer.nn.flat import Vectors
from cutlayer.optim.memory import Moments

Owner = NewType("Owner", str)
"""The owner of a piece of state; its text is the piece's name in checkpoints."""

SERVER = Owner("server")
"""The server, where it has one half for all clients; owns the memory of its optimizer."""
FUSED = Owner("fused")
"""Owns SMoFi's fused momentum."""
AVERAGED = Owner("momentum")
"""Owns the averaged momentum of whole models, with which every client starts the next round."""


def client(j: int) -> Owner:
    """Client j; owns a `ClientState`."""
    return Owner(f"client/{j}")


def slot(i: int) -> Owner:
    """The i-th place of a round, whichever client has it; owns the memory of a server optimizer."""
    return Owner(f"slot/{i}")


def surrogate(j: int) -> Owner:
    """The surrogate of client j; owns the memory of its optimizer."""
    return Owner(f"surrogate/{j}")


@dataclass(frozen=True)
class ClientState:
    """What a client keeps: its front, its optimizer's memory, its position in its data.

    `round`: where the state is on the client's own machine, the client's last round that counts; else 0.
    """

    front: Vectors | None = None
    memory: Moments | None = None
    position: int = 0  # batches taken so far, over all rounds
    round: int = 0

    def __bool__(self) -> bool:
        return self.front is not None or self.memory is not None or self.remote

    @property
    def remote(self) -> bool:
        """Whether the state is on the client's own machine."""
        return self.round > 0

    def named(self) -> dict[str, Tensor]:
        """Return it as named tensors, for storage; `read` is the inverse."""
        named: dict[str, Tensor] = {}
        if self.front is not None:
            named |= self.front._asdict()
        if self.memory is not None:
            named |= {**self.memory.named(), "position": torch.tensor(self.position)}
        if self.round:
            named["round"] = torch.tensor(self.round)
        return named

    @classmethod
    def read(cls, named: Mapping[str, Tensor]) -> ClientState:
        return cls(
            Vectors(*(named[name] for name in Vectors._fields)) if "w" in named else None,
            Moments.read(named) if "t" in named else None,
            int(named.get("position", 0)),
            int(named.get("round", 0)),
        )


NOTHING = ClientState()
