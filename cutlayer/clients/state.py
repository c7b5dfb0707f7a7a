"""What lives on between rounds, and whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

import torch
from torch import Tensor

from cutlayer.nn.flat import Vectors
from cutlayer.optim.memory import Moments

Owner = NewType("Owner", str)
"""Whose a piece of state is; its text names the piece in checkpoints."""

SERVER = Owner("server")
"""The only server half: its optimizer's memory."""
FUSED = Owner("fused")
"""SMoFi's momentum."""
AVERAGED = Owner("momentum")
"""The momentum of whole models, averaged by an update for everybody to start with."""


def client(j: int) -> Owner:
    """Client j: a `ClientState`."""
    return Owner(f"client/{j}")


def slot(i: int) -> Owner:
    """The i-th place of a round, whoever sits there: the memory of a server optimizer."""
    return Owner(f"slot/{i}")


def surrogate(j: int) -> Owner:
    """The surrogate of client j: the memory of its optimizer."""
    return Owner(f"surrogate/{j}")


@dataclass(frozen=True)
class ClientState:
    """What a client keeps: its front, its optimizer's memory, its position in its data.

    `round`: where the state itself is on the client's machine, the last round that counts.
    """

    front: Vectors | None = None
    memory: Moments | None = None
    position: int = 0  # batches taken so far, over all rounds
    round: int = 0

    def __bool__(self) -> bool:
        return self.front is not None or self.memory is not None or self.remote

    @property
    def remote(self) -> bool:
        """It is with the client, on another machine."""
        return self.round > 0

    def named(self) -> dict[str, Tensor]:
        """As tensors with names, to be stored; `read` takes them back."""
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
